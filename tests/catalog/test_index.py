"""The generated index and page agree with the files, and a lookup reads one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvplan.catalog import files, gpu_ids, load_gpu, load_model, model_ids
from kvplan.catalog._names import GPU_NAMES, GPUS, MODEL_NAMES, MODELS, VARIANTS
from kvplan.errors import SpecError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("script", ["make_index.py", "make_catalog_page.py"])
def test_generated_files_are_up_to_date(script: str) -> None:
    command = [sys.executable, f"scripts/{script}", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_index_names_only_what_is_there() -> None:
    for names, ids in ((MODEL_NAMES, MODELS), (GPU_NAMES, GPUS)):
        for owner in names.values():
            for one in (owner,) if isinstance(owner, str) else owner:
                assert one in ids
    assert not MODEL_NAMES.keys() & MODELS.keys()
    assert {model for model, _ in VARIANTS.values()} <= MODELS.keys()


def test_every_model_loads_and_carries_its_id() -> None:
    for name in model_ids():
        model = load_model(name)
        assert model.id == name
        assert model.layers


def test_every_accelerator_loads_and_carries_its_id() -> None:
    for name in gpu_ids():
        assert load_gpu(name).id == name


def test_one_lookup_reads_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = files.read_yaml

    def spy(path: str) -> Any:
        read.append(Path(path).name)
        return original(path)

    monkeypatch.setattr(files, "read_yaml", spy)
    load_model("meta-llama/Llama-3.1-8B-Instruct")
    load_gpu("H100")
    assert read == ["llama-3.1-8b.yaml", "h100-sxm.yaml"]


def test_models_of_a_wheel_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "site" / "kvplan"
    package.mkdir(parents=True)
    monkeypatch.setattr(files, "_PACKAGE", str(package))
    assert Path(files.models_folder()) == tmp_path / "site" / "models"
    (package / "_data" / "models").mkdir(parents=True)
    assert Path(files.models_folder()) == package / "_data" / "models"


def test_yaml_is_read_without_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    with_libyaml = load_gpu("h100-sxm")
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert load_gpu("h100-sxm") == with_libyaml


def test_a_broken_installation_says_so(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        files.read_yaml(str(tmp_path / "gone.yaml"))
    (tmp_path / "bad.yaml").write_text("a: [1", encoding="utf-8")
    with pytest.raises(SpecError, match="no YAML"):
        files.read_yaml(str(tmp_path / "bad.yaml"))


def test_a_lookup_loads_nothing_heavy() -> None:
    heavy = {"pydantic", "rich", "numpy", "torch", "asyncio", "http.client", "urllib.request", "importlib.metadata"}
    code = (
        "import sys; from kvplan.catalog import load_gpu, load_model; load_model('llama-3.1-8b'); load_gpu('H100');"
        f"print(sorted({heavy!r} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
