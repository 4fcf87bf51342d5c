"""Configurations and checkpoint folders through the public way in: figures, names, files that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published import FACTS

from kvplan import load_model, plan
from kvplan.errors import SpecError, UnknownNameError
from kvplan.sources import find_model, read_model
from kvplan.sources.importing import spec_file
from kvplan.spec.model import ModelSpec

DATA = Path(__file__).parents[1] / "data"
CASES = sorted((DATA / "cases" / "vllm_configs").glob("*.json"))
Folder = Callable[..., Path]


def mixers(model: ModelSpec) -> list[list[Any]]:
    """The cached streams and states of every layer."""
    return [[(m.kind, m.streams(), m.states()) for m in model.blocks[name].mixers] for name in model.layers]


# ---- right values ----


@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS)
def test_a_configuration_gives_the_spec_of_the_catalog(fact: dict[str, Any], tmp_path: Path) -> None:
    """Kinds, counts and bytes; the language model's parameters, but for one file that leaves out its sliding heads."""
    path = tmp_path / f"{fact['id']}.json"
    path.write_text(json.dumps(fact["config"], indent=2), encoding="utf-8")
    model, catalog = load_model(str(path)), load_model(fact["id"])
    assert model.id == fact["id"]
    assert mixers(model) == mixers(catalog)
    if fact["id"] != "step-3.7-flash":
        assert model.blocks == catalog.blocks
        towers = [sum(t.parameters for t in spec.towers) for spec in (model, catalog)]
        assert model.parameters - towers[0] == catalog.parameters - towers[1]
    settings = {"engine": "generic", "max_model_len": 4096}
    assert plan(model, **settings).kv == plan(catalog, **settings).kv._replace(
        exceeds_weights_at_tokens=plan(model, **settings).kv.exceeds_weights_at_tokens
    )


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_every_configuration_of_the_engine_cases(path: Path) -> None:
    model = find_model(str(path))
    assert model.id == path.stem
    assert model.num_layers > 0


def test_folder_file_and_library_agree(llama_folder: Folder) -> None:
    folder = llama_folder()
    named = find_model(str(folder / "config.json"))
    from_folder = find_model(f"{folder}/")
    assert named.blocks == from_folder.blocks
    assert named.id == from_folder.id == "tiny-llama"
    assert named.checkpoint is None
    assert plan(str(folder), engine="generic").kv == plan(str(folder / "config.json"), engine="generic").kv


# ---- names ----


def test_names(tmp_path: Path, llama_folder: Folder, monkeypatch: pytest.MonkeyPatch, checkpoints: Any) -> None:
    assert find_model(str(llama_folder("Tiny Llama (v2)"))).id == "tiny-llama-v2"
    stated = llama_folder("checkpoint-100", _name_or_path="acme/Rocket-7B")
    assert find_model(str(stated)).id == "rocket-7b"
    snapshot = checkpoints.write(
        tmp_path / "models--acme--Rocket-1B" / "snapshots" / ("ab" * 20), checkpoints.LLAMA, []
    )
    assert find_model(str(snapshot)).id == "rocket-1b"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        find_model("~/tiny-llama-(v2)" if (tmp_path / "tiny-llama-(v2)").exists() else "~/Tiny Llama (v2)").id
        == "tiny-llama-v2"
    )
    monkeypatch.chdir(tmp_path / "Tiny Llama (v2)")
    assert find_model(".").id == find_model("config.json").id == "tiny-llama-v2"


