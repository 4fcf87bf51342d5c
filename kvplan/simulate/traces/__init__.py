"""Traces in files: one reader a format, found by what the file begins with.

========== ===========================================================================
mooncake   JSON lines: ``timestamp`` ms, ``input_length``, ``output_length``, ``hash_ids``
azure      CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``
csv        CSV with named columns (`kvplan.simulate.traces.table`)
sharegpt   JSON array of conversations
vllm-bench the result of ``vllm bench serve --save-result --save-detailed``
========== ===========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kvplan.errors import InputError, UnknownNameError, printable
from kvplan.simulate.traces import azure, mooncake, sharegpt, table, vllm_bench
from kvplan.simulate.traces.lines import Source

if TYPE_CHECKING:
    from kvplan.simulate.trace import Trace

READERS: dict[str, Callable[..., Trace]] = {
    "mooncake": mooncake.read, "azure": azure.read, "csv": table.read, "sharegpt": sharegpt.read,
    "vllm-bench": vllm_bench.read,
}  # fmt: skip


class Reading(NamedTuple):
    """How a file is read."""

    format: str | None = None
    """A key of `READERS`; None: by what the file begins with."""
    strict: bool = False
    columns: Mapping[str, str] = {}
    """``csv``: what is meant (arrival, prompt, output, samples, prefix) -> the column's name."""
    block_tokens: int = mooncake.BLOCK_TOKENS
    """``mooncake``: tokens of one hash id."""
    chars_per_token: float = 4.0
    """``sharegpt``: characters that make a token, where a conversation holds text alone."""


DEFAULT = Reading()


def read_trace(path: str, reading: Reading = DEFAULT) -> Trace:
    """The trace in a file, gzip or not.

    Raises:
        InputError: it cannot be read, or holds no request.
        UnknownNameError: no such format.
    """
    if reading.format is not None and reading.format not in READERS:
        raise UnknownNameError(
            "trace format", reading.format, list(READERS), where="--trace-format", more=f"known: {', '.join(READERS)}"
        )
    source = Source(path)
    name = reading.format or detect(source.head(), path)
    return READERS[name](source, reading)


def detect(head: str, path: str) -> str:
    """The format of a file that begins so.

    Raises:
        InputError: it begins like none of them.
    """
    text = head.lstrip("\ufeff \t\r\n")
    if not text:
        raise InputError("is empty", where=printable(path), hint="a trace has one request a line")
    line = text.partition("\n")[0].strip()
    if text[0] == "[":
        return "sharegpt"
    if text[0] == "{":
        whole = line.endswith("}") and '"input_length"' in line
        if whole or '"hash_ids"' in text:
            return "mooncake"
        if '"input_lens"' in text or '"request_throughput"' in text or '"backend"' in text:
            return "vllm-bench"
        return "mooncake"
    names = [name.strip().lower() for name in line.split(",")]
    if {"contexttokens", "generatedtokens"} <= set(names):
        return "azure"
    if len(names) > 1 and any(name and not _is_number(name) for name in names):
        return "csv"
    raise InputError(
        f"begins like no trace: {printable(line, 40)!r}", where=printable(path),
        hint=f"name its format: --trace-format {', '.join(READERS)}",
    )  # fmt: skip


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


__all__ = ["READERS", "Reading", "Source", "detect", "read_trace"]
