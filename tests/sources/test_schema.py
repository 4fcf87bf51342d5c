"""The JSON Schema, the validator and the fast path agree on every shipped file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvplan.cache import KINDS
from kvplan.catalog import files
from kvplan.catalog.build import gpu_from_plain, model_from_plain
from kvplan.sources.schema import json_schema
from kvplan.sources.yaml_file import load_gpu_file, load_model_file, read_yaml
from kvplan.spec.ffn import FFNS

DATA = Path(__file__).parents[1] / "data"
MODELS = [DATA / "sample-model.yaml", *sorted(Path(files.models_folder()).rglob("*.yaml"))]
GPUS = [DATA / "sample-gpu.yaml", *sorted(Path(files.gpus_folder()).rglob("*.yaml"))]


@pytest.fixture(scope="module")
def model_schema() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema("model"))


@pytest.fixture(scope="module")
def gpu_schema() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema("gpu"))


@pytest.mark.parametrize("what", ["model", "gpu"])
def test_schemas_are_draft_2020_12(what: Any) -> None:
    schema = json_schema(what)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["properties"]["schema"]["const"] == f"kvplan.{what}/1"
    assert "schema" in schema["required"]


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_model_files(path: Path, model_schema: jsonschema.Draft202012Validator) -> None:
    """The schema takes the file, and the strict reader and the fast path make the same spec of it."""
    data, _ = read_yaml(path)
    assert [e.message for e in model_schema.iter_errors(data)] == []
    assert load_model_file(path) == model_from_plain(files.read_yaml(str(path)), where=path.name)


@pytest.mark.parametrize("path", GPUS, ids=lambda p: p.stem)
def test_gpu_files(path: Path, gpu_schema: jsonschema.Draft202012Validator) -> None:
    data, _ = read_yaml(path)
    assert [e.message for e in gpu_schema.iter_errors(data)] == []
    assert load_gpu_file(path) == gpu_from_plain(files.read_yaml(str(path)), where=path.name)


def _sample() -> dict[str, Any]:
    return dict(read_yaml(DATA / "sample-model.yaml")[0])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("hidden_size",), "1024"),
        (("hiden_size",), 1024),
        (("schema",), "kvplan.model/2"),
        (("layers",), []),
        (("layers",), ["linear", {"repeat": 0, "of": ["local"]}]),
        (("layers",), ["linear", {"repeat": 2, "of": [{"repeat": 2, "of": []}]}]),
        (("layers",), ["linear", {"repeat": 2, "for": ["local"]}]),
        (("blocks", "local", "mixers", 0, "kind"), "slidding"),
        (("blocks", "local", "mixers", 0, "kv_head"), 4),
        (("blocks", "local", "mixers", 0, "qk_norm"), "tail"),
        (("blocks", "local", "ffns", 0, "gated"), 1),
    ],
)
def test_schema_refuses_what_the_reader_refuses(
    path: tuple[str | int, ...], value: object, model_schema: jsonschema.Draft202012Validator
) -> None:
    data: Any = _sample()
    here = data
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    assert not model_schema.is_valid(data)


@pytest.mark.parametrize("missing", ["schema", "id", "hidden_size", "blocks", "layers"])
def test_schema_requires(missing: str, model_schema: jsonschema.Draft202012Validator) -> None:
    data = _sample()
    del data[missing]
    assert not model_schema.is_valid(data)


def test_a_mixer_needs_its_kind(model_schema: jsonschema.Draft202012Validator) -> None:
    data = _sample()
    del data["blocks"]["local"]["mixers"][0]["kind"]
    assert not model_schema.is_valid(data)


def test_every_kind_is_in_the_schema_and_described() -> None:
    schema = json_schema("model")
    block = schema["$defs"]["Block"]["properties"]
    assert set(block["mixers"]["items"]["discriminator"]["mapping"]) == set(KINDS)
    assert set(block["ffns"]["items"]["discriminator"]["mapping"]) == set(FFNS)
    full = schema["$defs"]["FullAttention"]["properties"]
    assert full["kv_heads"]["description"] == "1 is MQA, `query_heads` is MHA, between them GQA."
    assert schema["properties"]["layers"]["description"].startswith("Block names in order")
    assert "driver" in json_schema("gpu")["properties"]["name"]["description"]
