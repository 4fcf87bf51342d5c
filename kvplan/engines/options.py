"""Flags as data: what a setting is called on a command line, and how its text is read.

Every table of flags in kvplan is made of `Option`: those of ``kvplan plan`` and its kin (`kvplan.cli.flags`), those
that every engine shares (`kvplan.engines.flags`), and those of one engine, which live with it and also serve to read
its own command line.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvplan.errors import InputError, printable
from kvplan.units import parse_rate, parse_size, parse_tokens, ungrouped

_MAX_COUNT = 1 << 50


class Option(NamedTuple):
    """One flag."""

    setting: str
    """The field it sets; names of settings are those of `kvplan.engines.base.Settings`."""
    flags: tuple[str, ...]
    """As typed, the long one first."""
    kind: str
    """A key of `READERS`, or ``true`` / ``false`` for a switch that takes no value."""
    metavar: str
    help: str
    panel: str = "Engine"
    """The heading it stands under in the help."""

    @property
    def is_switch(self) -> bool:
        return self.kind in ("true", "false")

    @property
    def is_list(self) -> bool:
        """Whether it may be typed several times; its texts are then joined by commas."""
        return self.kind in ("prices", "texts")

    def read(self, text: str) -> Any:
        """The value of `text`.

        Raises:
            InputError: it cannot be read; names the flag.
        """
        return READERS[self.kind](text, self.flags[0])


def parse_count(text: str, flag: str) -> int:
    """A whole number above zero.

    Raises:
        InputError: anything else.
    """
    digits = ungrouped(text.strip())
    if not digits.isascii() or not digits.isdigit():
        raise InputError(
            f"{printable(text, 40)!r} is not a whole number above 0",
            where=flag,
            hint=f"{flag}{' ' if flag.startswith('-') else '='}8, for example",
        )
    if len(digits) > 16 or int(digits) > _MAX_COUNT:
        raise InputError(f"{printable(text, 40)!r} is absurdly large", where=flag, hint="check the digits")
    if int(digits) == 0:
        raise InputError("0 is too small", where=flag, hint="at least 1")
    return int(digits)


def parse_share(text: str, flag: str) -> float:
    """A share above 0 and up to 1.

    Raises:
        InputError: anything else; a percentage is answered with the share it means.
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = float("nan")
    if text.strip().endswith("%") and 0 < value <= 100:
        raise InputError(f"{printable(text, 40)!r} is not a share", where=flag, hint=f"type {flag} {value / 100:g}")
    if not 0 < value <= 1:
        hint = f"type a number above 0 and up to 1, such as {flag} 0.9"
        if 1 < value < 10:
            hint = f"type {flag} 1"
        elif 10 <= value <= 100:
            hint = f"type {value / 100:g}"
        raise InputError(f"{printable(text, 40)!r} is not a share", where=flag, hint=hint)
    return value


def parse_max_model_len(text: str, flag: str) -> int:
    """A token count, or -1 (``auto``) to fit the length to the memory."""
    return -1 if text.strip() in ("-1", "auto") else parse_tokens(text, flag)


def parse_tokens_or_zero(text: str, flag: str) -> int:
    """A token count that may be none at all."""
    return 0 if text.strip() == "0" else parse_tokens(text, flag)


def parse_engine_bytes(text: str, flag: str) -> int:
    """Bytes as vLLM's own flags read them (``25g`` is 25 x 10^9, ``25G`` 25 x 2^30), or with a unit.

    Source: vLLM 0.33.0 ``vllm/engine/arg_utils.py``, ``human_readable_int``.
    """
    if text.strip().lower().endswith("b"):
        return parse_size(text, flag)
    try:
        return parse_tokens(text, flag)
    except InputError:
        raise InputError(
            f"{printable(text, 40)!r} is not a size", where=flag, hint="write it as 40GiB, 40GB or 42949672960"
        ) from None


def parse_text(text: str, flag: str) -> str:
    """A name, checked later by whoever knows the names."""
    if not text.strip():
        raise InputError("needs a value", where=flag, hint=f"{flag} NAME")
    return text.strip()


def parse_seconds(text: str, flag: str) -> float:
    """A time above zero: ``0.5``, ``0.5s``, ``30ms``.

    Raises:
        InputError: anything else.
    """
    return _amount(text, flag, {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}, "a time", "0.5, or 500ms")


def parse_per_second(text: str, flag: str) -> float:
    """A number a second, above zero: ``5``, ``5/s``, ``300/min``, ``1000/h``.

    Raises:
        InputError: anything else.
    """
    return _amount(text, flag, {"": 1.0, "/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}, "a rate", "5, or 300/min")


def parse_number(text: str, flag: str) -> float:
    """A number that is not below zero.

    Raises:
        InputError: anything else.
    """
    return 0.0 if text.strip() in ("0", "0.0") else _amount(text, flag, {"": 1.0}, "a number", "0.8")


def _amount(text: str, flag: str, units: dict[str, float], what: str, example: str) -> float:
    stripped = text.strip()
    digits = stripped.rstrip("/abcdefghijklmnopqrstuvwxyz")
    unit = units.get(stripped[len(digits) :])
    try:
        value = float(digits) * unit if unit is not None and "_" not in digits else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise InputError(f"{printable(text, 40)!r} is not {what} above 0", where=flag, hint=f"{flag} {example}")
    return value


def parse_texts(text: str, flag: str) -> tuple[str, ...]:
    """Names parted by commas, each once.

    Raises:
        InputError: one of them is empty.
    """
    return tuple(dict.fromkeys(parse_text(part, flag) for part in text.split(",")))


def parse_prices(text: str, flag: str) -> tuple[tuple[str | None, float], ...]:
    """``ID=USD`` an hour of one GPU, several parted by commas; a bare number is the price of the GPU that is named.

    Raises:
        InputError: anything else.
    """
    found = []
    for part in text.split(","):
        name, equals, usd = part.rpartition("=")
        if equals and not name.strip():
            raise InputError(f"{printable(part, 40)!r} names no GPU", where=flag, hint=f"{flag} h100-sxm=2.5")
        usd = usd.strip().removeprefix("$")
        found.append((name.strip() if equals else None, _amount(usd, flag, {"": 1.0}, "a price", "h100-sxm=2.5")))
    return tuple(found)


READERS = {
    "count": parse_count,
    "tokens": parse_tokens,
    "tokens_or_zero": parse_tokens_or_zero,
    "max_model_len": parse_max_model_len,
    "size": parse_size,
    "rate": parse_rate,
    "engine_bytes": parse_engine_bytes,
    "share": parse_share,
    "text": parse_text,
    "seconds": parse_seconds,
    "per_second": parse_per_second,
    "number": parse_number,
    "prices": parse_prices,
    "texts": parse_texts,
}
"""kind -> reader(text, flag)."""


def quoted(text: str) -> str:
    """`text` as one word of a shell; without ``shlex``, whose import every plan would pay for."""
    if text and all(c.isascii() and (c.isalnum() or c in "@%+=:,./_-") for c in text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"
