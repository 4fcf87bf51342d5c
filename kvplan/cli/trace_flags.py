"""The flags that say which requests there are: a file or a description, and what is taken of it.

`kvplan.simulate.taking` reads their values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.options import Option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.simulate.documents import Broken

READING = (
    Option(
        "trace_format", ("--trace-format",), "text", "NAME",
        "mooncake, azure, csv, sharegpt or vllm-bench; default: by what the file begins with", "Trace",
    ),
    Option(
        "columns", ("--columns",), "text", "WHAT=NAME,...",
        "csv: columns of arrival, prompt, output, samples, prefix, prefix_tokens", "Trace",
    ),
    Option("trace_block", ("--trace-block",), "count", "TOKENS", "mooncake: tokens of one hash id (512)", "Trace"),
    Option(
        "chars_per_token", ("--chars-per-token",), "text", "X", "sharegpt: characters that make a token (4)", "Trace"
    ),
    Option("strict", ("--strict",), "true", "", "stop at the first broken line", "Trace"),
)  # fmt: skip

TAKING = (
    Option("start", ("--start",), "text", "SECONDS", "leave out what arrives before", "Trace"),
    Option("end", ("--end",), "text", "SECONDS", "leave out what arrives from then on", "Trace"),
    Option("limit", ("--limit",), "count", "N", "the first N requests of what is left", "Trace"),
    Option("time_scale", ("--time-scale",), "text", "X", "arrivals times X: 0.5 is twice as fast", "Trace"),
    Option("request_rate", ("--request-rate",), "text", "R", "arrivals anew: Poisson, R requests a second", "Trace"),
    Option("seed", ("--seed",), "text", "N", "of --request-rate or --synthetic (0)", "Trace"),
)

SYNTHETIC = Option(
    "synthetic", ("--synthetic",), "text", "SPEC",
    "a made-up trace: requests=1000,prompt=lognormal:512,output=128,rate=2,system=100,turns=3,seed=0 "
    "(think=20: seconds from one turn's arrival to the next)", "Trace",
)  # fmt: skip

TRACE = (*READING, *TAKING, SYNTHETIC)


def said(notes: Sequence[str], broken: Broken) -> list[str]:
    """Warnings about a trace: what was put right, and what was left out."""
    many = (
        f"{broken.lines:,} broken lines were left out; the first" if broken.lines > 1 else "a broken line was left out"
    )
    lost = f"{many}: {'; '.join(broken.first)}"
    return [*notes, *([lost] if broken.lines else [])]
