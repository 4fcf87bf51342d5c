"""Mooncake JSON lines, with the hash ids of prefix blocks.

Source: kvcache-ai/Mooncake, ``FAST25-release``: ``timestamp`` in milliseconds; ``hash_ids`` one for each block of
512 tokens, the last one of a partial block; equal ids are equal content with equal content before it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.simulate.trace import Builder, instant, length

if TYPE_CHECKING:
    from kvplan.simulate.trace import Trace
    from kvplan.simulate.traces import Reading
    from kvplan.simulate.traces.lines import Source

BLOCK_TOKENS = 512
_ROOT = -1
_FIRST = 1 << 62
"""Above all ids."""


def read(source: Source, reading: Reading) -> Trace:
    """The trace; ``hash_ids`` may be left out, then a prompt shares nothing."""
    made, size = Builder(strict=reading.strict, where=source.shown), reading.block_tokens
    hashed, names = False, _Names()
    for number, line in source.lines():
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise ValueError("is no JSON object")
            arrival = instant(data.get("timestamp"), "timestamp") / 1000
            prompt = length(data.get("input_length"), "input_length")
            output = length(data.get("output_length"), "output_length")
            ids = _ids(data.get("hash_ids"), prompt, size)
        except RecursionError:
            made.refuse(f"line {number}", "nests too deeply")
            continue
        except ValueError as error:
            why = "is not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            made.refuse(f"line {number}", why)
            continue
        hashed = hashed or bool(ids)
        lengths = [size] * (len(ids) - 1) + [prompt - (len(ids) - 1) * size] if ids else []
        made.add(arrival, prompt, output, names.chained(ids), lengths)
    found = made.build(source.path, "mooncake", block_tokens=size if hashed else None)
    if not names.apart:
        return found
    note = f"{len(names.apart):,} hash ids follow other ids than before: taken for other blocks"
    return replace(found, notes=(*found.notes, note))


class _Names:
    """Keys of blocks: an id is the key where it has one parent; behind a second one it is another block."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        """id -> key of the block before it, where it was met first."""
        self.apart: dict[tuple[int, int], int] = {}
        """(key of the block before it, id) -> key, of ids that have been met behind another one."""

    def chained(self, ids: list[int]) -> list[int]:
        """The keys of a prompt's blocks."""
        parent, keys = _ROOT, []
        for item in ids:
            if self.parents.setdefault(item, parent) != parent:
                item = self.apart.setdefault((parent, item), _FIRST + len(self.apart))
            keys.append(item)
            parent = item
        return keys


def _ids(found: Any, prompt: int, size: int) -> list[int]:
    if found is None or found == []:
        return []
    if not isinstance(found, list):
        raise ValueError("hash_ids is no list")
    if len(found) != -(-prompt // size):
        raise ValueError(f"{len(found)} hash_ids for {prompt:,} tokens in blocks of {size}")
    for item in found:
        if type(item) is not int or not 0 <= item < 1 << 62:
            raise ValueError(f"hash id {str(item)[:30]!r} is not a whole number")
    return found
