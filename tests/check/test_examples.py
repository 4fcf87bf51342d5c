"""The examples: real manifests, each with a variant that keeps its promises and one that does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from kvplan import plan

from .conftest import findings, result

ROOT = Path(__file__).parent.parent.parent / "examples"
FOLDERS = {
    "vllm-kubernetes": ("deployment.yaml", "deployment-broken.yaml", "--max-model-len"),
    "sglang-compose": ("compose.yaml", "compose-broken.yaml", "--mem-fraction-static"),
    "vllm-helm": ("values.yaml", "values-broken.yaml", "--max-model-len"),
    "llama-server-unit": ("llama-server.service", "llama-server-broken.service", "--ctx-size"),
}  # fmt: skip


def test_every_example_is_tested() -> None:
    ruled = {path.name for path in ROOT.iterdir() if (path / "kvplan.yaml").is_file()}
    assert ruled == set(FOLDERS)
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} - ruled == {"measured"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rules_are_the_same_and_one_change_breaks_them(folder: str) -> None:
    good, bad, _ = FOLDERS[folder]
    texts = [(ROOT / folder / name).read_text() for name in ("kvplan.yaml", "kvplan-broken.yaml")]
    first, second = (yaml.safe_load(text.replace(bad, good)) for text in texts)
    assert first == second
    lines = [(ROOT / folder / name).read_text().splitlines() for name in (good, bad)]
    assert len(lines[0]) == len(lines[1])
    assert 1 <= sum(a != b for a, b in zip(*lines, strict=True)) <= 2


@pytest.mark.parametrize("folder", FOLDERS)
def test_one_holds_and_the_other_is_broken(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / folder)
    good, bad = result(), result("kvplan-broken.yaml")
    assert good["summary"]["errors"] == good["summary"]["warnings"] == 0
    assert bad["summary"]["errors"] >= 1
    broken = [f for f in findings(bad) if not f["pass"]]
    assert all(f["fix"] and f["fix"].startswith(FOLDERS[folder][2]) for f in broken)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_change_it_names_passes(folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT / folder)
    broken = [f for f in findings(result("kvplan-broken.yaml")) if not f["pass"]]
    rules = yaml.safe_load((ROOT / folder / "kvplan-broken.yaml").read_text())
    ((name, deployment),) = rules["deployments"].items()
    deployment["from"] = os.path.join(ROOT, folder, deployment["from"])
    keys = {"--context-length": "max-model-len"}
    for found in broken:
        flag, value = found["fix"].split()
        changed = {**rules, "deployments": {name: {**deployment, keys.get(flag, flag[2:]): value}}}
        (tmp_path / "kvplan.yaml").write_text(yaml.safe_dump(changed))
        monkeypatch.chdir(tmp_path)
        again = [f for f in findings(result()) if f["rule"] == found["rule"] and f["workload"] == found["workload"]]
        assert [f["pass"] for f in again] == [True], found["fix"]


def test_the_values_are_those_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "vllm-kubernetes")
    found = result()["deployments"][0]
    figures = {(f["workload"], f["metric"]): f for f in found["figures"]}
    made = plan("deployment.yaml#vllm", prompt_tokens=2048, output_tokens=500, concurrency=32)
    assert made.capacity is not None
    assert made.decode is not None
    assert figures["chat", "capacity.max_concurrency"]["value"] == made.capacity.max_concurrency
    assert figures["chat", "capacity.requests_at(32K)"]["value"] == dict(made.capacity.at)[32768]
    rate = figures["chat", "decode.tokens_per_second_per_request"]
    assert rate["value"] == made.decode.tokens_per_second_per_request
    assert rate["low"] < rate["value"] < rate["high"]


def test_the_page_shows_the_example() -> None:
    page = (ROOT.parent / "docs" / "check.md").read_text()
    shown = page.partition("```yaml\n")[2].partition("```")[0]
    assert yaml.safe_load(shown) == yaml.safe_load((ROOT / "vllm-kubernetes" / "kvplan.yaml").read_text())
    for key in ("include", "environment", "defaults", "workloads", "rules", "deployments"):
        assert f"| `{key}` |" in page
