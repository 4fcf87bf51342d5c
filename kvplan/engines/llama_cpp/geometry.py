"""From settings to cells: slots, streams, context of a slot, micro-batch.

::

    n_ctx     = requested (or trained), rounded up to 256
    unified:     n_ctx_seq = n_ctx,                           one stream
    otherwise:   n_ctx_seq = n_ctx / slots, rounded up to 256; a stream per slot
    window:      cells = min(n_ctx_seq, window x (slots if unified, else 1) + ubatch), rounded up to 256

Source: libllama 0.5.0 ``src/llama-context.cpp`` (constructor of ``llama_context``) and
``src/llama-kv-cache-iswa.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import InputError, printable

if TYPE_CHECKING:
    from kvplan.engines.base import Settings

PAD = 256
"""Cells of a context are a multiple of this."""
MAX_SLOTS = 256
"""``LLAMA_MAX_SEQ``."""
BATCH, UBATCH = 2048, 512
"""Defaults of -b and -ub."""


def pad(cells: int) -> int:
    """`cells` rounded up to a multiple of `PAD`."""
    return -(-cells // PAD) * PAD


class Geometry(NamedTuple):
    """The shape that all caches of a context share."""

    slots: int
    """Sequences at once (``n_seq_max``)."""
    unified: bool
    n_ctx_seq: int
    """Tokens that one slot's sequence may reach."""
    batch: int
    ubatch: int
    swa_full: bool
    flash: bool
    n_rs_seq: int
    """Rollback snapshots of the recurrent state, where the architecture keeps any."""
    outputs: int
    """Tokens of a micro-batch whose logits may be asked for."""

    @property
    def streams(self) -> int:
        """Separate copies of the cells: one, or one per slot."""
        return 1 if self.unified else self.slots

    @property
    def n_ctx(self) -> int:
        """Cells of all slots together, as the engine prints it."""
        return self.n_ctx_seq * self.streams

    def cells(self, window: int | None) -> int:
        """Cells of one stream of a layer."""
        if window is None or self.swa_full:
            return self.n_ctx_seq
        return pad(min(self.n_ctx_seq, window * (self.slots if self.unified else 1) + self.ubatch))


def geometry(settings: Settings, *, tokens: int | None = None) -> Geometry:
    """The shape that `settings` give.

    Args:
        tokens: the shape of a context with one slot of so many tokens instead.
    """
    extra = settings.extra
    slots = extra["slots"] if tokens is None else 1
    n_ctx_seq = pad(max(1, settings.max_model_len if tokens is None else tokens))
    unified = bool(extra["unified"])
    total = n_ctx_seq * (1 if unified else slots)
    batch = min(total, int(extra["batch_size"]))
    ubatch = min(batch, int(extra["ubatch_size"]))
    outputs = min(ubatch, int(extra["n_outputs_max"]) or batch)
    flash, swa_full = flash_mode(extra["flash_attn"]) != "off", bool(extra["swa_full"])
    return Geometry(slots, unified, n_ctx_seq, batch, ubatch, swa_full, flash, int(extra["n_rs_seq"]), outputs)


def slot_tokens(n_ctx: int, slots: int, unified: bool) -> int:
    """``n_ctx_seq``: the context of one slot, out of a total of `n_ctx`."""
    total = pad(n_ctx)
    return total if unified else pad(total // slots)


def flash_mode(value: Any) -> str:
    """``on``, ``off`` or ``auto``, from what -fa takes (or a truth value).

    Raises:
        InputError: anything else.
    """
    text = str(value).strip().lower()
    for mode, words in (
        ("on", ("on", "true", "1", "enabled", "yes")),
        ("off", ("off", "false", "0", "disabled", "no")),
        ("auto", ("auto", "-1")),
    ):
        if text in words:
            return mode
    raise InputError(
        f"{printable(str(value), 40)!r} is not on, off or auto",
        where="--flash-attn",
        hint="type -fa on, -fa off or -fa auto",
    )


def whole(value: Any, flag: str, *, least: int = 1, most: int = 1 << 31) -> int:
    """A whole number that an engine setting takes, given as a number or as text.

    Raises:
        InputError: anything else, or out of range; names the flag.
    """
    text = str(value).strip()
    if isinstance(value, bool) or not text.removeprefix("-").isdigit() or not text.isascii() or len(text) > 12:
        raise InputError(
            f"{printable(text, 40)!r} is not a whole number", where=flag, hint=f"{flag} {max(least, 1)}, for example"
        )
    number = int(text)
    if not least <= number <= most:
        raise InputError(f"{number:,} is out of range", where=flag, hint=f"from {least:,} to {most:,}")
    return number


def slots_of(value: Any, flag: str = "--parallel") -> int | None:
    """Slots that -np asks for; None: automatic (-1, or not given).

    Raises:
        InputError: zero, or more than the engine takes.
    """
    if value is None or str(value).strip() in ("-1", "auto"):
        return None
    return whole(value, flag, most=MAX_SLOTS)
