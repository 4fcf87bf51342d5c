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


def added(tmp_path: Path, text: str, folder: str = "models") -> Any:
    """What the index says with one more file: (status, output), the trees copied by links."""
    import make_index

    roots = {"models": ROOT / "models", "gpus": ROOT / "kvplan" / "data" / "gpus"}
    for name, root in roots.items():
        (tmp_path / name).mkdir()
        for one in root.iterdir():
            (tmp_path / name / one.name).symlink_to(one)
    (tmp_path / folder / "mine").mkdir()
    (tmp_path / folder / "mine" / "my-own.yaml").write_text(text, encoding="utf-8")
    extra = yaml.safe_load((ROOT / "scripts" / "model_names.yaml").read_text(encoding="utf-8"))
    return make_index.render(tmp_path / "models", tmp_path / "gpus", extra)


MY_GPU = "id: my-own\nname: My Own 48GB\ndatasheet_gb: 48\n"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.mark.usefixtures("scripts")
class TestOneFileMore:
    """A file beside the recorded ones is all that a model or an accelerator takes."""

    def test_a_model(self, tmp_path: Path) -> None:
        made = added(tmp_path, "id: my-own\nrepo: me/My-Own\n")
        assert '"my-own": "mine me"' in made

    def test_an_accelerator(self, tmp_path: Path) -> None:
        made = added(tmp_path, MY_GPU + "aliases: [Mine]\n", "gpus")
        assert '"my-own": "mine 48"' in made
        assert '"mine": "my-own"' in made

    @pytest.mark.parametrize("folder", ["models", "gpus"])
    def test_an_id_that_is_not_the_file_name(self, tmp_path: Path, folder: str) -> None:
        with pytest.raises(SystemExit, match=r"its id is other: call the file other\.yaml"):
            added(tmp_path, "id: other\n", folder)

    @pytest.mark.parametrize("alias", ["H200", "h100-sxm", "NVIDIA L40S", "NVIDIA L4", "RTX 4090"])
    def test_an_alias_that_is_anothers_name(self, tmp_path: Path, alias: str) -> None:
        with pytest.raises(SystemExit, match="my-own"):
            added(tmp_path, f"{MY_GPU}aliases: [{alias}]\n", "gpus")


@pytest.mark.usefixtures("scripts")
def test_all_scripts_are_run() -> None:
    import make_all

    names = make_all.every()
    assert len(names) == len(set(names))
    assert set(names) == {path.stem for path in (ROOT / "scripts").glob("make_*.py")} - {"make_all"}
    assert names.index("make_index") < names.index("make_summary") < names.index("make_catalog_page")
    assert set(make_all.CATALOG) <= set(names)
