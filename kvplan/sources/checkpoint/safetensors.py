"""The header of a safetensors file: 8 bytes of length, then JSON; the data behind it is never read.

::

    u64, little endian                 length of the JSON
    {"name": {"dtype": .., "shape": [..], "data_offsets": [begin, end]}, .., "__metadata__": {..}}
    (spaces), data                     offsets count from here; they tile it without a hole

Entries are taken one at a time and not kept, so that memory stays near the size of the header. Source:
the format's description and the checks of its library, safetensors 0.8.0 ``safetensors/src/tensor.rs``.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from kvplan.errors import SpecError, printable

MAX_HEADER_BYTES = 64 << 20
"""A checkpoint of 91,000 tensors (DeepSeek-V3) has 14 MiB of headers in 163 files."""
MAX_TENSORS = 1_000_000
MAX_RANK = 32
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""dtype -> bits of an element."""

_ENTRY = re.compile(
    rb'\s*+"([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)"\s*+:\s*+(?:'
    rb'\{\s*+"dtype"\s*+:\s*+"(\w{1,20})"\s*+,\s*+"shape"\s*+:\s*+\[([\s\d,]*+)\]\s*+,'
    rb'\s*+"data_offsets"\s*+:\s*+\[\s*+(\d{1,19})\s*+,\s*+(\d{1,19})\s*+\]\s*+\}'
    rb"|(?=\{))"
)
"""A name and, in the order in which every writer puts them, what stands behind it."""
_OBJECT = re.compile(rb'\{[^{}"]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^{}"]*+)*+\}', re.DOTALL)
_NEXT = re.compile(rb"\s*+([,}])")


