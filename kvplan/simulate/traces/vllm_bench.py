"""What ``vllm bench serve --save-result --save-detailed`` writes: one JSON object with a list a figure.

Source: vLLM 0.33.0 ``vllm/benchmarks/serve.py``: ``input_lens``, ``output_lens`` (0: the request failed) and, in
releases that have it, ``start_times`` in seconds. Without start times the requests are taken to arrive evenly, at
the run's ``request_rate`` where that is finite. ``--append-result`` puts one object behind the other: the last counts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.simulate.trace import Builder, instant, length

if TYPE_CHECKING:
    from kvplan.simulate.trace import Trace
    from kvplan.simulate.traces import Reading
    from kvplan.simulate.traces.lines import Source


def read(source: Source, reading: Reading) -> Trace:
    """The trace of a benchmark's requests.

    Raises:
        InputError: not such a file, or saved without the details.
    """
    with source.open() as text:
        try:
            data, runs = _last(text.read())
        except (ValueError, RecursionError):
            raise InputError("is not JSON", where=source.shown, hint="give a file of --save-result") from None
    inputs, outputs = (data.get(name) if isinstance(data, dict) else None for name in ("input_lens", "output_lens"))
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise InputError(
            "has no input_lens and output_lens of one length", where=source.shown,
            hint="run vllm bench serve with --save-result --save-detailed",
        )  # fmt: skip
    starts = data.get("start_times")
    timed = isinstance(starts, list) and len(starts) == len(inputs)
    rate = _rate(data.get("request_rate"))
    made = Builder(strict=reading.strict, where=source.shown)
    for i, (prompt, output) in enumerate(zip(inputs, outputs, strict=True)):
        try:
            arrival = instant(starts[i], "start time") if timed else i / rate if rate else 0.0
            made.add(arrival, length(prompt, "input length"), length(output, "output length"))
        except ValueError as error:
            made.refuse(f"request {i + 1}", str(error))
    found = made.build(source.path, "vllm-bench", timed=timed or rate is not None)
    if runs == 1:
        return found
    return replace(found, notes=(*found.notes, f"of {runs:,} results in the file (--append-result) the last is taken"))


def _last(text: str) -> tuple[Any, int]:
    """(the last of the JSON values that follow each other, how many there are).

    Raises:
        ValueError: there is none, or something else.
    """
    decoder, at, count, found = json.JSONDecoder(), 0, 0, None
    text = text.strip()
    while at < len(text) or not count:
        found, at = decoder.raw_decode(text, at)
        count += 1
        at += len(text) - at - len(text[at:].lstrip())
    return found, count


def _rate(found: Any) -> float | None:
    """The run's requests per second; None where it was ``inf`` or is not there."""
    try:
        rate = float(found)
    except (TypeError, ValueError, OverflowError):
        return None
    return rate if 0 < rate < 1e9 else None
