"""``kvplan check`` and ``kvplan diff`` as they are typed: files found, statuses, outputs, and nothing half written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from .conftest import Run, one_line_error
from .test_startup import HEAVY, loaded

SCHEMAS = Path(__file__).parent.parent.parent / "docs" / "schemas"
GOOD = """schema: kvplan.rules/1
rules:
  - verdict.fits == true
  - {rule: capacity.max_concurrency >= 10000, level: warn}
deployments:
  a: {model: llama-3.1-8b, gpu: h100-sxm}
"""
BAD = GOOD.replace("level: warn", "level: error")
BROKEN = GOOD.replace("verdict.fits", "verdict.fit").replace("llama-3.1-8b", "llama-9")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kvplan.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_statuses(run: Run, here: Path) -> None:
    assert run("check").status == 0
    assert run("check", "--strict").status == 1
    (here / "bad.yaml").write_text(BAD)
    done = run("check", "bad.yaml")
    assert done.status == 1
    assert "bad.yaml:4:12: error: a: capacity.max_concurrency is " in done.out
    assert run("check", "bad.yaml", "--exit-zero").status == 0
    (here / "broken.yaml").write_text(BROKEN)
    assert run("check", "broken.yaml", "--exit-zero").status == 2


def test_the_file_is_looked_for_upwards(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = here / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    done = run("check", "--json")
    assert done.status == 0
    assert json.loads(done.out)["file"] == "../../kvplan.yaml"
    assert json.loads(run("check", "../..", "--json").out)["file"] == "../../kvplan.yaml"
    message, _ = one_line_error(run("check", "nothing.yaml"))
    assert message == "nothing.yaml: no such file"
    message, _ = one_line_error(run("check", "."))
    assert message == ".: no kvplan.yaml in it"


def test_without_a_file_the_hint_writes_one(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kvplan.check.rulefile.find_file", lambda: None)
    _, hint = one_line_error(run("check"))
    assert "kvplan check --init" in hint
    assert run("check", "--init").status == 0
    assert run("check", "kvplan.yaml").status == 0
    message, _ = one_line_error(run("check", "--init"))
    assert "is there already" in message


def test_a_broken_file_says_everything_and_writes_nothing(run: Run, here: Path) -> None:
    (here / "broken.yaml").write_text(BROKEN)
    before = sorted(os.listdir(here))
    done = run(
        "check", "broken.yaml", "-o", "out.json", "--write-baseline", "base.json", "--report", "sarif=x.sarif", "--lock"
    )  # fmt: skip
    assert (done.status, done.out) == (2, "")
    lines = done.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: broken.yaml:3:5: there is no metric 'verdict.fit'")
    assert lines[1].startswith("error: broken.yaml:6:14: unknown model 'llama-9'")
    assert sorted(os.listdir(here)) == before


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("text", "kvplan check: 1 deployment"), ("markdown", "## kvplan check: "),
        ("json", '{\n  "schema": "kvplan.check/1"'),
        ("github", "::warning file=kvplan.yaml,line=4,col=12,"), ("junit", "<?xml"), ("sarif", '{\n  "$schema"'),
        ("gitlab", "[\n"), ("table", "kvplan check: "),
    ],
)  # fmt: skip
def test_every_format(run: Run, here: Path, name: str, start: str) -> None:
    done = run("check", "--format", name)
    assert done.status == 0
    assert done.out.startswith(start)
    assert run("check", "--format", name, "-o", f"out.{name}").status == 0
    assert (here / f"out.{name}").read_text().startswith(start)
    assert run("check", "--report", f"{name}=again", "-q").status == (2 if name == "table" else 0)


def test_reports_are_of_the_one_result(run: Run, here: Path) -> None:
    done = run("check", "--format", "github", "--report", "markdown=s.md", "--report", "junit=j.xml", "-q")
    assert done.err == ""
    assert (here / "s.md").read_text().startswith("## kvplan check: 1 deployment, 2 rules, none broken, 1 warning")
    assert (here / "j.xml").read_text().count("<testcase") == 2
    for text in ("sarif", "sarif=", "odd=x"):
        one_line_error(run("check", "--report", text))


def test_a_report_that_cannot_be_written_is_an_error(run: Run, here: Path) -> None:
    message, _ = one_line_error(run("check", "--report", "sarif=none/such/x.sarif"))
    assert "cannot write none/such/x.sarif" in message


def test_baseline_and_diff(run: Run, here: Path) -> None:
    assert run("check", "--write-baseline", "old.json", "-q").status == 0
    (here / "kvplan.yaml").write_text(
        GOOD.replace("gpu: h100-sxm", "gpu: h100-sxm, max-model-len: 8K").replace(
            "verdict.fits == true", "capacity.max_concurrency <= baseline + 5 %"
        )
    )
    done = run("check", "--baseline", "old.json")
    assert done.status == 1
    assert "Against the baseline" in done.out
    done = run("check")
    assert done.status == 0
    assert "--baseline FILE gives one" in done.err
    assert run("check", "--write-baseline", "new.json", "--baseline", "old.json", "-q").status == 1
    done = run("diff", "old.json", "new.json")
    assert done.status == 1
    assert "kvplan diff: 1 changed, 1 rule broken" in done.out
    assert run("diff", "old.json", "new.json", "--exit-zero").status == 0
    assert run("diff", "new.json", "old.json").status == 0
    assert json.loads(run("diff", "old.json", "old.json", "--json").out)["summary"]["same"] == 1
    one_line_error(run("diff", "old.json", "kvplan.yaml"))
    one_line_error(run("check", "--baseline", "kvplan.yaml"))


def test_the_lock_is_written_and_held(run: Run, here: Path) -> None:
    assert run("check", "--lock").status == 0
    lock = here / "kvplan.lock"
    first = lock.read_text()
    assert run("check").status == 0
    lock.write_text(first.replace('"sha256": "', '"sha256": "00', 1))
    done = run("check")
    assert done.status == 1
    assert "is not as it was locked" in done.out
    assert run("check", "--lock", "-q").status == 0
    assert lock.read_text() == first
    lock.write_text("{")
    message, hint = one_line_error(run("check"))
    assert "kvplan.lock" in message
    assert "--lock" in hint


def test_schema_and_metrics_are_printed(run: Run) -> None:
    schema = json.loads(run("check", "--schema").out)
    assert schema["properties"]["schema"] == {"const": "kvplan.rules/1", "description": "Version of this file format."}
    assert "tensor-parallel-size" in schema["$defs"]["deployment"]["properties"]
    assert "capacity.max_concurrency" in run("check", "--metrics").out
    names = [m["name"] for m in json.loads(run("check", "--metrics", "--json").out)["metrics"]]
    assert {"verdict.fits", "capacity.requests_at(TOKENS)", "cost.per_million_output_tokens"} <= set(names)


def test_warnings_about_a_deployment_reach_the_reader(run: Run, here: Path) -> None:
    (here / "kvplan.yaml").write_text(
        "schema: kvplan.rules/1\nrules: [verdict.fits == true]\ndeployments:\n"
        "  a: {command: vllm serve llama-3.1-8b --no-such-flag, gpu: h100-sxm}\n"
    )
    done = run("check")
    assert "warning: a: command line: unknown to vllm as far as kvplan knows: --no-such-flag" in done.err
    assert run("check", "-q").err == ""


def test_a_check_loads_nothing_heavy(spawn: Run, here: Path) -> None:
    status, modules = loaded(spawn, "check", str(here / "kvplan.yaml"), "--json")
    assert status == 0
    assert modules.isdisjoint({*HEAVY, "rich", "hashlib._none"})


def test_paths_in_reports_start_from_the_repository(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / ".git").mkdir()
    inner = here / "services" / "llm"
    inner.mkdir(parents=True)
    (inner / "kvplan.yaml").write_text(BAD)
    monkeypatch.chdir(inner)
    assert "file=services/llm/kvplan.yaml,line=4" in run("check", "--format", "github").out
    assert json.loads(run("check", "--format", "gitlab").out)[0]["location"]["path"] == "services/llm/kvplan.yaml"
    assert "\nkvplan.yaml:4:12: error: " in run("check").out


def test_reports_are_written_all_or_none(run: Run, here: Path) -> None:
    before = sorted(os.listdir(here))
    run("check", "--report", "markdown=s.md", "--report", "sarif=none/such/x.sarif", "-o", "out.txt")
    assert sorted(os.listdir(here)) == before
    for flags in (("-o", "F", "--report", "markdown=F"), ("--write-baseline", "F", "--report", "json=./F")):
        message, _ = one_line_error(run("check", *flags))
        assert message.endswith("F would be written twice")
    assert sorted(os.listdir(here)) == before
    assert run("check", "--report", "markdown=s.md", "-o", "out.txt", "-q").status == 0
    assert (here / "s.md").exists()
    assert (here / "out.txt").exists()


def test_a_gate_that_holds_nothing_says_so(run: Run, here: Path) -> None:
    (here / "kvplan.yaml").write_text("schema: kvplan.rules/1\ndeployments: {}\n")
    assert "the file has no deployments: nothing is checked" in run("check").err
    (here / "kvplan.yaml").write_text(
        "schema: kvplan.rules/1\ndeployments: {a: {model: llama-3.1-8b, gpu: h100-sxm}}\n"
    )
    assert "no deployment has a rule: nothing is promised" in run("check").err


def test_the_note_of_init_names_a_file_that_check_would_not_find(run: Run, here: Path) -> None:
    (here / "sub").mkdir()
    assert "`kvplan check sub/out.yaml` holds it" in run("check", "--init", "sub/out.yaml").err
    (here / "kvplan.yaml").unlink()
    assert "`kvplan check` holds it" in run("check", "--init").err


def test_a_baseline_whose_name_no_file_can_have(run: Run) -> None:
    done = run("check", "--write-baseline", "a\0b.json")
    assert done.status == 2
    assert done.err.startswith("error: ")
    assert "internal" not in done.err


def test_a_file_that_cannot_be_used_is_annotated(run: Run, here: Path) -> None:
    (here / "kvplan.yaml").write_text(BROKEN)
    done = run("check", "--format", "github")
    assert done.status == 2
    lines = done.out.splitlines()
    assert [line.partition(",col=")[0] for line in lines] == [
        "::error file=kvplan.yaml,line=3", "::error file=kvplan.yaml,line=6"
    ]  # fmt: skip
    assert done.err.count("error: kvplan.yaml:") == 2
    assert run("check", "--format", "github", "-o", "found.txt").status == 2
    assert not (here / "found.txt").exists()


def test_a_slip_of_a_flag_is_no_deployment(run: Run, here: Path) -> None:
    command = "vllm serve meta-llama/Llama-3.1-8B --kv-cache-dtyp fp8"
    (here / "kvplan.yaml").write_text(GOOD.replace("{model: llama-3.1-8b,", f"{{command: {command},"))
    done = run("check", "--format", "github")
    assert done.status == 2
    assert "line=6" in done.out
    assert "did you mean --kv-cache-dtype" in done.out


def test_the_metrics_are_as_published(run: Run, here: Path) -> None:
    schema = json.loads((SCHEMAS / "kvplan.metrics-1.json").read_text())
    found = json.loads(run("check", "--metrics", "--json").out)
    assert not list(Draft202012Validator(schema).iter_errors(found))
    assert {"name": "capacity.max_concurrency", "kind": "number"} in found["metrics"]


@pytest.mark.parametrize(("file", "begins"), [("result.sarif", "{"), ("junit.xml", "<?xml")])
def test_the_suffix_of_a_file_says_its_format(run: Run, here: Path, file: str, begins: str) -> None:
    assert run("check", "-o", file).status == 0
    text = (here / file).read_text()
    assert text.startswith(begins)
    assert ('"version": "2.1.0"' in text) == (file == "result.sarif")


@pytest.mark.parametrize("words", [("--metrics", "--format", "gitlab"), ("--schema", "--format", "github")])
def test_a_format_of_results_describes_nothing(words: tuple[str, ...], run: Run) -> None:
    done = run("check", *words)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: --format {words[-1]}: holds the results of a check")
