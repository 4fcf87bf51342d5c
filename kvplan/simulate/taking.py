"""From the values of flags to a trace: read or made, sliced, scaled, timed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError, UnknownNameError, printable
from kvplan.simulate.synthetic import retimed, sliced, synthetic
from kvplan.simulate.traces import Reading, read_trace
from kvplan.simulate.traces.mooncake import BLOCK_TOKENS
from kvplan.simulate.traces.table import NAMES as COLUMNS

if TYPE_CHECKING:
    from kvplan.simulate.trace import Trace

NAMES = (
    "trace_format", "columns", "trace_block", "chars_per_token", "strict", "start", "end", "limit", "time_scale",
    "request_rate", "seed", "synthetic",
)  # fmt: skip
"""Settings of a trace."""
_LEAST, _MOST = 1e-9, 1e12
"""Bounds of rates, scales and times: beyond them a trace has an end that no number holds."""

_OF_FILES = ("trace_format", "columns", "trace_block", "chars_per_token", "strict")


def take_trace(path: str | None, given: dict[str, Any], *, argument: str = "--trace") -> Trace:
    """The trace that the flags describe; removes them from `given`.

    Args:
        argument: how the verb takes the path.

    Raises:
        KvplanError: there is none, or it cannot be read.
    """
    flags = {name: given.pop(name, None) for name in NAMES}
    spec = flags["synthetic"]
    if (path is None) == (spec is None):
        raise InputError(
            "which requests? give a file or --synthetic, one of them", where=argument,
            hint=f"{argument.removesuffix('FILE')} FILE, or --synthetic requests=1000,rate=2".strip(),
        )  # fmt: skip
    seed = None if flags["seed"] is None else _seed(flags["seed"])
    if spec is not None:
        for name in _OF_FILES:
            if flags[name]:
                flag = f"--{name.replace('_', '-')}"
                raise InputError("is about a file, and the trace is --synthetic", where=flag, hint=f"leave {flag} out")
        trace = synthetic(spec, seed=seed)
    else:
        reading = Reading(
            flags["trace_format"], bool(flags["strict"]), _columns(flags["columns"]),
            flags["trace_block"] or BLOCK_TOKENS,
            _number(flags["chars_per_token"], "--chars-per-token", 4.0),
        )  # fmt: skip
        trace = read_trace(str(path), reading)
        if seed is not None and not flags["request_rate"]:
            raise InputError(
                "nothing is drawn: the trace is a file, with its own arrivals", where="--seed",
                hint="add --request-rate R, or leave --seed out",
            )  # fmt: skip
    scale = _number(flags["time_scale"], "--time-scale", 1.0)
    start, end = _number(flags["start"], "--start", 0.0, zero=True), _number(flags["end"], "--end", 0.0)
    trace = sliced(trace, start=start, end=end or None, limit=flags["limit"], scale=scale)
    rate = _number(flags["request_rate"], "--request-rate", 0.0)
    return retimed(trace, rate, seed or 0) if rate else trace


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InputError(f"{printable(text, 30)!r} is not a whole number", where="--seed", hint="--seed 1")
    return int(text)


def _columns(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        what, equals, name = part.partition("=")
        if not equals or not name.strip():
            raise InputError(
                f"{printable(part, 40)!r} names no column", where="--columns", hint="--columns prompt=in,output=out"
            )
        if what.strip() not in COLUMNS:
            raise UnknownNameError("kind of column", what.strip(), list(COLUMNS), where="--columns")
        found[what.strip()] = name.strip()
    return found


def _number(text: str | None, flag: str, otherwise: float, *, zero: bool = False) -> float:
    if text is None:
        return otherwise
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (_LEAST <= value <= _MOST or (zero and value == 0)):
        what = f"a number from {_LEAST:g} to {_MOST:g}"
        raise InputError(f"{printable(text, 30)!r} is not {what}", where=flag, hint=f"{flag} 1.5")
    return value
