"""CSV with named columns: when requests arrive, how long they are, and what they share.

| what | names it is found under |
| --- | --- |
| arrival, seconds (or a date) | arrival, arrival_seconds, arrival_time, arrived_at, timestamp, time |
| prompt, tokens | prompt_tokens, prompt, input_tokens, input_length, context_tokens, num_prefill_tokens |
| output, tokens | output_tokens, output, output_length, generated_tokens, completion_tokens, num_decode_tokens |
| samples | samples, n |
| prefix (a name; prompts with the same one share their first tokens) | prefix, prefix_id |
| prefix tokens | prefix_tokens |
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvplan.errors import InputError, printable
from kvplan.simulate.trace import Builder, instant, length

if TYPE_CHECKING:
    from kvplan.simulate.trace import Trace
    from kvplan.simulate.traces import Reading
    from kvplan.simulate.traces.lines import Source

NAMES: dict[str, tuple[str, ...]] = {
    "arrival": ("arrival", "arrival_seconds", "arrival_time", "arrived_at", "timestamp", "time"),
    "prompt": (
        "prompt", "prompt_tokens", "input_tokens", "input_length", "context_tokens", "contexttokens",
        "num_prefill_tokens",
    ),
    "output": (
        "output", "output_tokens", "output_length", "generated_tokens", "generatedtokens", "completion_tokens",
        "num_decode_tokens",
    ),
    "samples": ("samples", "n"),
    "prefix": ("prefix", "prefix_id"),
    "prefix_tokens": ("prefix_tokens",),
}  # fmt: skip

_LONGEST_DATE = 64
"""Characters."""


def read(source: Source, reading: Reading, *, format: str = "csv") -> Trace:
    """The trace; without an arrival column all requests arrive at once."""
    lines = source.lines()
    _, first = next(lines, (0, ""))
    try:
        header = cells(first)
    except ValueError as error:
        raise InputError(f"its first line is no CSV: {error}", where=source.shown, hint="name columns there") from None
    at = columns(header, reading.columns, source.shown)
    made, prefixes = Builder(strict=reading.strict, where=source.shown), dict[str, int]()
    for number, text in lines:
        try:
            _add(made, cells(text), at, len(header), prefixes)
        except ValueError as error:
            made.refuse(f"line {number}", str(error))
    return made.build(source.path, format, timed="arrival" in at)


def cells(line: str) -> list[str]:
    """The cells of one line; a quoted cell ends on the line where it begins, so that no quote takes further lines.

    Raises:
        ValueError: quotes that do not match.
    """
    line = line.rstrip("\r\n")
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        raise ValueError("quotes that do not match") from None


def columns(header: list[str], given: Mapping[str, str], where: str) -> dict[str, int]:
    """what is meant -> index of its column.

    Raises:
        InputError: a column that is needed, or was named, is not there.
    """
    names = [cell.strip().lower() for cell in header]
    shown = ", ".join(printable(cell.strip(), 30) for cell in header[:12])
    found: dict[str, int] = {}
    for what, usual in NAMES.items():
        wanted = (given[what].lower(),) if what in given else usual
        index = next((names.index(name) for name in wanted if name in names), None)
        if index is not None:
            found[what] = index
        elif what in given:
            raise InputError(
                f"no column {printable(given[what], 40)!r} (there are {shown})", where=where, hint="see --columns"
            )
    for what in ("prompt", "output"):
        if what not in found:
            raise InputError(
                f"no column of {what} tokens (there are {shown})", where=where,
                hint=f"name it: --columns {what}=NAME",
            )  # fmt: skip
    if "prefix" in found and "prefix_tokens" not in found:
        raise InputError(
            f"how long is a prefix? column {printable(header[found['prefix']].strip(), 30)!r} names one, and none has "
            "its tokens", where=where, hint="add a column prefix_tokens, or --columns prefix_tokens=NAME",
        )  # fmt: skip
    return found


def _add(made: Builder, row: list[str], at: Mapping[str, int], width: int, prefixes: dict[str, int]) -> None:
    if len(row) < width:
        raise ValueError(f"{len(row)} cells of {width}")
    if len(row) > width and any(cell.strip() for cell in row[width:]):
        raise ValueError(f"{len(row)} cells where the header has {width}")
    prompt, output = length(row[at["prompt"]], "prompt tokens"), length(row[at["output"]], "output tokens")
    samples = length(row[at["samples"]], "samples") if "samples" in at else 1
    arrival = seconds(row[at["arrival"]]) if "arrival" in at else 0.0
    name = row[at["prefix"]].strip() if "prefix" in at else ""
    if not name:
        made.add(arrival, prompt, output, samples=samples)
        return
    shared = length(row[at["prefix_tokens"]], "prefix tokens")
    if shared > prompt:
        raise ValueError(f"prefix of {shared} tokens in a prompt of {prompt}")
    key = prefixes.setdefault(name, len(prefixes) + 1)
    made.add(arrival, prompt, output, [key], [shared], samples=samples)


def seconds(text: str) -> float:
    """A number of seconds, or a date and time (ISO 8601, in UTC where it names no zone).

    Raises:
        ValueError: neither.
    """
    stripped = text.strip()
    try:
        return instant(stripped, "arrival")
    except ValueError:
        pass
    if stripped.isdigit() or len(stripped) > _LONGEST_DATE:  # digits alone pass for a date without separators
        raise ValueError(f"arrival {stripped[:30]!r} is not a time")
    whole, dot, fraction = stripped.partition(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    zone = fraction[len(digits) :]
    try:
        moment = datetime.fromisoformat(whole + zone)
    except ValueError:
        raise ValueError(f"arrival {stripped[:30]!r} is not a time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() + (float(f"0.{digits}") if dot and digits else 0.0)
