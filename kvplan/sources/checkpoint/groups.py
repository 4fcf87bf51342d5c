"""Tensors that differ in nothing but their layer, counted together: a large mixture of experts has a hundred thousand.

A header as the format's own library writes it, without a blank and with its data in the order of its entries, is cut
into entries and places at once, and what an entry says is looked at once for all layers. Whatever is not exactly so
goes through `kvplan.sources.checkpoint.safetensors`, which also says what is wrong.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from itertools import accumulate

from kvplan.sources.checkpoint.safetensors import (
    Columns,
    Source,
    header_bytes,
    once,
    read_columns,
    stored_bytes,
)

Group = tuple[bytes, bytes, bytes, bytes, bytes]
"""What stands before a name's layer, what stands for the layer, what stands after it, dtype and shape."""

_START = re.compile(rb'\{(?:"__metadata__": ?(\{[^{}\\]{0,65536}+\}), ?)?(?=")')
_EXPERT = re.compile(rb"\.experts\.[0-9]{1,6}\.")
_LAYERS = re.compile(rb"\.layers\.([0-9]{1,6})\.")
_ENTRY = re.compile(rb'([^"\x00-\x1f]*+)":\{"dtype":"(\w{1,20})","shape":\[((?:\d{1,19}(?:,\d{1,19}){0,31})?)\]')
_CHUNK = 1 << 20
_CUT, _PLACE = b']},"', b',"data_offsets":['


def read_groups(source: Source, where: str, layers: int) -> Counter[Group]:
    """The tensors of a file, in groups.

    Args:
        where: the file, for error messages.
        layers: of the model; later ones are counted together, apart from these.

    Raises:
        SpecError: as `header_bytes` and `read_columns`.
    """
    data, room = header_bytes(source, where)
    found = _usual(data, room, layers)
    return _grouped(read_columns(data, room, where), layers) if found is None else found


def _grouped(found: Columns, layers: int) -> Counter[Group]:
    names, dtypes, shapes = found
    alike = _alike(b'"'.join(names), layers).split(b'"') if names else []
    groups: Counter[Group] = Counter()
    for (name, dtype, shape), times in Counter(zip(alike, dtypes, shapes, strict=True)).items():
        groups[*_cut(name), dtype, shape] += times
    return groups


def _alike(names: bytes, layers: int) -> bytes:
    """Names (or entries that begin with them) with one number for every layer of the model, another for later ones."""
    numbers: dict[bytes, bytes] = {}

    def number(match: re.Match[bytes]) -> bytes:
        found = match.group(1)
        if found not in numbers:
            numbers[found] = b".layers.%d." % (layers if int(found) >= layers else 0)
        return numbers[found]

    return _LAYERS.sub(number, names)


def _cut(name: bytes) -> tuple[bytes, bytes, bytes]:
    """What stands before the layer of a name that `_alike` made, what stands for the layer, and what stands after."""
    found = _LAYERS.search(name)
    return (name[: found.start()], found.group(), name[found.end() :]) if found else (name, b"", b"")


@lru_cache(maxsize=16384)
def _said(entry: bytes) -> tuple[Group, int] | None:
    """(group, bytes) of an entry that `_alike` made; None: it is none."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        return None
    name, dtype, shape = match.groups()
    size = stored_bytes(dtype, shape)
    return None if size < 0 else ((*_cut(name), dtype, shape), size)


def _usual(data: bytes, room: int, layers: int) -> Counter[Group] | None:
    """The groups of a header as the library writes it; None: it is another, or something is wrong with it.

    It is cut into pieces of about a megabyte, which bounds what is held besides the header itself.
    """
    spaced = b'": ' in data[:4096]  # as Python's own writer lays it out
    start = _START.match(data)
    body = data.rstrip(b" ")
    if b"\\" in data or start is None or not body.endswith(b"]}}"):
        return None
    try:
        if start.group(1) is not None:
            json.loads(start.group(1), object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    between = b']}, "' if spaced else b']},"'
    seen: set[int] | None = set() if len(body) > _CHUNK else None
    names: dict[bytes, bytes] = {}
    groups: Counter[Group] = Counter()
    at, held, count = start.end(), 0, 0
    while at < len(body):
        cut = body.find(between, at + _CHUNK)
        piece = body[at : cut + 2 if cut >= 0 else len(body) - 1]
        piece = piece.replace(b'": ', b'":').replace(b", ", b",") if spaced else piece
        found = _piece(piece, layers, seen, names, held)
        if found is None:
            return None
        part, held = found
        groups.update(part)
        count += part.total()
        at = cut + len(between) - 1 if cut >= 0 else len(body)
    return groups if held == room and (seen is None or len(seen) == count) else None


def _piece(
    piece: bytes, layers: int, seen: set[int] | None, names: dict[bytes, bytes], begin: int
) -> tuple[Counter[Group], int] | None:
    """(the groups of some entries, where their data end); None: not as usual.

    Args:
        seen: hashes of the entries so far, to which those of the piece are added; None: there is one piece.
        names: names so far, with one number for every expert, and the one entry of each.
        begin: where the data of the first entry should begin.
    """
    if not piece.endswith(b"]}"):
        return None
    piece = piece[1:-2].replace(_PLACE, _CUT)
    parts = piece.split(_CUT)
    if len(parts) % 2:
        return None
    alike, places = parts[0::2], parts[1::2]
    if len(set(alike)) != len(alike):
        return None
    if seen is not None:
        seen.update(map(hash, alike))
    if len(between := _EXPERT.split(piece)) > 1:
        alike = b".experts.0.".join(between).split(_CUT)[0::2]
    counts = Counter(alike)
    if any(names.setdefault(entry[: entry.find(b'"')], entry) != entry for entry in counts):
        return None
    kinds = _alike(_CUT.join(counts), layers).split(_CUT)
    said = {entry: found for entry, kind in zip(counts, kinds, strict=True) if (found := _said(kind)) is not None}
    if len(said) != len(counts):
        return None
    sizes = {entry: size for entry, (_, size) in said.items()}
    end = _end(places, list(map(sizes.__getitem__, alike)), begin)
    if end is None:
        return None
    groups: Counter[Group] = Counter()
    for entry, (group, _) in said.items():
        groups[group] += counts[entry]
    return groups, end


def _end(places: list[bytes], told: list[int], begin: int) -> int | None:
    """Where the last place ends, if each begins where the one before it ends and is as large as told."""
    text = b",".join(places)
    if text.translate(None, b"0123456789") != b"," * (2 * len(places) - 1):
        return None
    try:
        numbers = json.loads(b"[%b]" % text)
    except ValueError:  # a number is missing, begins with a zero, or has thousands of digits
        return None
    bounds = list(accumulate(told, initial=begin))
    return bounds[-1] if numbers[0::2] == bounds[:-1] and numbers[1::2] == bounds[1:] else None
