"""Whatever the bytes, a reader answers or raises a `SpecError`, and soon."""

from __future__ import annotations

import json
import string
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from published import FACTS

from kvplan.errors import SpecError
from kvplan.sources import find_model
from kvplan.sources.checkpoint.index import read_index
from kvplan.sources.checkpoint.roles import Namer
from kvplan.sources.checkpoint.safetensors import read_header
from kvplan.sources.hf.read import read_config
from kvplan.sources.hf_files import read_config_file
from kvplan.sources.strict_json import decode, parse
from kvplan.spec.model import ModelSpec

CONFIGS: list[dict[str, Any]] = [fact["config"] for fact in FACTS.values()]
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(-(2**80), 2**80), st.floats(), st.text(max_size=6),
    st.sampled_from(["full_attention", "M*-E", "auto", "llama", "\x1b[31m", "\ud800"]), st.lists(st.integers(-1, 9),
    max_size=5),
    st.lists(st.text(max_size=4), max_size=3), st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
    st.just([[]]), st.just([{}]),
)  # fmt: skip
BOUNDED = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextmanager
def soon(seconds: float = 60.0) -> Iterator[None]:
    """Guards against a hang, not against a slow machine."""
    started = time.process_time()
    yield
    assert time.process_time() - started < seconds


def one_line(error: SpecError) -> None:
    assert str(error).isprintable()
    assert error.hint is None or error.hint.isprintable()


def keys_of(config: dict[str, Any]) -> list[tuple[str, ...]]:
    """Every key of a configuration, with those around it."""
    found: list[tuple[str, ...]] = []
    for key, value in config.items():
        found.append((key,))
        if isinstance(value, dict):
            found += [(key, *inner) for inner in keys_of(value)]
    return found


@given(st.data())
@BOUNDED
def test_a_configuration_with_changed_values(tmp_path: Path, data: st.DataObject) -> None:
    config = deepcopy(data.draw(st.sampled_from(CONFIGS)))
    for path in data.draw(st.lists(st.sampled_from(keys_of(config)), min_size=1, max_size=3)):
        level: Any = config
        for key in path[:-1]:
            level = level.get(key) if isinstance(level, dict) else None
        if isinstance(level, dict):
            level[path[-1]] = data.draw(ODD)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    for assume in (None, "llama-like"):
        with soon():
            try:
                model = read_config_file(str(file), assume=assume).model
            except SpecError as error:
                one_line(error)
            else:
                assert isinstance(model, ModelSpec)
                assert model.parameters > 0
                assert model.id.isprintable()


@given(st.data())
@BOUNDED
def test_a_configuration_with_changed_bytes(tmp_path: Path, data: st.DataObject) -> None:
    text = bytearray(json.dumps(data.draw(st.sampled_from(CONFIGS)), indent=1).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6))
    file = tmp_path / "config.json"
    file.write_bytes(bytes(text))
    with soon():
        try:
            read_config_file(str(file))
        except SpecError as error:
            one_line(error)


@given(st.binary(max_size=300) | st.text(string.printable + '{}[]",:\\', max_size=300).map(str.encode))
@BOUNDED
def test_any_bytes_as_json(data: bytes) -> None:
    with soon():
        try:
            parse(decode(data, "f"), "f")
        except SpecError as error:
            one_line(error)


class File:
    """Bytes as a file of any size."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data = data
        self.size = size

    def read(self, start: int, length: int) -> bytes:
        return self.data[start : start + length]


HEADER_PARTS = st.sampled_from(
    ['{', '}', '"a":', '"b":', '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}',
     '{"dtype":"F32","shape":[],"data_offsets":[8,12]}', ",",
     '"__metadata__":', "[", "]", '{"x":"y"}', "99999999999999999999", "-1", '"dtype":"F32"', " ", "\n", "\x00", '"',
     "\\"]
)  # fmt: skip


@given(
    st.lists(HEADER_PARTS, max_size=14).map("".join).map(str.encode) | st.binary(max_size=200),
    st.integers(0, 2**64 - 1) | st.none(),
    st.integers(0, 64),
)
@BOUNDED
def test_any_bytes_as_a_header(raw: bytes, length: int | None, more: int) -> None:
    data = (len(raw) if length is None else length).to_bytes(8, "little") + raw
    with soon():
        try:
            found = list(read_header(File(data, len(data) + more), "f"))
        except SpecError as error:
            one_line(error)
        else:
            assert sum(entry.num_bytes for entry in found) == more


@given(
    st.binary(max_size=200)
    | st.dictionaries(st.text(max_size=5), ODD, max_size=4).map(lambda m: json.dumps({"weight_map": m}).encode())
)
@BOUNDED
def test_any_bytes_as_an_index(data: bytes) -> None:
    with soon():
        try:
            found = read_index(data, "i")
        except SpecError as error:
            one_line(error)
        else:
            assert all("/" not in name and name.endswith(".safetensors") for name in found.shards)


@given(st.text(max_size=80))
@BOUNDED
def test_any_name_has_a_role(name: str) -> None:
    with soon():
        Namer(4, tied=False).role(name)


@pytest.mark.parametrize("piece", ["a.", "norm_", "layers.1.", "_scale", "attn", "x_attn_", ".mlp.experts.0."])
def test_long_names_cost_little(piece: str) -> None:
    """No pattern of names takes time beyond its length."""
    with soon():
        Namer(4, tied=False).role(piece * 5_000)


def test_many_tensors_and_long_headers(tmp_path: Path, checkpoints: Any) -> None:
    folder = checkpoints.write(
        tmp_path / "many",
        checkpoints.LLAMA,
        [(f"model.layers.0.mlp.experts.{i}.w1.weight", "BF16", (1,)) for i in range(150_000)],
    )
    with soon():
        find_model(str(folder))
    huge = folder / "model.safetensors"
    with huge.open("wb") as file:
        file.write((80 << 20).to_bytes(8, "little"))
        file.truncate(200 << 20)
    with soon(), pytest.raises(SpecError, match="at most"):
        find_model(str(folder))
    with huge.open("r+b") as file:
        file.write((60 << 20).to_bytes(8, "little") + b"{")
    with soon(), pytest.raises(SpecError):
        find_model(str(folder))


FAMILIES = {str(c.get("text_config", c).get("model_type", c.get("model_type"))): c for c in CONFIGS}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("value", [-1769, 10**9])
def test_no_number_hangs_a_reader_or_weighs_less_than_nothing(family: str, value: int) -> None:
    config = FAMILIES[family]
    for path in keys_of(config):
        level: Any = (changed := deepcopy(config))
        for key in path[:-1]:
            level = level[key]
        if isinstance(level[path[-1]], bool) or not isinstance(level[path[-1]], int):
            continue
        level[path[-1]] = value
        with soon():
            try:
                model = read_config(changed)
            except SpecError:
                continue
        assert model.parameters > 0, path
        assert model.draft_parameters >= 0, path
        assert all(tower.parameters >= 0 for tower in model.towers), path
