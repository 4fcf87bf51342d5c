"""Headers of safetensors: the same as the format's library reads, and nothing that it refuses."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import SpecError
from kvplan.sources.checkpoint.index import read_index
from kvplan.sources.checkpoint.roles import Namer
from kvplan.sources.checkpoint.safetensors import BITS, TensorEntry, read_header


class Bytes:
    """A file in memory that says which of its bytes were read."""

    def __init__(self, data: bytes, size: int | None = None) -> None:
        self.data = data
        self.size = len(data) if size is None else size
        self.furthest = 0

    def read(self, start: int, length: int) -> bytes:
        self.furthest = max(self.furthest, start + length)
        return self.data[start : start + length]


def entries(data: bytes) -> list[TensorEntry]:
    return list(read_header(Bytes(data), "f.safetensors"))


def made(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def refused_by_library(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return True
    return False


NUMPY = {
    "F64": "f8",
    "F32": "f4",
    "F16": "f2",
    "I64": "i8",
    "I32": "i4",
    "I16": "i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
ARRAYS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(sorted(NUMPY)), st.lists(st.integers(0, 4), max_size=3)),
    min_size=1,
    max_size=6,
)


@given(ARRAYS, st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
@settings(deadline=None)
def test_agrees_with_the_library(arrays: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None) -> None:
    data = safetensors.numpy.save({n: np.zeros(shape, NUMPY[dtype]) for n, (dtype, shape) in arrays.items()}, metadata)
    theirs = {
        name: (view["dtype"], tuple(view["shape"]), len(view["data"])) for name, view in safetensors.deserialize(data)
    }
    ours = {e.name: (e.dtype, e.shape, e.num_bytes) for e in entries(data)}
    assert (
        ours
        == theirs
        == {n: (d, tuple(s), int(np.prod(s)) * np.dtype(NUMPY[d]).itemsize) for n, (d, s) in arrays.items()}
    )


def test_knows_every_dtype_of_the_library() -> None:
    """Whatever of ours the library reads has the size we say, and 6-bit and 4-bit types come out in whole bytes."""
    for dtype, bits in BITS.items():
        header = {"a": {"dtype": dtype, "shape": [4], "data_offsets": [0, bits // 2]}}
        data = made(header, b"\0" * (bits // 2))
        assert [e.num_bytes for e in entries(data)] == [bits // 2]
        assert not refused_by_library(data), dtype


A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
RAW = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
WRONG: dict[str, bytes] = {
    "empty": b"", "short": b"\0" * 7, "no header": struct.pack("<Q", 0) + b"\0\0",
    "length over the file": made({"a": A}, b"\0" * 8, length=1000), "huge length": made({"a": A}, length=2**63),
    "no JSON": made(b"{nope}"), "a list": made(b"[1, 2]"), "not UTF-8": made(b'{"\xff": 1}'),
    "cut JSON": made(b'{"a":{"dtype":"F32","shape":[2],"data_off'), "missing data": made({"a": A}, b"\0" * 4),
    "data left over": made({"a": A}, b"\0" * 12), "hole": made({"a": A, "b": {**A, "data_offsets": [12, 20]}},
    b"\0" * 20),
    "overlap": made({"a": A, "b": {**A, "data_offsets": [4, 12]}}, b"\0" * 12),
    "same place": made({"a": A, "b": A}, b"\0" * 8),
    "offsets against shape": made({"a": {**A, "shape": [3]}}, b"\0" * 8),
    "backwards": made({"a": {**A, "data_offsets": [8, 0]}}, b"\0" * 8),
    "unknown dtype": made({"a": {**A, "dtype": "Q4"}}, b"\0" * 8), "negative": made({"a": {**A, "shape": [-2]}},
    b"\0" * 8),
    "text for numbers": made({"a": {**A, "shape": ["2"]}}, b"\0" * 8), "fraction": made({"a": {**A, "shape": [2.0]}},
    b"\0" * 8),
    "huge shape": made({"a": {**A, "shape": [2**62, 2**62, 2**62]}}, b"\0" * 8),
    "no shape": made({"a": {"dtype": "F32"}}),
    "odd bits": made({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}, b"\0\0"),
    "twice": made(b'{"a":%b,"a":%b}' % (RAW, RAW.replace(b"[0,8]", b"[8,16]")), b"\0" * 16),
    "comma at the end": made(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},}', b"\0" * 8),
    "text behind": made(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} x', b"\0" * 8),
    "LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 1234\n",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_refuses_damaged_files(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        entries(WRONG[name])
    assert caught.value.where == "f.safetensors"
    assert caught.value.hint
    assert str(caught.value).isprintable()
    assert refused_by_library(WRONG[name])


@pytest.mark.parametrize(
    "text",
    ['{"a":{"shape":[2],"dtype":"F32","data_offsets":[0,8]}}',
     '{ "a" : { "dtype" : "F32" , "shape" : [ 2 ] , "data_offsets" : [ 0 , 8 ] } }  ',
     '{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
     '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"x":"}{\\""}}',
     '{"a":{"data_offsets":[0,8],"dtype":"F32","shape":[2]},"__metadata__":{}}'],
)  # fmt: skip
def test_any_order_and_spacing(text: str) -> None:
    assert entries(made(text.encode(), b"\0" * 8)) == [TensorEntry("a", "F32", (2,), 8)]


def test_a_file_without_tensors() -> None:
    assert entries(made({})) == []


def test_reads_the_header_and_no_byte_more() -> None:
    size = 2**38
    header = {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    file = Bytes(made(header), len(made(header)) + size)
    assert next(iter(read_header(file, "f"))).num_bytes == size
    assert file.furthest == len(made(header))


# ---- the index ----


def index(**changes: Any) -> bytes:
    return json.dumps(
        {"metadata": {"total_size": 10}, "weight_map": {"a": "x.safetensors", "b": "x.safetensors"}} | changes
    ).encode()


def test_index() -> None:
    found = read_index(index(), "i")
    assert found.shards == {"x.safetensors": 2}
    assert found.total_bytes == 10
    many = {f"model.layers.{i}.w": f"model-{i % 7}.safetensors" for i in range(60_000)}
    assert sum(read_index(index(weight_map=many), "i").shards.values()) == 60_000


@pytest.mark.parametrize(
    "shard",
    ["../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "..\\x.safetensors", "c:x.safetensors", "x.bin",
     ".safetensors/..",
     "..", "", "x\u0000.safetensors", "x\n.safetensors", "x\u202e.safetensors", "~/x.safetensors/"],
)  # fmt: skip
def test_path_tricks_in_an_index(shard: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_index(index(weight_map={"a": shard}), "i")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", index(weight_map={}), index(weight_map=[]), index(weight_map={"a": 1}), index()[:-20],
     b'{"weight_map": {"a": "x.safetensors"',
     b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
     b'{"metadata": {"weight_map": {"a": "x.safetensors"}}}',
     b'{"weight_map": {"a": "x.safetensors",}}', b'{"weight_map": {"a": "x.safetensors"}} {}', b"\xff\xfe",
     b'{"weight_map": {"a": {"b": "x.safetensors"}}}'],
)  # fmt: skip
def test_damaged_indexes(data: bytes) -> None:
    with pytest.raises(SpecError):
        read_index(data, "i")


def test_more_files_than_any_checkpoint_has() -> None:
    with pytest.raises(SpecError, match="files"):
        read_index(index(weight_map={str(i): f"{i}.safetensors" for i in range(5000)}), "i")


# ---- what a tensor is for ----

NAMES = Path(__file__).parents[1] / "data" / "tensor_names.txt"


@pytest.mark.parametrize("line", NAMES.read_text(encoding="utf-8").splitlines())
def test_roles(line: str) -> None:
    """Names as published checkpoints of 32 layers have them."""
    name, role = line.split()
    assert Namer(32, tied=False).role(name) == role


def test_a_tied_head_is_a_copy_and_an_encoder_may_be_a_tower() -> None:
    assert Namer(2, tied=True).role("lm_head.weight") == "copies"
    assert Namer(2, tied=False).role("transformer.encoder.layers.0.mlp.dense_h_to_4h.weight") == "dense_ffn"
    assert Namer(2, tied=True, encoder=True).role("model.encoder.layers.9.fc1.weight") == "tower"
