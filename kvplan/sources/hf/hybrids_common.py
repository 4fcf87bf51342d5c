"""What the readers of hybrid models share: layer lists in their dialects, and the stack they build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.errors import printable
from kvplan.sources.hf.attention import hidden_size
from kvplan.sources.hf.keys import Config, Layers
from kvplan.spec.kind import CacheKind, LayerPart
from kvplan.spec.model import Block, ExtraTensor

FULL, LINEAR = "full", "linear"
MAX_LAYERS, MAX_DRAFTS = 10_000, 64


class Stack:
    """The layers of one model as they are read; layers that are alike become one block."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.order: list[str] = []

    def name(self, base: str, block: Block) -> str:
        """The name of `block`: `base`, or `base_2` and so on where that name means another block."""
        name, number = base, 1
        while name in self.blocks and self.blocks[name] != block:
            number += 1
            name = f"{base}_{number}"
        self.blocks[name] = block
        return name

    def add(self, base: str, block: Block) -> None:
        """Append a layer."""
        self.order.append(self.name(base, block))

    def layers(self, **fields: Any) -> Layers:
        """What was read, with further fields of `Layers`."""
        return Layers(blocks=self.blocks, layers=tuple(self.order), **fields)


def layer_count(cfg: Config) -> int:
    """Layers of the model.

    Raises:
        SpecError: none are given, or more than any model has.
    """
    count = cfg.need_int("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
    if count > MAX_LAYERS:
        raise cfg.error(f"{count} layers are more than any model has", hint=f"at most {MAX_LAYERS} are read")
    return count


def draft_count(cfg: Config) -> int:
    """Layers of the multi-token-prediction module; 0: there is none, or the file does not name it."""
    count = cfg.maybe_int("num_nextn_predict_layers", "mtp_num_hidden_layers") or 0
    if not 0 <= count <= MAX_DRAFTS:
        raise cfg.error(f"{count} multi-token-prediction layers: at most {MAX_DRAFTS} are read")
    return count


def optional(cfg: Config, default: int, *keys: str) -> int:
    """A whole number above zero, or `default` where none of `keys` is set."""
    return default if cfg.get(*keys) is None else cfg.need_int(*keys)


def plain_block(mixer: CacheKind, ffns: tuple[LayerPart, ...] = (), tensors: tuple[ExtraTensor, ...] = ()) -> Block:
    """One mixer and its FFN, a norm before each."""
    return Block(mixers=(mixer,), ffns=ffns, norms=1 + len(ffns), tensors=tensors)


def suffix(ffns: tuple[LayerPart, ...]) -> str:
    """``_moe`` or ``_dense``: how a block's FFN shows in its name."""
    return "".join(f"_{getattr(ffn, 'kind', 'ffn')}" for ffn in ffns)


def layer_kinds(cfg: Config, count: int | None, codes: Mapping[Any, str], *keys: str) -> list[str] | None:
    """A list of layer kinds, one entry a layer, in kvplan's words; None where no key is set.

    Args:
        count: layers the model says it has; None: the list itself says.
        codes: what each entry may be, and what it means.

    Raises:
        SpecError: a list of another length, or an entry that `codes` does not have.
    """
    found = cfg.maybe_list(*keys, length=count)
    if found is None:
        return None
    name = next(k for k in keys if k in cfg)
    if not found:
        raise cfg.error(f"{name} is empty")
    return [_kind(cfg, codes, name, entry) for entry in found]


def _kind(cfg: Config, codes: Mapping[Any, str], key: str, entry: Any) -> str:
    known = isinstance(entry, str | int) and not isinstance(entry, bool) and entry in codes
    if not known:
        raise cfg.error(
            f"{key} names a layer kind {printable(repr(entry), 60)} that kvplan does not know",
            hint=f"known there: {', '.join(str(c) for c in codes)}",
        )
    return codes[entry]


def numbered(cfg: Config, key: str, count: int, first: int) -> set[int] | None:
    """Layers named by number, as a set of indices from 0; None where the key is not set.

    Args:
        first: the number of the first layer in this dialect (0 or 1).

    Raises:
        SpecError: a number outside the model, or one that stands twice.
    """
    values = cfg.maybe_list(key)
    if values is None:
        return None
    found: set[int] = set()
    for value in values:
        index = cfg.as_int(value, key) - first
        if not 0 <= index < count:
            raise cfg.error(f"{key} names layer {value}; the layers run from {first} to {count - 1 + first}")
        if index in found:
            raise cfg.error(f"{key} names layer {value} twice")
        found.add(index)
    return found


def two_kinds(cfg: Config, count: int, first: int, full_key: str, linear_key: str) -> list[str] | None:
    """Layer kinds from two lists of layer numbers that together name every layer once.

    One list alone is enough: the other kind has the rest.
    """
    full, linear = numbered(cfg, full_key, count, first), numbered(cfg, linear_key, count, first)
    if full is None and linear is None:
        return None
    every = set(range(count))
    full = every - (linear or set()) if full is None else full
    linear = every - full if linear is None else linear
    if full & linear:
        raise cfg.error(f"layer {min(full & linear) + first} is in both {full_key} and {linear_key}")
    if full | linear != every:
        raise cfg.error(f"layer {min(every - full - linear) + first} is neither in {full_key} nor in {linear_key}")
    return [FULL if i in full else LINEAR for i in range(count)]


def agree(cfg: Config, *lists: tuple[str, list[str] | None]) -> list[str] | None:
    """The kinds that every given list states; None where none is given.

    Raises:
        SpecError: two lists disagree on a layer.
    """
    given = [(name, kinds) for name, kinds in lists if kinds is not None]
    if not given:
        return None
    name, kinds = given[0]
    for other_name, other in given[1:]:
        if len(other) != len(kinds):
            raise cfg.error(f"{name} has {len(kinds)} layers and {other_name} {len(other)}")
        for layer, (a, b) in enumerate(zip(kinds, other, strict=True)):
            if a != b:
                raise cfg.error(f"layer {layer} (from 0) is {a} by {name} and {b} by {other_name}")
    return kinds


def need_kinds(cfg: Config, kinds: list[str] | None, *keys: str) -> list[str]:
    """`kinds`, or an error that names the keys which would have said them."""
    if kinds is None:
        raise cfg.error(f"no {' or '.join(keys)}: which layers have attention is not said")
    return kinds


def refuse_unread(cfg: Config, name: str) -> None:
    """Refuse a nested object that holds keys nobody read.

    Raises:
        SpecError: there is one; it could change what a layer caches.
    """
    left = cfg.unread()
    if left:
        raise cfg.error(
            f"{name} has a key {printable(left[0])!r} that kvplan does not know",
            hint="remove it if it has no effect on the cache, or write a model spec",
        )


def mamba_heads(cfg: Config, inner: int, heads_key: str, dim_key: str) -> dict[str, int]:
    """``heads`` and ``head_dim`` of a Mamba-2 layer of width `inner`; a head size of ``auto`` follows.

    Raises:
        SpecError: the two do not multiply to `inner`.
    """
    heads = cfg.need_int(heads_key)
    dim = None if cfg.get(dim_key) == "auto" else cfg.maybe_int(dim_key)
    if dim is None and inner % heads == 0:
        dim = inner // heads
    if dim is None or heads * dim != inner:
        said = "" if dim is None else f" of {dim}"
        raise cfg.error(
            f"{heads} Mamba heads{said} do not make up the inner size {inner}", hint=f"check {heads_key} and {dim_key}"
        )
    return {"heads": heads, "head_dim": dim}


def factor_of(cfg: Config, default: float, *keys: str) -> float:
    """What a width is multiplied with, or `default` where none of `keys` is set.

    Raises:
        SpecError: something else stands there, or nothing that a width is multiplied with.
    """
    factor = cfg.get(*keys)
    if factor is None:
        return default
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1024:
        raise cfg.error(f"{keys[0]} should be a number above 0, not {printable(repr(factor), 60)}")
    return factor


def inner_size(cfg: Config, *keys: str) -> int:
    """Width of a Mamba layer: ``expand x hidden_size``; an absent factor is 2.

    Raises:
        SpecError: the factor is no number, or the product no whole one.
    """
    factor = factor_of(cfg, 2, *keys)
    product = factor * hidden_size(cfg)
    if int(product) != product:
        raise cfg.error(f"{keys[0]} ({factor}) times the hidden size is no whole number")
    return int(product)


def mtp_tensors(width: int, norms: int, count: int = 1) -> tuple[ExtraTensor, ...]:
    """What joins a multi-token-prediction module to its model: a ``2 x hidden`` projection and norms."""
    return (
        ExtraTensor(name="nextn_eh_proj", shape=(width, 2 * width), count=count, role="draft"),
        ExtraTensor(name="nextn_norms", shape=(norms, width), count=count, role="draft"),
    )
