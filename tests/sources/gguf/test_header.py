"""The binary header: agreement with the `gguf` package, every version, split files, hostile input."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest
from files import ARCHITECTURES, metadata_of, number_pair, raw_file, string_pair, tensor, text, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.errors import SpecError
from kvplan.sources.gguf.header import KEPT_ELEMENTS, Counted, read_header
from kvplan.sources.gguf.tensor_types import FILE_TYPES, TENSOR_TYPES

DATA = Path(__file__).parents[2] / "data"
ARCH = string_pair("general.architecture", "llama")


def put(folder: Path, content: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def refused(path: Path) -> str:
    with pytest.raises(SpecError) as error:
        read_header(path)
    assert "\n" not in str(error.value)
    assert error.value.hint
    return str(error.value)


# ---- agreement with the gguf package ----


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_agrees_with_the_gguf_package(architecture: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", architecture, metadata_of(architecture))
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    assert ours.architecture == architecture
    for name, field in theirs.fields.items():
        if name.startswith("GGUF."):
            continue
        value = field.contents()
        found = ours.metadata[name]
        if isinstance(found, Counted):
            assert isinstance(value, list)
            assert found.length == len(value)
        else:
            assert found == value, name
    assert [(t.name, t.shape, t.type, t.elements, t.num_bytes) for t in ours.tensors] == [
        (t.name, tuple(int(n) for n in t.shape), t.tensor_type.name, int(t.n_elements), int(t.n_bytes))
        for t in theirs.tensors
    ]
    assert ours.tensor_bytes == sum(int(t.n_bytes) for t in theirs.tensors)


def test_enough_architectures_are_compared() -> None:
    assert len(ARCHITECTURES) >= 25


def test_tensor_types_are_those_of_the_gguf_package() -> None:
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        ours = TENSOR_TYPES[int(kind)]
        assert (ours.name, ours.block_elements, ours.block_bytes) == (kind.name, *sizes)
    for kind in gguf.LlamaFileType:
        if kind.name.startswith("MOSTLY_"):
            assert FILE_TYPES[int(kind)] in (kind.name[7:].lower(), {"F16": "fp16"}.get(kind.name[7:]))


def test_the_table_of_a_real_file(tmp_path: Path) -> None:
    """A header written from the tensor table of a real Q4_K_M file gives its bytes back."""
    real = json.loads((DATA / "gemma-3-270m-q4_k_m.tensors.json").read_text())
    numbers = {t.name: number for number, t in TENSOR_TYPES.items()}
    table = [tensor(name, tuple(shape), numbers[kind]) for name, kind, shape in real["tensors"]]
    found = read_header(put(tmp_path, raw_file([ARCH], table)))
    assert found.tensor_bytes == real["tensor_bytes"]
    assert not found.has_data


# ---- versions, byte order, parts ----


@pytest.mark.parametrize("version", [2, 3])
def test_versions_with_wide_lengths(version: int, tmp_path: Path) -> None:
    content = raw_file([ARCH], [tensor("a", (4, 2))], version=version, data=32)
    found = read_header(put(tmp_path, content))
    assert (found.version, found.tensors[0].num_bytes, found.has_data) == (version, 32, True)


def test_version_1_has_narrow_lengths(tmp_path: Path) -> None:
    pairs = [string_pair("general.architecture", "llama", "I"), number_pair("llama.block_count", 7, "I")]
    row = text("a", "I") + struct.pack("<IIIIQ", 2, 4, 2, 0, 0)
    found = read_header(put(tmp_path, raw_file(pairs, [row], version=1, width="I", data=64)))
    assert found.version == 1
    assert found.metadata["llama.block_count"] == 7
    assert found.tensors[0].shape == (4, 2)


def test_big_endian(tmp_path: Path) -> None:
    keys = metadata_of("jamba")
    little = read_header(write(tmp_path / "little.gguf", "jamba", keys))
    big = read_header(write(tmp_path / "big.gguf", "jamba", keys, big=True))
    assert big.big_endian
    assert big.metadata == little.metadata
    assert big.tensors == little.tensors


def test_split_files(tmp_path: Path) -> None:
    keys = metadata_of("qwen3")
    whole = read_header(write(tmp_path / "whole.gguf", "qwen3", keys))
    write(tmp_path / "split.gguf", "qwen3", keys, shards=2)
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert len(parts) > 2
    for named in (parts[0], parts[-1]):
        found = read_header(named)
        assert found.parts == len(parts)
        assert sorted(found.tensors) == sorted(whole.tensors)
        assert found.architecture == "qwen3"
    parts[1].unlink()
    assert "cannot be read" in refused(parts[0])


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    put(tmp_path, raw_file([ARCH], [tensor("a", (4,))], data=32), "m-00001-of-00002.gguf")
    put(tmp_path, raw_file([], [tensor("a", (4,))], data=32), "m-00002-of-00002.gguf")
    assert "same name" in refused(tmp_path / "m-00001-of-00002.gguf")
    put(tmp_path, raw_file([number_pair("split.no", 5)], [], data=32), "m-00002-of-00002.gguf")
    assert "split.no" in refused(tmp_path / "m-00001-of-00002.gguf")


# ---- cost ----


def test_a_huge_file_costs_its_header_only(tmp_path: Path) -> None:
    size = 400 << 30
    rows = (size // 2 // 4096,)
    path = put(tmp_path, raw_file([ARCH], [tensor("a", (4096, *rows), 1)]))
    os.truncate(path, size + 4096)
    begin = time.perf_counter()
    assert read_header(path).tensor_bytes == size
    assert time.perf_counter() - begin < 60


def test_a_large_vocabulary_is_passed_over(tmp_path: Path) -> None:
    words = b"".join(text("word" * (i % 9)) for i in range(300_000))
    array = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 300_000) + words
    scores = text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, KEPT_ELEMENTS + 1) + bytes(4 * KEPT_ELEMENTS + 4)
    path = put(tmp_path, raw_file([array, ARCH, scores, number_pair("llama.block_count", 3)]))
    tracemalloc.start()
    found = read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.metadata["tokenizer.ggml.tokens"] == Counted(300_000)
    assert found.metadata["tokenizer.ggml.scores"] == Counted(KEPT_ELEMENTS + 1)
    assert found.metadata["llama.block_count"] == 3
    assert peak < 8 << 20


# ---- bad input ----

_ARRAY = text("a") + struct.pack("<I", 9)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"GGUF", "not a GGUF"),
        (b"GGML" + bytes(60), "not a GGUF"),
        (b"GGUF" + struct.pack("<I", 9) + bytes(60), "version 9"),
        (raw_file([ARCH], keys=1 << 40), "1,099,511,627,776 keys"),
        (raw_file([ARCH], count=1 << 40), "1,099,511,627,776 tensors"),
        (raw_file([ARCH], keys=2), "ends inside its header"),
        (raw_file([ARCH, ARCH]), "twice"),
        (raw_file([text("x") + struct.pack("<IQ", 8, 1 << 62) + bytes(40)]), "exceeds the file"),
        (raw_file([struct.pack("<Q", 1 << 62) + bytes(40)]), "too long"),
        (raw_file([_ARRAY + struct.pack("<IQ", 8, 1 << 60) + bytes(64)]), "exceeds the file"),
        (raw_file([_ARRAY + struct.pack("<IQ", 4, 1 << 60) + bytes(64)]), "exceeds the file"),
        (raw_file([_ARRAY + struct.pack("<IQ", 9, 1) + bytes(64)]), "array of unknown type 9"),
        (raw_file([text("x") + struct.pack("<I", 77) + bytes(40)]), "unknown type 77"),
        (raw_file([struct.pack("<Q", 2) + b"\xff\xfe" + bytes(40)]), "not UTF-8"),
        (raw_file([number_pair("general.architecture", 5)]), "general.architecture"),
        (raw_file([ARCH], [tensor("a", (4,) * 5)], data=32), "5 dimensions"),
        (raw_file([ARCH], [tensor("a", (4,), 99)], data=32), "unknown type 99"),
        (raw_file([ARCH], [tensor("a", (33, 2), 8)], data=32), "do not fit blocks of 32"),
        (raw_file([ARCH], [tensor("a", (1 << 40, 1 << 40))], data=32), "a shape of"),
        (raw_file([ARCH], [tensor("a", (0, 4))], data=32), "a shape of"),
        (raw_file([ARCH], [tensor("a", (4,)), tensor("a", (4,))], data=32), "same name"),
        (raw_file([ARCH], [tensor("a", (4,), 0, 7)], data=32), "not aligned"),
        (raw_file([ARCH, number_pair("general.alignment", 24)], [tensor("a", (4,))], data=32), "no power of 2"),
        (raw_file([ARCH], [tensor("a", (1 << 20,))], data=9000), "ends at"),
    ],
)
def test_hostile(content: bytes, said: str, tmp_path: Path) -> None:
    begin = time.perf_counter()
    assert said in refused(put(tmp_path, content))
    assert time.perf_counter() - begin < 60


def test_endless_empty_strings_are_bounded(tmp_path: Path) -> None:
    count = 1 << 26
    path = put(tmp_path, raw_file([_ARRAY + struct.pack("<IQ", 8, count)]))
    os.truncate(path, 8 * count + 4096)
    begin = time.perf_counter()
    assert "lists of more than" in refused(path)
    assert time.perf_counter() - begin < 60


def test_things_that_are_no_files(tmp_path: Path) -> None:
    assert "cannot be read: Is a directory" in refused(tmp_path)
    assert "cannot be read" in refused(tmp_path / "absent.gguf")
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    assert "cannot be read" in refused(loop)
    assert "cannot be read" in refused(Path("nul\0byte.gguf"))
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    assert "not a file" in refused(pipe)


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = put(tmp_path, raw_file([number_pair("\x1b[31mred", 1), number_pair("\x1b[31mred", 1)]))
    assert "\x1b" not in refused(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fuzzed_files_give_a_header_or_one_line(data: Any, tmp_path: Path) -> None:
    base = bytearray(
        raw_file(
            [ARCH, number_pair("llama.block_count", 3), _ARRAY + struct.pack("<IQ3I", 4, 3, 1, 2, 3)],
            [tensor("token_embd.weight", (32, 4), 8), tensor("b", (4,), 0, 160)], data=200,
        )
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(base) - 1))
        base[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(base)))
    path = put(tmp_path, bytes(base[:cut] if data.draw(st.booleans()) else base))
    try:
        said = str(read_header(path).tensor_bytes)
    except SpecError as error:
        said = str(error)
    assert "\n" not in said
