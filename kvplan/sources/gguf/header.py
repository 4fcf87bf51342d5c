"""The header of a GGUF file: key/values and the tensor table, never the tensors' data.

::

    magic, version, tensors, keys      "GGUF", u32, 2 x u64 (u32 in version 1)
    key/value pairs                    string, type, value; arrays: element type, length, elements
    tensor table                       name, dimensions, sizes, type, offset
    (padding to the alignment, then data)

Versions 1 to 3, both byte orders, split files. Every length is checked against what the file can
hold before anything is read; strings in arrays (vocabularies) and long arrays are skipped, so that
memory stays small. Source: ggml 0.25.3 ``ggml/src/gguf.cpp`` and ``docs/gguf.md`` of ggml.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol

from kvplan.errors import SpecError, printable
from kvplan.sources.gguf.tensor_types import TENSOR_TYPES

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_HEADER_BYTES = 64 << 20
"""A vocabulary of 262,144 tokens with its merges takes about 15 MiB."""
MAX_STRINGS = 1 << 21
"""In lists: a vocabulary of 262,144 tokens has some 515,000 merges."""
MAX_PARTS = 4096
KEPT_ELEMENTS = 4096
"""Longer arrays are counted, not kept; those per layer have a few hundred entries."""
_MAX_NAME, _MAX_KEPT_TEXT = 1 << 16, 1 << 16
_MAX_ELEMENTS = 1 << 62
_CHUNK = 1 << 20

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type -> struct letter."""
_STRING, _ARRAY = 8, 9
_PART = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf\Z", re.IGNORECASE | re.DOTALL)


class Counted(NamedTuple):
    """An array that was not kept: only its length is known."""

    length: int


class TensorInfo(NamedTuple):
    """One row of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Fastest dimension first, as in the file: (row elements, rows, ...)."""
    type: str
    elements: int
    num_bytes: int


class GgufHeader(NamedTuple):
    """What the header of a file (or of all its parts) says."""

    path: str
    version: int
    big_endian: bool
    metadata: dict[str, Any]
    """Numbers, truth values, texts, lists of numbers; `Counted` where an array was skipped."""
    tensors: tuple[TensorInfo, ...]
    header_bytes: int
    has_data: bool
    """False for a header cut off right before the data."""
    parts: int

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.num_bytes for t in self.tensors)


class Readable(Protocol):
    """What the header is read from, in order."""

    def read(self, size: int, /) -> bytes | None:
        """At most `size` bytes from where it stands."""

    def seek(self, offset: int, /) -> int:
        """Go on at `offset`."""


class _Reader:
    """Bytes of the header in order, read a chunk at a time."""

    def __init__(self, file: Readable, path: str, size: int) -> None:
        self.file, self.path, self.size = file, path, size
        self.buffer, self.at, self.base = b"", 0, 0
        self.order = "<"
        self.wide = True
        self.strings = 0
        """In lists, so far."""

    @property
    def tell(self) -> int:
        return self.base + self.at

    def fail(self, message: str) -> NoReturn:
        raise SpecError(message, where=self.path, hint="is it a GGUF file, and downloaded whole?")

    def need(self, count: int) -> None:
        """Have `count` bytes in the buffer."""
        if len(self.buffer) - self.at >= count:
            return
        end = self.tell + count
        if end > self.size:
            self.fail("the file ends inside its header")
        if end > MAX_HEADER_BYTES:
            self.fail(f"its header is longer than {MAX_HEADER_BYTES >> 20} MiB")
        rest = self.buffer[self.at :]
        self.base += self.at
        self.at = 0
        self.buffer = rest + (self.file.read(max(_CHUNK, count - len(rest))) or b"")
        if len(self.buffer) < count:
            self.fail("the file ends inside its header")

    def take(self, count: int) -> bytes:
        self.need(count)
        found = self.buffer[self.at : self.at + count]
        self.at += count
        return found

    def skip(self, count: int) -> None:
        """Pass over `count` bytes without keeping them."""
        if self.tell + count > self.size:
            self.fail("a length in its header exceeds the file")
        if self.tell + count > MAX_HEADER_BYTES:
            self.fail(f"its header is longer than {MAX_HEADER_BYTES >> 20} MiB")
        if self.at + count <= len(self.buffer):
            self.at += count
            return
        self.base, self.at, self.buffer = self.tell + count, 0, b""
        self.file.seek(self.base)

    def number(self, letter: str) -> Any:
        return struct.unpack(self.order + letter, self.take(struct.calcsize("<" + letter)))[0]

    def length(self) -> int:
        found: int = self.number("Q" if self.wide else "I")
        return found

    def text(self, most: int, what: str) -> str:
        count = self.length()
        if count > most:
            self.fail(f"{what} of {count:,} bytes is too long")
        try:
            return self.take(count).decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8")


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """The header of a GGUF file; of a split file, of all its parts together.

    Raises:
        SpecError: it cannot be read, or is not what it says it is. One line, whatever the input.
    """
    return read_parts(os.path.expanduser(os.fspath(path)), _read_file)


