"""Tensors that differ in nothing but their layer, counted together: a large mixture of experts has a hundred thousand.

A header as the format's own library writes it, without a blank and with its data in the order of its entries, is cut
into entries and places at once, and what an entry says is looked at once for all layers. Whatever is not exactly so
goes through `kvplan.sources.checkpoint.safetensors`, which also says what is wrong.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from operator import sub

from kvplan.sources.checkpoint.safetensors import (
    MAX_TENSORS,
    Columns,
    Source,
    header_bytes,
    once,
    read_columns,
    stored_bytes,
)

Group = tuple[bytes, bytes, bytes, bytes, bytes]
"""What stands before a name's layer, what stands for the layer, what stands after it, dtype and shape."""

_START = re.compile(rb'\{(?:"__metadata__":(\{[^{}\\]{0,65536}+\}),)?(?=")')
_EXPERT = re.compile(rb"\.experts\.[0-9]{1,6}\.")
_ENTRY = re.compile(rb'([^"\x00-\x1f]*+)":\{"dtype":"(\w{1,20})","shape":\[((?:\d{1,19}(?:,\d{1,19}){0,31})?)\]')
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
    groups: Counter[Group] = Counter()
    for (name, dtype, shape), times in Counter(zip(*found, strict=True)).items():
        groups[*_cut(name, layers), dtype, shape] += times
    return groups


def _cut(name: bytes, layers: int) -> tuple[bytes, bytes, bytes]:
    """What stands before the layer of a name, what stands for the layer, and what stands after it."""
    before, inside, rest = name.partition(b".layers.")
    number, dot, rest = rest.partition(b".")
    if not (inside and dot and number.isdigit() and len(number) <= 6):
        return name, b"", b""
    return before, b".layers.%d." % (layers if int(number) >= layers else 0), rest


def _usual(data: bytes, room: int, layers: int) -> Counter[Group] | None:
    """The groups of a header as the library writes it; None: it is another, or something is wrong with it."""
    start = _START.match(data)
    if start is None or b"\\" in data:
        return None
    body = data[start.end() + 1 :].rstrip(b" ").replace(_PLACE, _CUT)
    parts = body.split(_CUT)
    if len(parts) % 2 or len(parts) > 2 * MAX_TENSORS or not parts[-1].endswith(b"]}}"):
        return None
    parts[-1] = parts[-1][:-3]
    entries = parts[0::2]
    if len(set(entries)) != len(entries):
        return None
    alike = _EXPERT.sub(b".experts.0.", body).split(_CUT)[0::2]
    counts = Counter(alike)
    read = {entry: _ENTRY.fullmatch(entry) for entry in counts}
    said = {entry: match.groups() for entry, match in read.items() if match is not None}
    if len(said) != len(counts) or len({name for name, _, _ in said.values()}) != len(said):
        return None
    sizes = {entry: stored_bytes(dtype, shape) for entry, (_, dtype, shape) in said.items()}
    if not _tiles(parts[1::2], list(map(sizes.__getitem__, alike)), room):
        return None
    try:
        if start.group(1) is not None:
            json.loads(start.group(1), object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    groups: Counter[Group] = Counter()
    for entry, (name, dtype, shape) in said.items():
        groups[*_cut(name, layers), dtype, shape] += counts[entry]
    return groups


def _tiles(places: list[bytes], told: list[int], room: int) -> bool:
    """Whether every place begins where the one before it ends, is as large as told, and the last ends the file."""
    text = b",".join(places)
    if text.translate(None, b"0123456789") != b"," * (2 * len(places) - 1):
        return False
    numbers = text.split(b",")
    begins, ends = numbers[0::2], numbers[1::2]
    if begins[1:] != ends[:-1] or begins[0] != b"0" or not all(ends) or max(map(len, ends)) > 19:
        return False
    stops = list(map(int, ends))
    return stops[-1] == room and told == list(map(sub, stops, [0, *stops[:-1]]))
