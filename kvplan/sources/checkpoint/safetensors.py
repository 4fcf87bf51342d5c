"""The header of a safetensors file: 8 bytes of length, then JSON; the data behind it is never read.

::

    u64, little endian                 length of the JSON
    {"name": {"dtype": .., "shape": [..], "data_offsets": [begin, end]}, .., "__metadata__": {..}}
    (spaces), data                     offsets count from here; they tile it without a hole

Entries in the order in which every writer puts them are taken out by one pattern; what is left goes through the JSON
parser. For headers just as the library writes them, `kvplan.sources.checkpoint.groups` has a quicker way. Source: the
format's description and the checks of its library, safetensors 0.8.0 ``safetensors/src/tensor.rs``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from operator import sub
from typing import Any, NamedTuple, Protocol

from kvplan.errors import SpecError, printable

MAX_HEADER_BYTES = 64 << 20
"""A checkpoint of 91,000 tensors (DeepSeek-V3) has 14 MiB of headers in 163 files."""
MAX_TENSORS = 1_000_000
"""Of a checkpoint."""
MAX_FILE_TENSORS = 250_000
"""Of one file: all of DeepSeek-V3 has 91,000."""
MAX_ODD_TENSORS = 100_000
"""Of one file that is not laid out as the format's own library does it, and takes more memory to read."""
MAX_RANK = 32
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""dtype -> bits of an element."""

MAX_ODD_BYTES = 8 << 20
"""Of entries in another order, which are parsed one by one."""

_ENTRY = re.compile(
    rb'\s*+"([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)"\s*+:\s*+'
    rb'\{\s*+"dtype"\s*+:\s*+"(\w{1,20})"\s*+,\s*+"shape"\s*+:\s*+\[([\s\d,]*+)\]\s*+,'
    rb'\s*+"data_offsets"\s*+:\s*+\[\s*+(\d{1,19})\s*+,\s*+(\d{1,19})\s*+\]\s*+\}\s*+'
    rb"(?:,(?!\s*+\})|(?=\}))"
)


class Columns(NamedTuple):
    """The tensors of a file as they stand in its header: three lists of one length."""

    names: list[bytes]
    dtypes: list[bytes]
    shapes: list[bytes]
    """Without their brackets."""


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
    """Every tensor of a file; errors as in `header_bytes` and `read_columns`."""
    for name, dtype, shape in zip(*read_columns(*header_bytes(source, where), where), strict=True):
        yield TensorEntry(text(name), dtype.decode(), sizes(shape), stored_bytes(dtype, shape))


def read_columns(data: bytes, room: int, where: str) -> Columns:
    """Every tensor that a header names.

    Args:
        data: the JSON.
        room: bytes of data behind it.
        where: the file, for error messages.

    Raises:
        SpecError: no JSON of this form; it names a tensor twice, or describes data that the file does not have.
    """
    found, begins, ends = _all_columns(data, where)
    names, dtypes, shapes = found
    if len(set(names)) != len(names):
        ordered = sorted(names)
        twice = next(a for a, b in pairwise(ordered) if a == b)
        raise _wrong(f"names tensor {printable(text(twice), 80)!r} twice", where)
    if list(map(stored_bytes, dtypes, shapes)) != list(map(sub, ends, begins)):
        raise _contradiction(found, begins, ends, where)
    _check_tiling(begins, ends, room, where)
    return found


def _all_columns(data: bytes, where: str) -> tuple[Columns, list[int], list[int]]:
    """The same for any header.

    Raises:
        SpecError: it is no JSON of this form.
    """
    if data.count(b'"data_offsets"') > MAX_ODD_TENSORS:
        raise _wrong(f"names more than {MAX_ODD_TENSORS:,} tensors in an unusual layout", where)
    parts = _ENTRY.split(data)  # what lies between entries, then the five groups of one, and so on
    odd = _odd_entries(b"".join(parts[0::6]), len(parts) > 1, where)
    names, dtypes, shapes, begins, ends = (parts[1 + i :: 6] + [entry[i] for entry in odd] for i in range(5))
    return Columns(names, dtypes, shapes), list(map(int, begins)), list(map(int, ends))


def header_bytes(source: Source, where: str) -> tuple[bytes, int]:
    """(the JSON of a file's header, bytes of data behind it).

    Raises:
        SpecError: it is cut short, longer than the file or than anything needs, or no UTF-8.
    """
    if source.size < 10:
        raise _wrong(f"is {source.size} bytes, too few for a safetensors file", where)
    start = source.read(0, 8)
    if source.size < 2000 and start.startswith(b"version "):
        raise _wrong("is a Git LFS pointer, not the file", where, "fetch it with git lfs pull")
    length = int.from_bytes(start, "little")
    if length > source.size - 8:
        raise _wrong(f"is no safetensors file, or cut short: a header of {length:,} bytes in {source.size:,}", where)
    if length > MAX_HEADER_BYTES:
        raise _wrong(f"has a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read", where)
    data = source.read(8, length)
    if len(data) != length:
        raise _wrong("ends inside its header", where)
    if data[:1] != b"{":
        raise _wrong("is no safetensors file: its header does not begin with {", where)
    if data.count(b'"data_offsets"') > MAX_FILE_TENSORS:
        raise _wrong(f"names more than {MAX_FILE_TENSORS:,} tensors", where)
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise _wrong(f"is no safetensors header: byte {error.start:,} of it is not UTF-8", where) from None
    return data, source.size - 8 - length


def _odd_entries(rest: bytes, some: bool, where: str) -> list[tuple[bytes, bytes, bytes, bytes, bytes]]:
    """Entries that are not in the usual order, from the header without those that are.

    Args:
        some: whether entries were taken out, so that a comma may be left before the end.
    """
    if len(rest) > MAX_ODD_BYTES:
        raise _wrong("is no safetensors header: its entries cannot be read", where)
    rest = rest.rstrip(b" \n\r\t\0")
    if some and rest.endswith(b"}"):
        inner = rest[:-1].rstrip()
        rest = (inner[:-1] if inner.endswith(b",") else inner) + b"}"
    try:
        odd = json.loads(rest, object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise _wrong("is no safetensors header: it is not JSON, or names a tensor twice", where) from None
    odd.pop("__metadata__", None)
    return [_checked(name, value, where) for name, value in odd.items()]


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _checked(name: str, found: Any, where: str) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """An entry in the usual order from its JSON object."""
    whole = isinstance(found, dict) and found.keys() == {"dtype", "shape", "data_offsets"}
    dtype, shape, offsets = (found["dtype"], found["shape"], found["data_offsets"]) if whole else (None, [], [])
    if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2):
        dtype = None
    if dtype is None or not all(map(_is_size, (*shape, *offsets))):
        raise _wrong(f"tensor {printable(name, 80)!r} has no dtype, shape and data_offsets as it should", where)
    begin, end = (str(n).encode() for n in offsets)
    raw = json.dumps(name)[1:-1].encode()
    return raw, dtype.encode("utf-8", "replace"), ",".join(map(str, shape)).encode(), begin, end


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def text(raw: bytes) -> str:
    """A name as it stands in JSON, its escapes resolved."""
    try:
        return str(json.loads(b'"%b"' % raw)) if b"\\" in raw else raw.decode()
    except ValueError:
        return raw.decode("utf-8", "replace")


def sizes(shape: bytes) -> tuple[int, ...]:
    """The dimensions of a shape as it stands in the header.

    Raises:
        ValueError: something else stands there.
    """
    return tuple(map(int, shape.split(b","))) if shape.strip() else ()


@lru_cache(maxsize=4096)
def stored_bytes(dtype: bytes, shape: bytes) -> int:
    """Bytes of a tensor; -1 where there can be none (an unknown dtype, a broken byte, a shape that is no shape)."""
    bits = BITS.get(dtype.decode("ascii", "replace"))
    if bits is None or shape.count(b",") >= MAX_RANK or len(shape) > 20 * MAX_RANK:
        return -1
    try:
        found = sizes(shape)
    except ValueError:
        return -1
    elements = 1
    for size in found:
        elements *= size
    num_bytes, odd = divmod(elements * bits, 8)
    return -1 if odd else num_bytes


def _contradiction(found: Columns, begins: list[int], ends: list[int], where: str) -> SpecError:
    """Why the bytes of a tensor are not those that its entry says; the first such."""
    places = zip(zip(*found, strict=True), begins, ends, strict=True)
    row = next(row for row, begin, end in places if stored_bytes(row[1], row[2]) != end - begin)
    name, dtype = printable(text(row[0]), 80), row[1].decode("utf-8", "replace")
    if dtype not in BITS:
        return _wrong(
            f"tensor {name!r} has a dtype {printable(dtype, 20)!r} that is not known", where,
            "plan its config.json alone and say how the weights are stored with --weights FORMAT",
        )  # fmt: skip
    return _wrong(f"tensor {name!r}: its shape and its data_offsets contradict each other", where)


def _check_tiling(begins: list[int], ends: list[int], room: int, where: str) -> None:
    """Tensors without a hole or an overlap, up to the end of the file.

    As many intervals are open at every point as have begun and not ended, so sorted ends that equal the sorted
    begins after them cover every byte once.
    """
    empty = {b for b, e in zip(begins, ends, strict=True) if b == e}
    filled = [(b, e) for b, e in zip(begins, ends, strict=True) if b != e] if empty else []
    first = sorted(b for b, _ in filled) if empty else sorted(begins)
    last = sorted(e for _, e in filled) if empty else sorted(ends)
    size = last[-1] if last else 0
    if size > room:
        raise _wrong(f"is cut short: it holds {room:,} bytes of data of {size:,}", where, "download it again")
    if (first and (first[0] != 0 or first[1:] != last[:-1])) or size != room:
        raise _wrong("the data_offsets of its tensors leave holes or overlap", where)


def _wrong(message: str, where: str, hint: str | None = None) -> SpecError:
    return SpecError(message, where=where, hint=hint or "download it again, or plan its config.json alone")