def read_parts(name: str, read_one: Callable[[str, bool], GgufHeader]) -> GgufHeader:
    """The same for files that lie elsewhere.

    Args:
        read_one: gives the header of the file of a name; the second word: whether it is the first part.
    """
    match = _PART.match(name)
    if match is None:
        return read_one(name, True)
    stem, total = match.group(1), int(match.group(3))
    if not 0 < total <= MAX_PARTS:
        raise SpecError(
            f"says it is one of {total:,} parts", where=printable(name), hint=f"at most {MAX_PARTS:,} parts are read"
        )
    names = [f"{stem}-{index:05}-of-{total:05}.gguf" for index in range(1, total + 1)]
    return _joined([_checked_part(read_one(part, i == 0), part, i, total) for i, part in enumerate(names)], name)


def _checked_part(part: GgufHeader, name: str, index: int, total: int) -> GgufHeader:
    for key, want in (("split.no", index), ("split.count", total)):
        if part.metadata.get(key, want) != want:
            raise SpecError(
                f"{key} is {printable(str(part.metadata[key]), 20)}, its name says {want}",
                where=printable(name),
                hint="rename the parts as they were split",
            )
    return part


def parse_header(file: Readable, where: str, size: int, first: bool = True) -> GgufHeader:
    """The header at the beginning of an open file of `size` bytes.

    Args:
        where: how to call it.
        first: whether it is a whole file, or the first of its parts.

    Raises:
        SpecError: it is not what it says it is.
    """
    return _parse(_Reader(file, where, size), first)


def _joined(parts: list[GgufHeader], name: str) -> GgufHeader:
    tensors = tuple(t for part in parts for t in part.tensors)
    if len({t.name for t in tensors}) != len(tensors):
        raise SpecError(
            "two parts hold a tensor of the same name", where=printable(name), hint="the parts are not of one file"
        )
    wanted = parts[0].metadata.get("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise SpecError(
            f"its parts hold {len(tensors):,} tensors of {printable(str(wanted), 20)}",
            where=printable(name),
            hint="download every part",
        )
    return parts[0]._replace(
        path=name, tensors=tensors, header_bytes=sum(p.header_bytes for p in parts),
        has_data=all(p.has_data for p in parts), parts=len(parts),
    )  # fmt: skip


def _read_file(name: str, first: bool) -> GgufHeader:
    shown = printable(name)
    try:
        # not blocking: a named pipe must not keep the program waiting
        descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SpecError("is not a file", where=shown, hint="name a .gguf file")
            return parse_header(file, shown, status.st_size, first)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "cannot be opened"
        raise SpecError(f"cannot be read: {reason}", where=shown, hint="check the path") from None


def _parse(reader: _Reader, first: bool) -> GgufHeader:
    if not reader.size:
        reader.fail("the file is empty")
    if reader.size < 24 or reader.take(4) != b"GGUF":
        reader.fail("is not a GGUF file")
    version = _version(reader)
    tensors, keys = reader.length(), reader.length()
    if tensors > MAX_TENSORS or keys > MAX_KEYS:
        reader.fail(f"says it holds {tensors:,} tensors and {keys:,} keys")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = reader.text(_MAX_NAME, "a key")
        if key in metadata:
            reader.fail(f"key {printable(key, 60)!r} is there twice")
        metadata[key] = _value(reader, reader.number("I"), key)
    if first and not isinstance(metadata.get("general.architecture"), str):
        reader.fail("does not say its general.architecture")
    table = [_tensor(reader) for _ in range(tensors)]
    end = _check_table(reader, [info for info, _ in table], [offset for _, offset in table], metadata)
    has_data = reader.size >= end or not tensors
    if not has_data and reader.size > reader.tell + 4096:
        reader.fail(f"ends at {reader.size:,} of {end:,} bytes")
    found = tuple(info for info, _ in table)
    return GgufHeader(reader.path, version, reader.order == ">", metadata, found, reader.tell, has_data, 1)


