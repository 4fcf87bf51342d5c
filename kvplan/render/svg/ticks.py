"""Where an axis has its ticks, and how a number of each unit is written.

Bytes are in IEC units (KiB = 2^10 bytes), everything else in SI prefixes (k = 10^3); tokens on a scale of powers
of two are counted as vLLM reads them: K is 1,024.
"""

from __future__ import annotations

from math import ceil, floor, isfinite, log, log2, log10
from typing import NamedTuple

from kvplan.render.svg.parts import Axis, Unit

_IEC = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SI = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "K", "M", "G", "T")
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


class Scale(NamedTuple):
    """An axis with its ends and ticks settled."""

    axis: Axis
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    """(value, text), rising."""

    def share(self, value: float) -> float:
        """Where `value` lies between the ends: 0 at the low one, 1 at the high one; may lie outside."""
        if self.axis.scale == "linear":
            return (value - self.low) / (self.high - self.low)
        return (log(max(value, 1e-300)) - log(self.low)) / (log(self.high) - log(self.low))


def scale_of(axis: Axis, values: list[float], most: int) -> Scale:
    """The scale of an axis over the values that are drawn along it, with at most about `most` ticks."""
    known = [v for v in values if isfinite(v) and (axis.scale == "linear" or v > 0)]
    if axis.scale == "linear":
        return _linear(axis, known, most)
    return _log(axis, known, most)


def _linear(axis: Axis, known: list[float], most: int) -> Scale:
    low = axis.low if axis.low is not None else min([0.0, *known])
    top = axis.high if axis.high is not None else max([*known, low])
    if top <= low:
        top = low + 1
    base = _base(axis.unit, max(abs(low), abs(top)))
    step = _nice((top - low) / base / most) * base
    if axis.unit in ("count", "tokens"):
        step = max(1.0, step)
    low = floor(low / step + 1e-9) * step if axis.low is None else low
    high = max(low + step, ceil(top / step - 1e-9) * step) if axis.high is None else top  # also of what is next to none
    first = ceil(low / step - 1e-9)
    ticks = [i * step for i in range(first, floor(high / step + 1e-9) + 1)]
    return Scale(axis, low, high, tuple((t, _tick(axis.unit, t, base, step)) for t in ticks))


def _base(unit: Unit, top: float) -> float:
    """What one of the unit that suits `top` is worth."""
    if unit == "bytes":
        return float(1024 ** _power(top, 1024, len(_IEC)))
    if unit == "seconds":
        return next((size for size, _ in _SECONDS if top >= size), 1e-9)
    return 0.01 if unit == "share" else 1.0


def _power(value: float, base: int, names: int) -> int:
    """The largest power of `base` that `value` reaches, within the names there are."""
    power = 0
    while power < names - 1 and abs(value) >= base ** (power + 1):
        power += 1
    return power


def _nice(step: float) -> float:
    """1, 2 or 5 times a power of ten that is not below `step`."""
    ten = float(10 ** floor(log10(step)))
    return next(m * ten for m in (1, 2, 5, 10) if m * ten >= step * (1 - 1e-9))


def _tick(unit: Unit, value: float, base: float, step: float) -> str:
    digits = max(0, -floor(log10(step / base) + 1e-9))
    if unit == "bytes":
        return f"{value / base:,.{digits}f} {_IEC[round(log2(base) / 10)]}" if value else "0"
    if unit == "seconds":
        return f"{value / base:,.{digits}f} {dict(_SECONDS)[base]}" if value else "0"
    if unit == "share":
        return f"{value * 100:,.{digits}f} %"
    if unit == "usd":
        return f"${value:,.{max(0, -floor(log10(step) + 1e-9))}f}"
    if step < 1000 and unit != "flops":
        return f"{value:,.{digits}f}"
    return _prefixed(value, _SI, 1000, max(0, 3 * _power(value, 1000, len(_SI)) - floor(log10(step) + 1e-9)))


def _prefixed(value: float, names: tuple[str, ...], base: int, digits: int = 0) -> str:
    power = _power(value, base, len(names))
    return f"{value / base**power:,.{digits}f}".rstrip("0").rstrip(".") + names[power] if value % base**power else (
        f"{value / base**power:,.0f}{names[power]}"
    )  # fmt: skip


def _log(axis: Axis, known: list[float], most: int) -> Scale:
    base = 2 if axis.scale == "log2" else 10
    low = axis.low if axis.low else min(known, default=1.0)
    top = axis.high if axis.high else max([*known, low])
    if axis.low is None:
        low = _down(low, base)
    if axis.high is None:
        top = _up(top, base)
    if top <= low:
        top = low * base
    found = _powers(low, top, base, most)
    return Scale(axis, low, top, tuple((t, _log_tick(axis, t)) for t in found))


def _down(value: float, base: int) -> float:
    """The round number of a log scale at or below `value`: a power of two, or 1, 2 or 5 times a power of ten."""
    power = float(base ** floor(log(value, base) + 1e-9))
    return max(m * power for m in ((1,) if base == 2 else (1, 2, 5)) if m * power <= value * (1 + 1e-9))


def _up(value: float, base: int) -> float:
    power = float(base ** floor(log(value, base) + 1e-9))
    return min(m * power for m in ((1, 2) if base == 2 else (1, 2, 5, 10)) if m * power >= value * (1 - 1e-9))


def _powers(low: float, high: float, base: int, most: int) -> list[float]:
    first, last = ceil(log(low, base) - 1e-9), floor(log(high, base) + 1e-9)
    if base == 10 and last - first < 3:
        fine = [m * 10.0**p for p in range(first - 1, last + 1) for m in (1, 2, 5)]
        found = [t for t in fine if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
        if len(found) <= most + 3:
            return found
    stride = max(1, ceil((last - first + 1) / most))
    return [float(base) ** p for p in range(first, last + 1, stride)]


def _log_tick(axis: Axis, value: float) -> str:
    if axis.unit == "bytes":
        power = _power(value, 1024, len(_IEC))
        return f"{value / 1024**power:g} {_IEC[power]}"
    if axis.unit == "seconds":
        size, name = next(((s, n) for s, n in _SECONDS if value >= s * (1 - 1e-9)), _SECONDS[-1])
        return f"{value / size:g} {name}"
    if axis.unit == "share":
        return f"{value * 100:g} %"
    if axis.unit == "usd":
        return f"${value:g}"
    if axis.scale == "log2":
        power = _power(value, 1024, len(_BINARY))
        return f"{value / 1024**power:g}{_BINARY[power]}"
    power = _power(value, 1000, len(_SI))
    return f"{value / 1000**power:g}{_SI[power]}"


def spoken(unit: Unit, value: float | None) -> str:
    """One number as a table gives it: with its unit, four digits and more where they count."""
    if value is None:
        return "-"
    if unit == "bytes":
        power = _power(value, 1024, len(_IEC))
        return f"{value / 1024**power:,.{2 if power else 0}f} {_IEC[power]}"
    if unit == "seconds":
        size, name = next(((s, n) for s, n in _SECONDS if abs(value) >= s), _SECONDS[-1])
        return f"{value / size:,.4g} {name}" if value else "0 s"
    if unit == "share":
        return f"{value * 100:.1f} %"
    if unit == "usd":
        return f"${value:,.4g}" if abs(value) < 1000 else f"${value:,.0f}"
    if unit == "flops":
        power = _power(value, 1000, len(_SI))
        return f"{value / 1000**power:,.4g} {_SI[power]}".rstrip()
    if unit in ("count", "tokens") or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"