class Source(Protocol):
    """A file of which parts can be read."""

    @property
    def size(self) -> int:
        """Bytes of the whole file."""

    def read(self, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start` (fewer where the file ends)."""


class TensorEntry(NamedTuple):
    """One tensor as the header has it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def read_header(source: Source, where: str) -> Iterator[TensorEntry]:
    """Every tensor of a file, in the order of its header.

    Args:
        where: the file, for error messages.

    Raises:
        SpecError: a header that is cut short or longer than the file, is no JSON of this form, names a tensor
            twice, or describes data that the file does not have.
    """
    data, room = _json_bytes(source, where)
    begins, ends, names = array("Q"), array("Q"), set[int]()
    at, more = _open(data, where)
    while more:
        match = _ENTRY.match(data, at)
        if match is None:
            raise _wrong("is no safetensors header: an entry cannot be read", where)
        name, at = _text(match.group(1), where), match.end()
        if match.group(2) is not None:
            entry, begin, end = _entry(name, *match.groups()[1:], where=where)
        else:
            odd, at = _object(data, at, name, where)
            entry, begin, end = (None, 0, 0) if name == "__metadata__" else _checked(name, odd, where)
        key = hash(name)
        if key in names:
            raise _wrong(f"names tensor {printable(name, 80)!r} twice", where)
        names.add(key)
        if len(names) > MAX_TENSORS:
            raise _wrong(f"names more than {MAX_TENSORS:,} tensors", where)
        if entry is not None:
            begins.append(begin)
            ends.append(end)
            yield entry
        following = _NEXT.match(data, at)
        if following is None:
            raise _wrong("is no safetensors header: it is not JSON", where)
        at, more = following.end(), following.group(1) == b","
    if data[at:].strip(b" \n\r\t\0"):
        raise _wrong("is no safetensors header: more follows after its JSON", where)
    _check_tiling(begins, ends, room, where)


def _json_bytes(source: Source, where: str) -> tuple[bytes, int]:
    """(the JSON, bytes of data behind it)."""
    if source.size < 10:
        raise _wrong(f"is {source.size} bytes, too few for a safetensors file", where)
    start = source.read(0, 8)
    if source.size < 2000 and start.startswith(b"version "):
        raise _wrong("is a Git LFS pointer, not the file", where, "fetch it with git lfs pull")
    length = int.from_bytes(start, "little")
    if length > source.size - 8:
        raise _wrong(
            f"is no safetensors file, or cut short: a header of {length:,} bytes in {source.size:,}", where
        )
    if length > MAX_HEADER_BYTES:
        raise _wrong(f"has a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read", where)
    data = source.read(8, length)
    if len(data) != length:
        raise _wrong("ends inside its header", where)
    return data, source.size - 8 - length


def _open(data: bytes, where: str) -> tuple[int, bool]:
    """(where the first entry begins, whether there is one)."""
    if data[:1] != b"{":
        raise _wrong("is no safetensors file: its header does not begin with {", where)
    empty = _NEXT.match(data, 1)
    if empty is not None and empty.group(1) == b"}":
        return empty.end(), False
    return 1, True


def _text(raw: bytes, where: str) -> str:
    try:
        return str(json.loads(b'"%b"' % raw)) if b"\\" in raw else raw.decode()
    except ValueError:
        raise _wrong("has a tensor name that is not UTF-8 text", where) from None


def _object(data: bytes, at: int, name: str, where: str) -> tuple[dict[str, Any], int]:
    """(an entry written in another order, where it ends)."""
    match = _OBJECT.match(data, at)
    try:
        found = json.loads(match.group(), object_pairs_hook=_once) if match else None
    except (ValueError, RecursionError):
        found = None
    if match is None or not isinstance(found, dict):
        raise _wrong(f"is no safetensors header: the entry of {printable(name, 80)!r} cannot be read", where)
    return found, match.end()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _checked(name: str, found: dict[str, Any], where: str) -> tuple[TensorEntry, int, int]:
    """An entry from its JSON object."""
    dtype, shape, offsets = found.get("dtype"), found.get("shape"), found.get("data_offsets")
    good = isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else []
    if not good or set(found) != {"dtype", "shape", "data_offsets"} or not all(map(_is_size, numbers)):
        raise _wrong(f"tensor {printable(name, 80)!r} has no dtype, shape and data_offsets as it should", where)
    return _measured(name, str(dtype), tuple(numbers[:-2]), numbers[-2], numbers[-1], where)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _entry(
    name: str, dtype: bytes, shape: bytes, begin: bytes, end: bytes, *, where: str
) -> tuple[TensorEntry, int, int]:
    try:
        sizes = tuple(map(int, shape.split(b","))) if shape.strip() else ()
    except ValueError:
        raise _wrong(f"tensor {printable(name, 80)!r} has a shape that cannot be read", where) from None
    return _measured(name, dtype.decode(), sizes, int(begin), int(end), where)


def _measured(
    name: str, dtype: str, shape: tuple[int, ...], begin: int, end: int, where: str
) -> tuple[TensorEntry, int, int]:
    bits = BITS.get(dtype)
    if bits is None:
        raise _wrong(
            f"tensor {printable(name, 80)!r} has a dtype {printable(dtype, 20)!r} that is not known", where,
            "plan its config.json alone and say how the weights are stored with --weights FORMAT",
        )  # fmt: skip
    if len(shape) > MAX_RANK:
        raise _wrong(f"tensor {printable(name, 80)!r} has {len(shape)} dimensions", where)
    elements = 1
    for size in shape:
        elements *= size
    num_bytes, odd = divmod(elements * bits, 8)
    if odd or end - begin != num_bytes:
        raise _wrong(f"tensor {printable(name, 80)!r}: its shape and its data_offsets contradict each other", where)
    return TensorEntry(name, dtype, shape, num_bytes), begin, end


def _check_tiling(begins: array[int], ends: array[int], room: int, where: str) -> None:
    """Tensors without a hole or an overlap, up to the end of the file.

    As many intervals are open at every point as have begun and not ended, so sorted ends that equal the sorted
    begins after them cover every byte once.
    """
    first, last = sorted(b for b, e in zip(begins, ends, strict=True) if b != e), sorted(
        e for b, e in zip(begins, ends, strict=True) if b != e
    )
    size = last[-1] if last else 0
    if size > room:
        raise _wrong(f"is cut short: it holds {room:,} bytes of data of {size:,}", where, "download it again")
    if first and (first[0] != 0 or first[1:] != last[:-1]) or size != room:
        raise _wrong("the data_offsets of its tensors leave holes or overlap", where)


def _wrong(message: str, where: str, hint: str | None = None) -> SpecError:
    return SpecError(message, where=where, hint=hint or "download it again, or plan its config.json alone")