def _version(reader: _Reader) -> int:
    raw = reader.take(4)
    version: int = struct.unpack("<I", raw)[0]
    if version > 0xFFFF:
        reader.order, version = ">", struct.unpack(">I", raw)[0]
    if version not in (1, 2, 3):
        reader.fail(f"GGUF version {version:,} is not known (1 to 3 are)")
    reader.wide = version > 1
    return version


def _value(reader: _Reader, kind: int, key: str) -> Any:
    if kind in _SCALARS:
        return reader.number(_SCALARS[kind])
    if kind == _STRING:
        count = reader.length()
        if count > _MAX_KEPT_TEXT:
            reader.skip(count)
            return Counted(count)
        return reader.take(count).decode(errors="replace")
    if kind == _ARRAY:
        return _array(reader, key)
    reader.fail(f"key {printable(key, 60)!r} has a value of unknown type {kind:,}")


def _array(reader: _Reader, key: str) -> Any:
    kind, count = reader.number("I"), reader.length()
    if kind == _STRING:
        return _skip_strings(reader, count)
    if kind not in _SCALARS:
        reader.fail(f"key {printable(key, 60)!r} is an array of unknown type {kind:,}")
    letter = _SCALARS[kind]
    size = struct.calcsize("<" + letter) * count
    if count > KEPT_ELEMENTS:
        reader.skip(size)
        return Counted(count)
    return list(struct.unpack(f"{reader.order}{count}{letter}", reader.take(size)))


def _skip_strings(reader: _Reader, count: int) -> Counted:
    """Pass over `count` strings, most of them a few bytes: the chunk is walked in place."""
    width = 8 if reader.wide else 4
    if count > (reader.size - reader.tell) // width:
        reader.fail("a length in its header exceeds the file")
    reader.strings += count
    if reader.strings > MAX_STRINGS:
        reader.fail(f"has lists of more than {MAX_STRINGS:,} texts")
    unpack = struct.Struct(reader.order + ("Q" if reader.wide else "I")).unpack_from
    left = count
    while left:
        reader.need(width)
        buffer, at, end = reader.buffer, reader.at, len(reader.buffer) - width
        while left and at <= end:
            at += width + unpack(buffer, at)[0]
            left -= 1
        if at > len(buffer):  # the last string reaches beyond the chunk
            beyond = at - len(buffer)
            reader.at = len(buffer)
            reader.skip(beyond)
        else:
            reader.at = at
    return Counted(count)


def _tensor(reader: _Reader) -> tuple[TensorInfo, int]:
    name = reader.text(_MAX_NAME, "a tensor's name")
    dims = reader.number("I")
    if dims > 4:
        reader.fail(f"tensor {printable(name, 60)!r} has {dims:,} dimensions")
    shape = tuple(reader.length() for _ in range(dims))
    kind, offset = reader.number("I"), reader.number("Q")
    stored = TENSOR_TYPES.get(kind)
    if stored is None:
        reader.fail(f"tensor {printable(name, 60)!r} is of unknown type {kind:,}")
    elements = 1
    for size in shape:
        elements *= size
    if elements > _MAX_ELEMENTS or not all(shape):
        reader.fail(f"tensor {printable(name, 60)!r} has a shape of {' x '.join(map(str, shape))}")
    row = shape[0] if shape else 1
    if row % stored.block_elements:
        blocks = f"blocks of {stored.block_elements} ({stored.name})"
        reader.fail(f"tensor {printable(name, 60)!r}: rows of {row:,} do not fit {blocks}")
    size = elements // stored.block_elements * stored.block_bytes
    return TensorInfo(name, shape, stored.name, elements, size), offset


def _check_table(reader: _Reader, tensors: list[TensorInfo], offsets: list[int], metadata: dict[str, Any]) -> int:
    """Where the data end, once names are unique and offsets aligned."""
    alignment = metadata.get("general.alignment", 32)
    if (
        isinstance(alignment, bool)
        or not isinstance(alignment, int)
        or not 0 < alignment <= 1 << 20
        or alignment & (alignment - 1)
    ):
        reader.fail(f"an alignment of {printable(str(alignment), 20)} is no power of 2")
    if len({t.name for t in tensors}) != len(tensors):
        reader.fail("two tensors have the same name")
    start = -(-reader.tell // alignment) * alignment
    end = start
    for info, offset in zip(tensors, offsets, strict=True):
        if offset % alignment:
            reader.fail(f"tensor {printable(info.name, 60)!r} starts at {offset:,}, which is not aligned")
        end = max(end, start + offset + info.num_bytes)
    return end
