"""The bounds of figures that a plan states beside them: of rates and times, of what is paid, of named pairs."""

from __future__ import annotations

from typing import Any

_RATES = ("tokens_per_second", "tokens_per_second_per_request", "tokens_per_second_per_gpu")


def speed_ends(section: str, found: Any, rest: tuple[str, ...]) -> tuple[Any, ...]:
    """The bounds of a rate or a time: the constants behind it are known within a range."""
    value = getattr(found, rest[0]) if found is not None and len(rest) == 1 else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ()
    if section == "decode" and found.tokens_per_second:
        factors = (found.low / found.tokens_per_second, found.high / found.tokens_per_second)
        if rest[0] in _RATES:
            return tuple(value * factor for factor in factors)
        return tuple(value / factor for factor in factors) if rest[0] == "seconds_per_step" else ()
    if section == "prefill" and rest[0] == "seconds":
        return found.high_seconds, found.low_seconds
    if section == "prefill" and rest[0] == "tokens_per_second":
        return found.tokens / found.high_seconds, found.tokens / found.low_seconds
    return ()


def priced_ends(found: Any, rest: tuple[str, ...]) -> tuple[Any, ...]:
    """The bounds of what is paid an hour: those of the price."""
    price, value = getattr(found, "usd_per_gpu_hour", None), getattr(found, rest[0], None)
    if not price or not isinstance(value, float) or rest[0] != "usd_per_hour":
        return ()
    ends = found.low_usd_per_gpu_hour, found.high_usd_per_gpu_hour
    return () if None in ends else tuple(value * end / price for end in ends)


def named_ends(found: Any, rest: tuple[str, ...]) -> tuple[Any, ...]:
    """The bounds of a figure beside which fields of the same name with ``low`` and ``high`` stand."""
    for name in rest[:-1]:
        found = getattr(found, name, None)
    pairs = ((f"low_{rest[-1]}", f"high_{rest[-1]}"), (f"{rest[-1]}_low", f"{rest[-1]}_high"))
    for low, high in pairs:
        values = getattr(found, low, None), getattr(found, high, None)
        if None not in values:
            return values
    return ()
