"""Pages cannot drift: what they show is what the code does."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli import app as app_module
from kvplan.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", ["make_examples", "make_readme", "make_cli_reference"])
def test_generated_parts_are_what_they_would_be_now(script: str) -> None:
    command = [sys.executable, f"scripts/{script}.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_filter_behind_a_shown_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    import make_examples

    monkeypatch.chdir(ROOT)
    shown = make_examples.refreshed("```console\n$ kvplan gpus show h100-sxm | head -1\nold\n```")
    assert shown.startswith("```console\n$ kvplan gpus show h100-sxm | head -1\n")
    assert "old" not in shown
    assert len(shown.splitlines()) == 4


def test_the_example_spec_is_what_the_readme_says(desk: Path) -> None:
    from kvplan import plan

    (spec,) = re.findall(r"```yaml\n(# my-model.yaml.*?)```", README, re.DOTALL)
    Path("my-model.yaml").write_text(spec, encoding="utf-8")
    assert plan("my-model.yaml", engine="generic").kv.bytes_per_token == 32 * 2 * 8 * 128 * 2


def test_the_readme_and_the_skill_know_every_verb_and_kind() -> None:
    from kvplan.cache import KINDS

    for verb in app_module.VERBS:
        assert f"kvplan {verb}" in README, verb
        assert f"kvplan {verb}" in SKILL, verb
    for kind in KINDS:
        assert f"`{kind}`" in README, kind


def properties(node: Any) -> set[str]:
    """The names of all keys that a JSON Schema knows."""
    if isinstance(node, list):
        return set().union(*map(properties, node))
    if not isinstance(node, dict):
        return set()
    own = node["properties"] if isinstance(node.get("properties"), dict) else {}
    return set(own).union(*map(properties, node.values()))


def test_the_keys_that_the_skill_tells_to_read_are_published() -> None:
    known = set().union(
        *(
            properties(json.loads(path.read_text(encoding="utf-8")))
            for path in (ROOT / "docs" / "schemas").glob("*.json")
        )
    ) | {"command"}  # of `inputs`, whose keys are the settings
    rows = [line for line in SKILL.splitlines() if (line.startswith("| ") and "`kvplan" in line) or "the same" in line]
    keys = [key for row in rows for key in re.findall(r"`([a-z_.\[\]0]+)`", row.rsplit(" | ", 1)[-1])]
    assert len(keys) > 40
    for key in keys:
        for part in re.sub(r"\[\d*\]", "", key).split("."):
            assert part in known, key


def test_every_verb_has_a_page() -> None:
    """The start page's table leads from each verb to pages that show it."""
    from make_cli_reference import HOW_TO

    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    how_to = HOW_TO.findall(index.partition("## One page a command")[2])
    assert sorted(verb for verb, _ in how_to) == sorted(app_module.VERBS)
    for verb, pages in how_to:
        targets = re.findall(r"\]\(([\w./-]+\.md)", pages)
        assert targets, verb
        for target in targets:
            page = (ROOT / "docs" / target).read_text(encoding="utf-8")
            assert re.search(rf"^\$? ?kvplan {verb}\b|`kvplan {verb}\b", page, re.MULTILINE), (verb, target)


def test_links_lead_to_files() -> None:
    for page in (ROOT / "README.md", ROOT / "SKILL.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page.name}: {target}"


def test_architecture_names_rooms_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = set(re.findall(r"`kvplan/([a-z]+)/`", text))
    assert rooms == {p.name for p in (ROOT / "kvplan").iterdir() if (p / "__init__.py").exists()} - {"data"}


@pytest.mark.parametrize("example", [line for line, _ in app_module.EXAMPLES if not line.startswith("validate")])
def test_the_examples_of_the_help_work(desk: Path, example: str, capsys: pytest.CaptureFixture[str]) -> None:
    if example == "check":
        assert main(["check", "--init"]) == 0
    assert main(shlex.split(example)) in (0, 1)
    seen = capsys.readouterr()
    assert seen.err if example == "check --init" else seen.out


@pytest.mark.parametrize("columns", [80, 120])
def test_the_start_page_shows_some_of_them_within_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    for place in app_module.FIRST:
        assert app_module.EXAMPLES[place][0] in shown


def test_panels_of_the_help_are_known_headings() -> None:
    """A new heading of a planning flag has its place among the others."""
    from kvplan.cli.flags import PLAN, SERVICE

    assert {option.panel for option in (*PLAN, *SERVICE)} <= set(app_module.PANELS)
