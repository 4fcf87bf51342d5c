"""Baselines, comparisons, the lock and the first file: what a result is good for later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from kvplan.check import lock as locks
from kvplan.check.baseline import diff, read_result
from kvplan.check.discover import find_starts, starter
from kvplan.check.hashes import spec_hash
from kvplan.check.schema import json_schema
from kvplan.cli.check import OPTIONS
from kvplan.errors import InputError
from kvplan.render.jsonout import write as as_json
from kvplan.sources import find_gpu, find_model

from .conftest import HEAD, Write, findings, result, run

ROOT = Path(__file__).parent.parent.parent
MANIFESTS = ROOT / "tests" / "data" / "manifests"


def file_of(length: int, rules: str, name: str = "a", more: str = "") -> str:
    said = f"{{model: llama-3.1-8b, gpu: h100-sxm, max-model-len: {length}}}"
    return f"rules: [{rules}]\ndeployments:\n  {name}: {said}\n{more}"


CAPACITY = "capacity.max_concurrency >= baseline - 5 %"


def test_no_worse_than_before_by_more_than_five_per_cent(write: Write) -> None:
    write(file_of(32768, CAPACITY))
    (skipped,) = findings(result())
    assert (skipped["status"], skipped["pass"], skipped["value"]) == ("skipped", True, None)
    old = result()
    was = old["deployments"][0]["figures"][0]["low"]
    for length, passes in ((32768, True), (34000, True), (34600, False), (65536, False)):
        write(file_of(length, CAPACITY))
        (found,) = findings(result(old=old))
        assert found["baseline"] == was
        assert found["limit"] == pytest.approx(was * 0.95)
        assert found["pass"] == passes == (found["value"] >= was * 0.95), length
    assert "(baseline - 5 %)" in found["message"]


def test_a_baseline_may_be_off_by_an_amount_or_not_at_all(write: Write) -> None:
    write(file_of(32768, "kv.bytes_per_sequence <= 1 TiB"))
    old = result()
    size = old["deployments"][0]["figures"][0]["value"]
    for rule, limit in (
        ("kv.bytes_per_sequence <= baseline", size),
        ("kv.bytes_per_sequence <= baseline + 1 GiB", size + (1 << 30)),
        ("kv.bytes_per_sequence == baseline", size),
    ):
        write(file_of(32768 + 4096, rule))
        (found,) = findings(result(old=old))
        assert found["limit"] == limit
        assert found["pass"] == (rule.endswith("GiB"))


def test_new_and_removed_deployments(write: Write) -> None:
    write(file_of(32768, "capacity.max_concurrency >= 1", "gone"))
    old = result()
    write(file_of(32768, CAPACITY, "here"))
    found = result(old=old)
    (new,) = findings(found)
    assert (new["status"], new["pass"], new["baseline"]) == ("new", True, None)
    assert found["removed"] == ["gone"]
    assert (found["summary"]["new"], found["summary"]["removed"], found["summary"]["errors"]) == (1, 1, 0)


def test_two_results_side_by_side(write: Write) -> None:
    write(file_of(32768, "capacity.max_concurrency >= 10", more="  b: {model: llama-3.1-8b, gpu: h100-sxm}\n"))
    old = result()
    write(file_of(65536, "capacity.max_concurrency >= 10", more="  c: {model: llama-3.1-8b, gpu: h100-sxm}\n"))
    new = result()
    found = diff(old, new)
    assert {d["name"]: d["status"] for d in found["deployments"]} == {"a": "changed", "b": "removed", "c": "new"}
    a, _, c = found["deployments"]
    (figure,) = a["figures"]
    assert figure["new"] == pytest.approx(figure["old"] / 2, rel=1e-3)
    assert figure["difference"] == figure["new"] - figure["old"]
    assert figure["ratio"] == pytest.approx(-0.5, rel=1e-3)
    assert [len(d["broken"]) for d in (a, c)] == [1, 1]
    assert found["summary"] == {"new": 1, "removed": 1, "changed": 1, "same": 0, "broken": 2, "mended": 0}
    back = diff(new, old)
    assert (back["summary"]["mended"], back["summary"]["new"]) == (1, 1)
    assert diff(old, old)["summary"] == {"new": 0, "removed": 0, "changed": 0, "same": 2, "broken": 0, "mended": 0}


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", '{"schema": "kvplan.plan/1"}', '{"schema": "kvplan.check/1"}',
        '{"schema": "kvplan.check/1", "deployments": [{"name": 1}]}', "\x00", '"' + "[" * 5000,
        '{"schema": "kvplan.check/1", "deployments": [{"name": "a", "figures": [{"metric": "x"}], "findings": []}]}',
    ],
)  # fmt: skip
def test_what_is_no_result_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_result(str(path), "--baseline")
    assert caught.value.where == "--baseline"
    with pytest.raises(InputError):
        read_result(str(tmp_path / "none.json"), "--baseline")


def test_the_same_file_gives_the_same_bytes(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = file_of(65536, "capacity.max_concurrency >= 100, decode.tokens_per_second >= 1")
    write(text)
    first = as_json(result())
    other = tmp_path / "somewhere" / "else"
    other.mkdir(parents=True)
    (other / "kvplan.yaml").write_text(HEAD + text)
    monkeypatch.chdir(other)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert as_json(result()) == first
    assert str(tmp_path) not in first
    found = json.loads(first)
    assert {"kvplan", "catalog"} <= set(found)
    assert len(found["catalog"]["version"]) == 12
    deployment = found["deployments"][0]
    assert set(deployment["defaults"]) >= {"block_size", "max_num_seqs", "gpu_memory_utilization"}
    assert all(deployment["defaults"].values())
    assert "max_model_len" not in deployment["defaults"]


def test_the_lock_holds_specs_and_engines(write: Write) -> None:
    write(file_of(32768, "verdict.fits == true", more="  b: {model: qwen3-8b, gpu: h100-sxm}\n"))
    checked = run()
    lock = locks.to_dict(checked)
    assert locks.differences(checked, lock, "kvplan.lock") == []
    entry = lock["deployments"]["a"]
    assert entry["model"]["sha256"] == spec_hash(find_model("llama-3.1-8b"))
    entry["model"]["sha256"] = "0" * 64
    for name in "ab":
        lock["deployments"][name]["gpu"]["sha256"] = "1" * 64
    found = locks.differences(checked, lock, "kvplan.lock")
    assert [(f["name"], f["deployments"]) for f in found] == [("a", 1), ("a", 2)]
    assert "model llama-3.1-8b is not as it was locked (000000000000 ->" in found[0]["message"]
    lock = locks.to_dict(checked)
    lock["deployments"]["a"]["engine"] = "vllm@0.1"
    del lock["deployments"]["b"]
    messages = [f["message"] for f in locks.differences(checked, lock, "kvplan.lock")]
    assert any("locked is vllm@0.1" in m for m in messages)
    assert any("b: not in the lock file" in m for m in messages)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "x"}', '{"schema": "kvplan.lock/1", "deployments": 3}'])
def test_a_lock_that_cannot_be_used_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kvplan.lock"
    path.write_text(content)
    with pytest.raises(InputError):
        locks.read_lock(str(path))


def test_a_hash_follows_the_figures_and_not_the_words() -> None:
    from dataclasses import replace

    model, gpu = find_model("llama-3.1-8b"), find_gpu("h100-sxm")
    assert spec_hash(model) == spec_hash(replace(model, notes=("new",), name="another", license="x", aliases=("y",)))
    assert spec_hash(model) != spec_hash(replace(model, vocab_size=model.vocab_size + 1))
    assert spec_hash(model) != spec_hash(replace(model, layers=model.layers[:-1]))
    assert spec_hash(model) != spec_hash(find_model("llama-3-8b"))
    assert spec_hash(gpu) == spec_hash(replace(gpu, notes=("new",), torch_total_source="elsewhere"))
    assert spec_hash(gpu) != spec_hash(replace(gpu, torch_total_bytes=1 << 36))


def test_the_first_file_names_what_starts_an_engine_and_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy = tmp_path / "deploy"
    deploy.mkdir()
    for path in MANIFESTS.iterdir():
        (deploy / path.name).write_bytes(path.read_bytes())
    (tmp_path / "unrelated.yaml").write_text("a: 1\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.sh").write_text("vllm serve llama-3.1-8b\n")
    (tmp_path / "broken.yaml").write_text("vllm: [\n")
    (tmp_path / "huge.sh").write_text("vllm serve llama-3.1-405b\n")
    monkeypatch.chdir(tmp_path)
    found = find_starts(".")
    paths = [item.path for item in found]
    assert "deploy/deployment.yaml" in paths
    assert "deploy/compose.yaml#local" in paths
    assert not any("hidden" in path or "broken" in path or "unrelated" in path for path in paths)
    assert any(item.path == "huge.sh" and item.problem for item in found)
    text = starter(found)
    (tmp_path / "kvplan.yaml").write_text(text)
    assert "# huge.sh: " in text
    checked = result()
    assert checked["summary"]["errors"] == 0
    assert checked["summary"]["deployments"] == sum(not item.problem for item in found) > 10


def test_an_empty_folder_gets_one_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvplan.yaml").write_text(starter(find_starts(".")))
    found = result()
    assert [d["name"] for d in found["deployments"]] == ["example"]
    assert found["summary"]["errors"] == found["summary"]["warnings"] == 0


SCHEMA: dict[str, Any] = json_schema(OPTIONS)
FILES = sorted([*(ROOT / "examples").glob("*/kvplan*.yaml")])


def test_the_published_schema_is_this_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    published = json.loads((ROOT / "docs" / "schemas" / "kvplan.rules-1.json").read_text())
    assert published == SCHEMA, "run: kvplan check --schema -o docs/schemas/kvplan.rules-1.json"


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_examples_are_valid_to_an_editor(path: Path) -> None:
    assert not list(Draft202012Validator(SCHEMA).iter_errors(yaml.safe_load(path.read_text())))


@pytest.mark.parametrize(
    "text",
    [
        "nonsense: 1", "rules: [capacity]", "rules: [{level: warn}]", "rules: [{rule: verdict.fits == true, level: x}]",
        "deployments: {a: {model: m, tpp: 2}}", "deployments: {a: {model: m, command: c}}", "deployments: {a: {}}",
        "deployments: [a]", "defaults: {hub: true}", "workloads: {a: {tp: 2}}", "deployments: {'': {model: m}}",
        "defaults: {enforce-eager: 3}", "defaults: {max-num-seqs: 0}", "include: {a: b}",
        "deployments: {a: {model: 3}}",
    ],
)  # fmt: skip
def test_the_schema_is_strict_where_the_reader_is(write: Write, text: str) -> None:
    from kvplan.check.rulefile import read_rule_file

    more = "" if "deployments" in text else "\ndeployments: {a: {model: m}}"
    assert list(Draft202012Validator(SCHEMA).iter_errors(yaml.safe_load(f"{HEAD}{text}{more}")))
    write(f"{text}{more}\n")
    assert read_rule_file("kvplan.yaml", OPTIONS, {})[1]


def test_a_figure_that_the_baseline_lacks_is_called_that(write: Write) -> None:
    write(file_of(32768, "verdict.fits == true"))
    old = result()
    more = "  b: {model: qwen3-8b, gpu: h100-sxm}\n"
    write(file_of(32768, "capacity.max_concurrency >= baseline", more=more))
    found = result(old=old)
    assert [f["status"] for d in found["deployments"] for f in d["findings"]][::1] == ["absent", "new"]
    assert (found["summary"]["absent"], found["summary"]["new"]) == (1, 1)


def test_the_warnings_of_the_plan_are_in_the_result(write: Write) -> None:
    import kvplan

    write("""
        rules: [decode.tokens_per_second >= 1]
        deployments: {a: {model: llama-3.1-8b, gpu: mi210, tp: 2}}
    """)
    (deployment,) = result()["deployments"]
    plan = kvplan.plan("llama-3.1-8b", gpu="mi210", tensor_parallel_size=2)
    assert any("is not measured" in text for text in plan.warnings)
    assert set(plan.warnings) <= set(deployment["warnings"])