def test_a_local_folder_comes_before_a_hub_name_and_after_an_id(
    llama_folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    llama_folder("meta-llama/Llama-3.1-8B")
    llama_folder("llama-3.1-8b")
    monkeypatch.chdir(tmp_path)
    assert find_model("meta-llama/Llama-3.1-8B").num_layers == 2
    assert find_model("llama-3.1-8b").num_layers == 32
    assert find_model("./llama-3.1-8b").num_layers == 2


def test_a_path_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("./none", "none.json", "none.yaml", "none.safetensors", "~/none-such-folder", "/none/such"):
        with pytest.raises(SpecError, match="no such file"):
            find_model(path)
    with pytest.raises(UnknownNameError) as caught:
        find_model("acme/Rocket-7B")
    assert "--hub" in (caught.value.hint or "")
    with pytest.raises(UnknownNameError) as caught:
        find_model("rocket-7b")
    assert "--hub" not in (caught.value.hint or "")


def test_a_folder_without_a_configuration_says_what_to_name(tmp_path: Path, llama_folder: Folder) -> None:
    (tmp_path / "quantised.gguf").write_bytes(b"GGUF")
    with pytest.raises(SpecError) as caught:
        find_model(f"{tmp_path}/")
    assert "quantised.gguf" in (caught.value.hint or "")
    nested = llama_folder("outer/inner").parent
    with pytest.raises(SpecError) as caught:
        find_model(str(nested))
    assert "inner" in (caught.value.hint or "")


# ---- what is refused, and the way out ----


def write(path: Path, config: dict[str, Any]) -> str:
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")
    return str(path)


def test_an_unknown_family_and_the_way_past_it(tmp_path: Path, checkpoints: Any) -> None:
    path = write(
        tmp_path / "odd.json", checkpoints.LLAMA | {"model_type": "rocket", "ring_window": 7, "ssm_cfg": {"d": 1}}
    )
    with pytest.raises(SpecError) as caught:
        find_model(path)
    assert "ring_window" in caught.value.message
    assert "ssm_cfg" in caught.value.message
    assert "--assume llama-like" in (caught.value.hint or "")
    model = find_model(path, assume="llama-like")
    assert mixers(model) == mixers(find_model(write(tmp_path / "plain.json", checkpoints.LLAMA)))
    assert model.confidence == "derived"
    assert any("llama-like" in warning for warning in plan(model, engine="generic").warnings)
    with pytest.raises(UnknownNameError, match="assumption"):
        find_model(path, assume="mamba-like")


def test_an_assumption_that_is_not_needed_changes_nothing(llama_folder: Folder) -> None:
    folder = str(llama_folder())
    assert find_model(folder, assume="llama-like") == find_model(folder)


@pytest.mark.parametrize(
    ("changes", "key", "word"),
    [
        ({"hidden_size": "64"}, "hidden_size", "hidden_size"), ({"num_attention_heads": 7}, "hidden_size",
        "7 attention heads"),
        ({"vocab_size": 10**15}, "vocab_size", "vocab_size"), ({"num_hidden_layers": 0}, None, "0 layers"),
        ({"num_hidden_layers": 10**9}, None, "layers"), ({"torch_dtype": "int3"}, None, "dtype"),
        ({"layer_types": ["full_attention"], "sliding_window": 8}, "layer_types", "layer_types"),
        ({"layer_types": ["full_attention", "ring"]}, "layer_types", "ring"),
    ],
)  # fmt: skip
def test_wrong_values_name_file_and_line(
    tmp_path: Path, checkpoints: Any, changes: dict[str, Any], key: str | None, word: str
) -> None:
    path = write(tmp_path / "c.json", checkpoints.LLAMA | changes)
    with pytest.raises(SpecError, match=word) as caught:
        find_model(path)
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    at = next((f":{i}" for i, line in enumerate(lines, 1) if key and f'"{key}"' in line), "")
    assert caught.value.where == f"{path}{at}"


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"peft_type": "LORA", "base_model_name_or_path": "x"}, "adapter"),
        ({"_class_name": "Flux"}, "diffusion"),
        ([], "JSON object"),
    ],
)
def test_other_kinds_of_json(tmp_path: Path, config: Any, word: str) -> None:
    with pytest.raises(SpecError, match=word):
        find_model(write(tmp_path / "x.json", config))


# ---- writing a spec ----


def test_an_imported_spec_reads_back_and_says_what_it_rests_on(llama_folder: Folder, tmp_path: Path) -> None:
    folder = llama_folder(shards=2, sliding_window=128, sliding_window_pattern=2)
    found = read_model(str(folder))
    text = spec_file(found, str(folder))
    assert "#   sliding_window: 128" in text
    assert "#   sliding_window_pattern: 2" in text
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    assert find_model(str(path)) == found.model
    assert plan(str(path), gpu="h100-sxm").to_dict()["memory"] == plan(str(folder), gpu="h100-sxm").to_dict()["memory"]


@pytest.mark.parametrize("fact", [*FACTS.values()][::17], ids=[*FACTS][::17])
def test_configurations_import_to_specs_without_errors(fact: dict[str, Any], tmp_path: Path) -> None:
    from kvplan.sources.yaml_file import lint_model_file

    source = write(tmp_path / f"{fact['id']}.json", fact["config"])
    path = tmp_path / "spec.yaml"
    path.write_text(spec_file(read_model(source), source), encoding="utf-8")
    assert [finding for finding in lint_model_file(path) if finding.level == "error"] == []
