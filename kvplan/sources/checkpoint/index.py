"""The index of a checkpoint in several files: which files it has. Its tensors come from their headers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from kvplan.errors import SpecError, printable
from kvplan.sources.strict_json import decode, parse

INDEX_NAME = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20
MAX_SHARDS = 4096
_MAP = re.compile(rb'"weight_map"\s*+:\s*+\{')
_END = re.compile(rb'"\s*+,(?=\s*+")')
_CHUNK = 1 << 20
_SHARD = re.compile(r"[^/\\:\x00-\x1f]+\.safetensors\Z")
_DOWNLOAD = "download it again"


class Index(NamedTuple):
    """What an index says."""

    shards: dict[str, int]
    """File name -> tensors that it should hold, in order of name."""
    total_bytes: int | None
    """``metadata.total_size``: bytes of all tensors."""


def read_index(data: bytes, where: str) -> Index:
    """The files of a checkpoint.

    The map from tensors to files is counted and not kept; one that is laid out as usual is cut at its quotes.

    Args:
        where: the file, for error messages.

    Raises:
        SpecError: no index, a tensor that stands twice, or a file name that leads out of the folder.
    """
    found = _MAP.search(data)
    start = found.end() if found else 0
    end = data.find(b"}", start)
    if found is None or end < 0 or data.find(b"{", start, end) >= 0:
        parse(decode(data, where), where)  # says what is wrong with the JSON, if anything is
        raise SpecError("has no weight_map", where=where, hint=_DOWNLOAD)
    total = _total(data[:start] + data[end:], where)
    text = data[start:end]
    counts = _usual_counts(text) or _counts(text, where)
    if len(counts) > MAX_SHARDS:
        raise SpecError(f"names more than {MAX_SHARDS:,} files", where=where, hint="is it the right file?")
    return Index({_plain_name(shard, where): count for shard, count in sorted(counts.items())}, total)


def _usual_counts(text: bytes) -> Counter[str] | None:
    """Tensors of each file, from a map as every writer lays it out; None: it is another, or names a tensor twice."""
    if b"\\" in text:
        return None
    parts = text.split(b'"')
    names, between, shards, after = parts[1::4], parts[2::4], parts[3::4], parts[4:-1:4]
    if len(parts) % 4 != 1 or len(parts) == 1 or parts[0].strip() or parts[-1].strip():
        return None
    if not _all_alike(between, b":") or (after and not _all_alike(after, b",")) or len(set(names)) != len(names):
        return None
    try:
        if not text.isascii():
            text.decode()
        found = {shard.decode(): count for shard, count in Counter(shards).items()}
    except UnicodeDecodeError:
        return None
    return Counter(found)


def _all_alike(words: list[bytes], core: bytes) -> bool:
    return words[0].strip() == core and words.count(words[0]) == len(words)


def _counts(text: bytes, where: str) -> Counter[str]:
    """The same for any map.

    Raises:
        SpecError: it is none, or names a tensor twice.
    """
    counts: Counter[str] = Counter()
    names: set[int] = set()
    for pairs in _chunks(text, where):
        counts.update(map(itemgetter(1), pairs))
        names.update(map(hash, map(itemgetter(0), pairs)))
    if not counts:
        raise SpecError("weight_map is empty", where=where, hint=_DOWNLOAD)
    if len(names) != counts.total():
        raise SpecError("weight_map names a tensor twice", where=where, hint=_DOWNLOAD)
    return counts


def _chunks(text: bytes, where: str) -> Iterator[list[tuple[str, str]]]:
    """The pairs of the map, about a megabyte at a time: a quote and a comma can only end a pair."""
    at = 0
    while at < len(text):
        cut = _END.search(text, at + _CHUNK)
        end = cut.start() + 1 if cut else len(text)
        try:
            pairs = json.loads(b"{%b}" % text[at:end], object_pairs_hook=list)
        except (ValueError, RecursionError):
            pairs = [("", None)]
        if set(map(type, map(itemgetter(1), pairs))) - {str}:
            raise SpecError("weight_map cannot be read", where=where, hint=_DOWNLOAD)
        yield pairs
        at = cut.end() if cut else len(text)


def _plain_name(name: str, where: str) -> str:
    """The name of a file in this folder.

    Raises:
        SpecError: it is anything else.
    """
    if not _SHARD.match(name) or not name.isprintable():
        raise SpecError(
            f"names the file {printable(name, 80)!r}, which is not a .safetensors file of the same folder",
            where=where, hint="do not trust this checkpoint",
        )  # fmt: skip
    return name


def _total(rest: bytes, where: str) -> int | None:
    """``metadata.total_size`` from the index without its map."""
    found = parse(decode(rest, where), where)
    if not isinstance(found, dict) or "weight_map" not in found:
        raise SpecError("has no weight_map", where=where, hint=_DOWNLOAD)
    metadata = found.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    return total if isinstance(total, int) and not isinstance(total, bool) and total > 0 else None
