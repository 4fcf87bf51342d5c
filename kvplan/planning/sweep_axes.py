"""What a sweep varies: ``NAME=V1,V2,...`` and ranges, read by the rules of the flag that NAME names.

==================================  ==========================================================
``kv-cache-dtype=bf16,fp8``         a list; ``default`` leaves the flag out
``speculative-config=default;{..}`` values that hold commas are parted by semicolons instead
``max-model-len=1K..128K*2``        geometric: 1K, 2K, 4K, ... 128K
``concurrency=1..1000:10``          by tens: 1, 11, 21, ...; ``1..1000`` by ones
``gpu-memory-utilization=0.5..0.9:0.05``  shares need their step
``price=1..4:0.5``                  dollars an hour of the GPU; ``price=h100-sxm=2.5,b200=6`` of one of several
==================================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import log, log1p
from typing import Any, NamedTuple

from kvplan.engines.options import Option
from kvplan.errors import InputError, KvplanError, UnknownNameError, printable

FLAG = "--vary"
MODEL, ATTENTION, PRICE = "model", "attention", "price"
VARIANTS = {"own": None, "mha": "as_mha", "mqa": "as_mqa"}
"""Values of the axis `ATTENTION`, and the method of a mixer that makes it so."""
DEFAULT = "default"
"""The value that leaves a flag out."""
MAX_VALUES = 10_000_000
MAX_POINTS = 100_000_000
MAX_STEPS = 2_000
"""Of a geometric range, whose powers are exact."""
_AMOUNTS = ("per_second", "seconds", "number")
_NO_RANGE = ("text", "true", "false")
_FIXED = frozenset({"assume", "hub", "calibration", "from_log"})
"""Flags that say how something is read, not what is deployed."""


class Axis(NamedTuple):
    """One setting and the values it takes."""

    setting: str
    values: Sequence[Any]
    """As the planner takes them; None: the flag is left out."""

    def shown(self, value: Any) -> Any:
        """`value` as a row of the sweep shows it."""
        if self.setting == PRICE and value is not None:
            return next(usd if name is None else f"{name}={usd:g}" for name, usd in value)
        return DEFAULT if value is None else value


def read_axes(texts: Iterable[str], options: Sequence[Option], given: Mapping[str, Any]) -> list[Axis]:
    """The axes of a sweep.

    Args:
        texts: what was typed after each ``--vary``.
        options: the flags that can be varied.
        given: the settings that are fixed by flags of their own.

    Raises:
        UnknownNameError: no such flag.
        InputError: a value that the flag does not take, an axis twice or fixed besides, or a grid beyond reason.
    """
    names = _names(options)
    axes: list[Axis] = []
    for text in texts:
        axis = _read_axis(text, names)
        if any(axis.setting == other.setting for other in axes):
            raise InputError(f"{axis.setting} is varied twice", where=FLAG, hint="put its values into one list")
        if axis.setting in given:
            name = axis.setting.replace("_", "-")
            raise InputError(
                f"{axis.setting} is varied, and fixed by --{name} too", where=FLAG, hint="leave out one of the two"
            )
        axes.append(axis)
    points = size_of(axes)
    if points > MAX_POINTS:
        sizes = " x ".join(f"{len(axis.values):,}" for axis in axes)
        raise InputError(
            f"a grid of {points:,} points ({sizes}) is too large", where=FLAG,
            hint=f"at most {MAX_POINTS:,}: use wider steps, such as 1K..128K*2",
        )  # fmt: skip
    return axes


def size_of(axes: Iterable[Axis]) -> int:
    """Points of the grid."""
    points = 1
    for axis in axes:
        points *= len(axis.values)
    return points


def _names(options: Sequence[Option]) -> dict[str, Option | None]:
    """Every name that can be varied: flags without their dashes, short ones too."""
    names: dict[str, Option | None] = {MODEL: None, ATTENTION: None}
    for option in options:
        if option.setting not in _FIXED:
            for flag in option.flags:
                names[flag.lstrip("-")] = option
            if not option.is_switch:
                names.setdefault(option.setting.replace("_", "-"), option)
    return names


def _read_axis(text: str, names: Mapping[str, Option | None]) -> Axis:
    name, equals, rest = text.partition("=")
    key = name.strip().lstrip("-").replace("_", "-")
    if not equals:
        raise InputError(f"{printable(text, 60)!r} has no values", where=FLAG, hint=f"{FLAG} concurrency=1,8,64")
    if key not in names:
        raise UnknownNameError("flag to vary", key, sorted(names), where=FLAG, more="any planning flag, without dashes")
    option = names[key]
    values: list[Sequence[Any]] = []
    where = f"{FLAG} {key}"
    for part in rest.split(";" if ";" in rest else ","):
        part = part.strip()
        if not part:
            raise InputError("an empty value", where=where, hint=f"{where}=V1,V2")
        if values and len(part) == 3 and part.isdigit() and part[0] == "0":
            raise InputError(
                f"{part!r} looks like the end of a number", where=where, hint="commas part values: 1024, not 1,024"
            )
        values.append(_read_values(part, option, key, where))
    found: Sequence[Any] = values[0] if len(values) == 1 else [v for some in values for v in some]
    if len(values) > 1:
        found = list(dict.fromkeys(found))
    return Axis(option.setting if option else key, found)


def _read_values(text: str, option: Option | None, key: str, where: str) -> Sequence[Any]:
    """The values that one part of a list stands for."""
    if option is None:
        if key == ATTENTION and text not in VARIANTS:
            raise UnknownNameError("attention", text, list(VARIANTS), where=where, more=f"known: {', '.join(VARIANTS)}")
        return [text]
    if text == DEFAULT:
        return [None]
    if option.is_switch:
        return [_switch(text, option, where)]
    if ".." in text and option.kind not in _NO_RANGE:
        return _range(text, option, where)
    return [_value(text, option, where)]


def _switch(text: str, option: Option, where: str) -> bool | None:
    """What a switch sets; None where it is off."""
    on = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}.get(text.lower())
    if on is None:
        raise InputError(f"{printable(text, 40)!r} is neither true nor false", where=where, hint="true or false")
    return option.kind == "true" if on else None


def _value(text: str, option: Option, where: str) -> Any:
    try:
        return option.read(text)
    except KvplanError as error:
        error.where = where
        raise


def _range(text: str, option: Option, where: str) -> Sequence[Any]:
    """``A..B``, ``A..B:STEP`` or ``A..B*FACTOR``, both ends included where the steps meet them."""
    if option.setting == PRICE:
        plain = option._replace(setting="", kind="number")
        return [read for usd in _range(text, plain, where) for read in [_value(f"{usd:.17g}", option, where)]]
    first, _, rest = text.partition("..")
    last, colon, step_text = rest.partition(":")
    last, star, factor_text = last.partition("*") if not colon else (last, "", "")
    low, high = _value(first, option, where), _value(last, option, where)
    if low < 0:
        raise InputError(f"a range cannot start at {low}", where=where, hint=f"1..{last}")
    if low > high:
        raise InputError(f"{printable(text, 60)!r} runs backwards", where=where, hint=f"{last}..{first}")
    if option.kind in _AMOUNTS:
        return _amounts(low, high, factor_text if star else step_text, star, where)
    if option.kind == "share":
        return _shares(first, last, step_text, star, where)
    if star:
        return _powers(low, high, factor_text, where)
    step = _value(step_text, option, where) if colon else 1
    if step <= 0:
        raise InputError("a step of 0 never ends", where=where, hint=f"{first}..{last}:1")
    return _counted(range(low, high + 1, step), where)


def _powers(low: int, high: int, text: str, where: str) -> list[int]:
    factor = _fraction(text)
    if factor is None or factor <= 1:
        raise InputError(f"{printable(text, 20)!r} is no factor", where=where, hint="a number above 1, such as *2")
    if low <= 0:
        raise InputError("a geometric range cannot start at 0", where=where, hint=f"1..{high}*{text}")
    return list(dict.fromkeys(int(exact) for exact in _grown(Fraction(low), Fraction(high), factor, where)))


def _shares(first: str, last: str, step_text: str, star: str, where: str) -> list[float]:
    step = _fraction(step_text)
    if star or step is None or step <= 0:
        raise InputError("a range of shares needs its step", where=where, hint=f"{first}..{last}:0.05")
    low, high = Fraction(first.strip()), Fraction(last.strip())
    count = _counted(range(int((high - low) / step) + 1), where)
    return [float(low + i * step) for i in count]


def _amounts(low: float, high: float, text: str, star: str, where: str) -> list[float]:
    """Amounts that need not be whole: by steps of the first's unit a second or an item, or by factors."""
    step = _fraction(text)
    if step is None or step <= (1 if star else 0):
        raise InputError("a range of amounts needs its step", where=where, hint="0.5..4:0.5, or 1..64*2")
    if star and low <= 0:
        raise InputError("a geometric range cannot start at 0", where=where, hint=f"1..{high:g}*{text}")
    at, end = Fraction(str(low)), Fraction(str(high))
    if star:
        return [float(exact) for exact in _grown(at, end, step, where)]
    return [float(at + i * step) for i in _counted(range(int((end - at) / step) + 1), where)]


def _grown(low: Fraction, high: Fraction, factor: Fraction, where: str) -> Iterator[Fraction]:
    """``low``, ``low x factor``, ... up to `high`, exactly; of no more steps than exact powers are quick for."""
    steps = log(high / low) / log1p(factor - 1)
    if steps > MAX_STEPS:
        raise InputError(
            f"a factor of {float(factor):.12g} takes {steps:,.0f} steps", where=where,
            hint=f"at most {MAX_STEPS:,}: a larger factor, or steps such as :10",
        )  # fmt: skip
    while low <= high:
        yield low
        low *= factor


def _fraction(text: str) -> Fraction | None:
    plain = text.strip()
    if not plain or len(plain) > 20 or not plain.replace(".", "", 1).isdigit() or not plain.isascii():
        return None
    return Fraction(plain)


def _counted(values: range, where: str) -> range:
    count = (values.stop - values.start + values.step - 1) // values.step  # len() stops at sys.maxsize
    if count > MAX_VALUES:
        raise InputError(
            f"{count:,} values are too many", where=where, hint=f"at most {MAX_VALUES:,}: a wider step, or *2"
        )
    return values
