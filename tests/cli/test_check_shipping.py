"""The action, the hook and the GitLab job, their scripts run by a shell as their runners do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "vllm-kubernetes"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A checkout of a repository with an example in a folder of it, and `kvplan` on the path."""
    shutil.copytree(EXAMPLE, tmp_path / "repo" / "llm")
    (tmp_path / "repo" / ".git").mkdir()
    tool = tmp_path / "bin" / "kvplan"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvplan "$@"\n')
    tool.chmod(0o755)
    (tmp_path / "temp").mkdir()
    return tmp_path


def shell(script: str, place: Path, folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A script as GitHub's runner starts it for ``shell: bash``."""
    path = place / "temp" / "step.sh"
    path.write_text(script)
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(path)], cwd=folder, text=True, capture_output=True,
        timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        check=False,
    )  # fmt: skip


class Action:
    """The composite action, its steps run one after another."""

    def __init__(self, workspace: Path, **inputs: str) -> None:
        self.place = workspace
        self.action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
        names = {name: entry["default"] for name, entry in self.action["inputs"].items()}
        assert set(inputs) <= {name.replace("-", "_") for name in names}
        self.inputs = {**names, **{name.replace("_", "-"): value for name, value in inputs.items()}}
        self.summary = workspace / "temp" / "summary.md"
        self.summary.touch()

    def filled(self, text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda match: self.inputs[match.group(1)], text)

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        (step,) = [s for s in self.action["runs"]["steps"] if s.get("name") == name]
        folder = self.place / "repo" / self.filled(step.get("working-directory", "."))
        env = {key: self.filled(text) for key, text in step.get("env", {}).items()}
        base = {
            "GITHUB_STEP_SUMMARY": str(self.summary), "RUNNER_TEMP": str(self.place / "temp"),
            "GITHUB_ACTION_PATH": str(ROOT), "PATH": f"{self.place / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        return shell(step["run"], self.place, folder, {**base, **env})


def test_the_action_passes_and_writes_a_summary(workspace: Path) -> None:
    action = Action(workspace, working_directory="llm")
    done = action.step("Check")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "::notice title=kvplan check::1 deployment, 6 rules, none broken\n"
    assert action.summary.read_text().startswith("## kvplan check: 1 deployment, 6 rules, none broken")


def test_the_action_fails_with_annotations_from_the_root(workspace: Path) -> None:
    action = Action(workspace, working_directory="llm", file="kvplan-broken.yaml", sarif="out.sarif", json="out.json")
    done = action.step("Check")
    assert done.returncode == 1
    assert done.stdout.startswith(
        "::error file=llm/kvplan-broken.yaml,line=10,col=5,title=capacity.max_concurrency >= 8::"
    )
    assert "passes" in done.stdout
    assert "BROKEN" in action.summary.read_text()
    assert json.loads((workspace / "repo" / "llm" / "out.sarif").read_text())["version"] == "2.1.0"
    assert json.loads((workspace / "repo" / "llm" / "out.json").read_text())["summary"]["errors"] == 2


def test_the_inputs_of_the_action_become_flags(workspace: Path) -> None:
    broken = {"working_directory": "llm", "file": "kvplan-broken.yaml"}
    assert Action(workspace, **broken, exit_zero="true").step("Check").returncode == 0
    rules = workspace / "repo" / "llm" / "kvplan.yaml"
    rules.write_text(rules.read_text().replace("unused_bytes >= 4 %", "unused_bytes >= 40 %"))
    assert Action(workspace, working_directory="llm").step("Check").returncode == 0
    assert Action(workspace, working_directory="llm", strict="true").step("Check").returncode == 1
    done = Action(workspace, working_directory="llm", baseline="none.json").step("Check")
    assert done.returncode == 2
    assert "--baseline" in done.stderr


def test_the_input_of_the_action_is_no_shell(workspace: Path) -> None:
    done = Action(workspace, working_directory="llm", file='$(touch owned); touch owned "').step("Check")
    assert done.returncode == 2
    assert not list(workspace.rglob("owned"))


def test_every_input_is_used_and_every_expression_is_an_input() -> None:
    text = (ROOT / "action.yml").read_text()
    action = yaml.safe_load(text)
    used = set(re.findall(r"inputs\.([a-z-]+)", text))
    assert used == set(action["inputs"])
    scripts = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    assert not any("${{" in script for script in scripts)  # inputs reach a shell as variables alone


def test_the_install_step_puts_this_version_on_the_path(workspace: Path) -> None:
    """`pip` is a recorder here: what it is asked for is what counts."""
    action = Action(workspace)
    python = workspace / "bin" / "python"
    python.write_text(
        "#!/bin/sh\n"
        'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit 0; fi\n'
        f'echo "$@" >> "{workspace}/asked"\n'
    )
    python.chmod(0o755)
    path = workspace / "temp" / "path"
    (step,) = [s for s in action.action["runs"]["steps"] if s.get("name") == "Install kvplan"]
    env = {
        "RUNNER_TEMP": str(workspace / "temp"), "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_PATH": str(path),
        "PATH": f"{workspace / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    done = shell(step["run"], workspace, workspace / "repo", env)
    assert done.returncode == 0, done.stderr
    assert (workspace / "asked").read_text().split() == [
        "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT),
    ]  # fmt: skip
    assert path.read_text() == f"{workspace}/temp/kvplan/bin\n"


def test_the_gitlab_job(workspace: Path) -> None:
    job = yaml.safe_load((ROOT / "templates" / "kvplan-check.gitlab-ci.yml").read_text())["kvplan-check"]
    folder = workspace / "repo" / "llm"
    tool = folder / ".kvplan-venv" / "bin" / "kvplan"
    tool.parent.mkdir(parents=True)
    shutil.copy(workspace / "bin" / "kvplan", tool)
    (check,) = [line for line in job["script"] if " check " in line]
    assert next(line for line in job["script"] if "pip install" in line).endswith('"$KVPLAN_PACKAGE"')
    variables = {key: str(value) for key, value in job["variables"].items()}
    done = shell(check, workspace, folder, variables)
    assert done.returncode == 0, done.stderr
    done = shell(
        check, workspace, folder, {**variables, "KVPLAN_FILE": "kvplan-broken.yaml", "KVPLAN_FLAGS": "--strict"}
    )
    assert done.returncode == 1
    reports = job["artifacts"]["reports"]
    assert json.loads((folder / reports["codequality"]).read_text())[0]["location"]["lines"] == {"begin": 10}
    assert "<failure" in (folder / reports["junit"]).read_text()
    assert job["artifacts"]["when"] == "always"


def test_the_hook(workspace: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["language"] == "python"
    assert hook["pass_filenames"] is False
    done = shell(
        hook["entry"], workspace, workspace / "repo" / "llm", {"PATH": f"{workspace / 'bin'}:{os.environ['PATH']}"}
    )
    assert done.returncode == 0, done.stderr
    for name in ("kvplan.yaml", "a/kvplan.yml", "kvplan.lock", "deploy/x.yaml", "llm.service", "Dockerfile", "x.sh"):
        assert re.search(hook["files"], name), name
    for name in ("README.md", "main.py", "x.json"):
        assert not re.search(hook["files"], name), name
