"""Plain YAML data into specs: the short way, for files that shipped and were checked before.

What people write goes through the strict reader, which knows lines and near misses. Here a wrong
key or size is still an error that names its place, at no cost to a plan that is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kvplan.cache import kind_class
from kvplan.errors import SpecError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.kind import LayerPart
    from kvplan.spec.model import Block, ModelSpec

T = TypeVar("T")
P = TypeVar("P", bound="LayerPart")

MAX_LAYERS = 10_000
MAX_NESTING = 8


def expand_layers(entries: Any, blocks: Collection[str], *, where: str = "layers") -> tuple[str, ...]:
    """The block name of every layer, in order.

    Args:
        entries: a list of block names and of ``{repeat: N, of: [...]}``, which nest.
        blocks: the names that may stand there.
        where: the key in front of error messages.

    Raises:
        SpecError: another shape, an unknown block, ``repeat`` below 1, an empty list, nesting deeper
            than `MAX_NESTING`, or more than `MAX_LAYERS` layers.
    """
    return tuple(_expand(entries, blocks, where, 0))


def _expand(entries: Any, blocks: Collection[str], where: str, depth: int) -> list[str]:
    if depth > MAX_NESTING:
        raise SpecError(f"patterns nest deeper than {MAX_NESTING}", where=where[:80], hint="write the pattern flatter")
    if not isinstance(entries, list | tuple) or not entries:
        raise SpecError("should be a list with at least one entry", where=where)
    found: list[str] = []
    for position, entry in enumerate(entries):
        here = f"{where}[{position}]"
        if isinstance(entry, str):
            if entry not in blocks:
                known = ", ".join(blocks) or "none"
                raise SpecError(f"no block is called {printable(entry, 60)!r}", where=here, hint=f"blocks: {known}")
            found.append(entry)
        elif isinstance(entry, dict) and entry.keys() == {"repeat", "of"}:
            times = entry["repeat"]
            if isinstance(times, bool) or not isinstance(times, int) or times < 1:
                raise SpecError(
                    f"repeat should be a whole number from 1, not {printable(repr(times), 40)}", where=f"{here}.repeat"
                )
            pattern = _expand(entry["of"], blocks, f"{here}.of", depth + 1)
            if len(pattern) * times > MAX_LAYERS:
                raise SpecError(f"more than {MAX_LAYERS:,} layers", where=here, hint="check repeat")
            found += pattern * times
        else:
            raise SpecError(
                f"should be a block name or a repetition, not {printable(repr(entry), 60)}",
                where=here,
                hint="write a repetition as {repeat: 5, of: [local, global]}",
            )
        if len(found) > MAX_LAYERS:
            raise SpecError(f"more than {MAX_LAYERS:,} layers", where=where, hint="check repeat")
    return found


def model_from_plain(data: Any, *, where: str = "model") -> ModelSpec:
    """The model that a YAML mapping describes; `where` (a file name) leads every error.

    Raises:
        SpecError: another schema, an unknown key or kind, a size that the kind refuses.
    """
    from kvplan.spec.model import SCHEMA, Checkpoint, ExtraTensor, ModelSpec, Tower

    fields = _fields(data, SCHEMA, where)
    blocks = fields.get("blocks")
    if not isinstance(blocks, dict) or not blocks:
        raise SpecError("blocks should map names to layers", where=where)
    fields["blocks"] = {name: _block(value, f"{where}: blocks.{name}") for name, value in blocks.items()}
    fields["layers"] = expand_layers(fields.get("layers"), blocks, where=f"{where}: layers")
    if fields.get("draft_layers"):
        fields["draft_layers"] = expand_layers(fields["draft_layers"], blocks, where=f"{where}: draft_layers")
    for key in ("tensors", "draft_tensors"):
        if key in fields:
            fields[key] = _tuple_of(ExtraTensor, fields[key], f"{where}: {key}")
    if "towers" in fields:
        fields["towers"] = _tuple_of(Tower, fields["towers"], f"{where}: towers")
    if fields.get("checkpoint") is not None:
        fields["checkpoint"] = _made(Checkpoint, fields["checkpoint"], f"{where}: checkpoint")
    return _made(ModelSpec, fields, where)


def _block(data: Any, where: str) -> Block:
    from kvplan.spec.ffn import FFNS
    from kvplan.spec.model import Block, ExtraTensor

    fields = _mapping(data, where)
    if "mixers" in fields:
        fields["mixers"] = tuple(_part(m, kind_class, f"{where}.mixers[{i}]") for i, m in enumerate(fields["mixers"]))
    if "ffns" in fields:
        fields["ffns"] = tuple(_part(f, FFNS.__getitem__, f"{where}.ffns[{i}]") for i, f in enumerate(fields["ffns"]))
    if "tensors" in fields:
        fields["tensors"] = _tuple_of(ExtraTensor, fields["tensors"], f"{where}.tensors")
    return _made(Block, fields, where)


def _part(data: Any, find: Callable[[Any], type[P]], where: str) -> P:
    """A mixer or an FFN: the class that its ``kind`` names, with the other keys as fields."""
    fields = _mapping(data, where)
    try:
        cls = find(fields.get("kind"))
    except (KeyError, ValueError, TypeError):
        raise SpecError(f"unknown kind {printable(repr(fields.get('kind')), 60)}", where=where) from None
    return _made(cls, fields, where)


def gpu_from_plain(data: Any, *, where: str = "gpu") -> GpuSpec:
    """The accelerator that a YAML mapping describes.

    Raises:
        SpecError: another schema, an unknown key, sizes that are not above zero.
    """
    from kvplan.spec.gpu import SCHEMA, GpuSpec, Price

    fields = _fields(data, SCHEMA, where)
    if fields.get("price") is not None:
        fields["price"] = _made(Price, fields["price"], f"{where}: price")
    return _made(GpuSpec, fields, where)


def _fields(data: Any, schema: str, where: str) -> dict[str, Any]:
    fields = _mapping(data, where)
    found = fields.pop("schema", None)
    if found != schema:
        raise SpecError(f"schema is {printable(repr(found), 60)}, not {schema!r}", where=where)
    return fields


def _mapping(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise SpecError(f"should be a mapping, not {printable(repr(data), 60)}", where=where)
    return dict(data)


def _tuple_of(cls: type[T], items: Any, where: str) -> tuple[T, ...]:
    if not isinstance(items, list | tuple):
        raise SpecError("should be a list", where=where)
    return tuple(_made(cls, item, f"{where}[{i}]") for i, item in enumerate(items))


def _made(cls: type[T], data: Any, where: str) -> T:
    """`cls` with the mapping as fields, lists as tuples."""
    fields = _mapping(data, where)
    for key, value in fields.items():
        if isinstance(value, list):
            fields[key] = tuple(value)
    try:
        return cls(**fields)
    except (TypeError, ValueError) as error:
        text = str(error).replace(f"{cls.__name__}.__init__() ", "").replace("keyword argument", "key")
        raise SpecError(printable(text), where=where) from None
