"""Sizes, rates and token counts: read in, and written out.

One unit inside (bytes, tokens, seconds, all plain numbers), formatting at the edge.
``GiB`` is 2**30 bytes and ``GB`` is 10**9 bytes, here and in every figure that is printed.
"""

from __future__ import annotations

import re

from kvplan.errors import InputError, printable

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
GB = 10**9

_SIZE_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": GB, "tb": 10**12,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
}  # fmt: skip
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]*)\Z")
_MAX_BYTES = 2**60
_MAX_TOKENS = 2**40


def parse_size(text: str, flag: str) -> int:
    """Bytes from a size such as ``80GiB``, ``1.5GB`` or ``150109880320B``.

    Raises:
        InputError: no unit, a bare ``80G``, zero, negative, a fraction of a byte, or over 2**60.
    """
    match = _NUMBER.match(text.strip())
    if not match:
        raise InputError(
            f"{printable(text)!r} is not a size", where=flag, hint="write it as 80GiB (2^30) or 80GB (10^9)"
        )
    digits, unit = match.groups()
    factor = _SIZE_UNITS.get(unit.lower())
    if factor is None:
        letter = unit[:1].upper()
        if unit.upper() in ("K", "M", "G", "T"):
            raise InputError(
                f"{printable(text)!r} could be {digits}{letter}iB or {digits}{letter}B",
                where=flag,
                hint=f"type {digits}{letter}iB (powers of 2) or {digits}{letter}B (powers of 10)",
            )
        if unit.lower() in ("ki", "mi", "gi", "ti"):
            raise InputError(
                f"unknown unit {unit!r} in {printable(text)!r}", where=flag, hint=f"type {digits}{letter}iB"
            )
        what = f"unknown unit {unit!r} in" if unit else "no unit in"
        raise InputError(f"{what} {printable(text)!r}", where=flag, hint="write it as 80GiB (2^30) or 80GB (10^9)")
    value = _scaled(digits, factor, text, flag, "byte")
    if value > _MAX_BYTES:
        raise InputError(f"{printable(text)!r} is more than any machine holds", where=flag, hint="check the unit")
    return value


def parse_rate(text: str, flag: str) -> int:
    """Bytes per second from a rate such as ``3350GB/s`` or ``4.8TB/s``."""
    stripped = text.strip()
    if not stripped.lower().endswith("/s"):
        raise InputError(f"{printable(text)!r} is not a rate", where=flag, hint="write it as 3350GB/s or 4.8TB/s")
    return parse_size(stripped[:-2], flag)


def parse_tokens(text: str, flag: str) -> int:
    """A token count as vLLM reads it: ``32k`` is 32,000, ``32K`` is 32,768, ``1.5m`` is 1,500,000.

    Source: vLLM 0.33.0, ``vllm/engine/arg_utils.py``, ``human_readable_int``.
    """
    match = _NUMBER.match(text.strip())
    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    if not match or match.group(2) not in units:
        raise InputError(
            f"{printable(text)!r} is not a token count",
            where=flag,
            hint="write it as 32768, 32K (32,768) or 32k (32,000)",
        )
    digits, unit = match.groups()
    if unit.isupper() and "." in digits:
        raise InputError(
            f"{printable(text)!r}: a binary unit takes a whole number",
            where=flag,
            hint=f"type {digits}{unit.lower()} or a whole number",
        )
    value = _scaled(digits, units[unit], text, flag, "token")
    if value > _MAX_TOKENS:
        raise InputError(f"{printable(text)!r} is more tokens than any cache holds", where=flag, hint="check the unit")
    return value


def ungrouped(number: str) -> str:
    """`number` without commas and underscores between groups of three digits; any other stays, and is no number: 1,8 is
    two numbers or a decimal comma, and not 18."""
    whole, point, rest = number.partition(".")
    head, *groups = whole.replace("_", ",").split(",")
    grouped = 1 <= len(head.lstrip("+-")) <= 3 and all(len(group) == 3 for group in groups)
    return "".join((head, *groups, point, rest)) if grouped or not groups else number


def _scaled(digits: str, factor: int, text: str, flag: str, unit: str) -> int:
    """`digits` x `factor` as an exact integer; refuses zero and fractions of a unit."""
    if len(digits) > 40:
        raise InputError(f"{printable(digits, 20)!r} is too long a number", where=flag, hint="check the digits")
    whole, _, fraction = digits.partition(".")
    numerator = int(whole + fraction) * factor
    value, rest = divmod(numerator, 10 ** len(fraction))
    if rest and factor < 10**3:
        raise InputError(
            f"{printable(text)!r} is not a whole number of {unit}s", where=flag, hint=f"type {value} or {value + 1}"
        )
    if value == 0:
        raise InputError(f"{printable(text)!r} is zero", where=flag, hint="type a size above zero")
    return int(value)


def gib(num_bytes: float, digits: int = 2) -> str:
    """``12.34 GiB``; thousands separated."""
    return f"{num_bytes / GIB:,.{digits}f} GiB"


def human_bytes(num_bytes: int) -> str:
    """The largest binary unit that leaves at least 1: ``320 KiB``, ``1.25 GiB``, ``576 B``."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= unit:
            value = num_bytes / unit
            text = f"{value:,.2f}".rstrip("0").rstrip(".")
            return f"{text} {name}"
    return f"{num_bytes:,} B"


def human_count(value: int) -> str:
    """A count for people: ``671.0 B`` parameters, ``8.03 B``, ``270 M``."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if value >= unit:
            return f"{value / unit:.4g} {name}"
    return f"{value:,}"
