"""Pages cannot drift: what they show is what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_shown_commands_print_what_is_shown() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_examples.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_library_example_runs_and_its_comments_hold() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)  # the block itself
    checked = 0
    for line in code.splitlines():
        expression, _, comment = line.partition("  # ")
        claimed = re.match(r"(True|False|\d+)\b", comment)
        if claimed:
            assert str(eval(expression, names)) == claimed.group(1)
            checked += 1
    assert checked == 3


def test_the_example_spec_is_valid(tmp_path: Path) -> None:
    from kvplan import plan
    from kvplan.sources.yaml_file import lint_model_file

    (spec,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "my-model.yaml"
    path.write_text(spec, encoding="utf-8")
    assert [f for f in lint_model_file(str(path)) if f.level == "error"] == []
    assert plan(str(path), engine="generic").kv.bytes_per_token == 32 * 2 * 8 * 128 * 2


def test_the_readme_lists_every_verb_and_kind() -> None:
    from kvplan.cache import KINDS
    from kvplan.cli.app import VERBS

    for verb in VERBS:
        assert f"kvplan {verb}" in README, verb
    for kind in KINDS:
        assert f"`{kind}`" in README, kind


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/catalog.md", "CHANGELOG.md"])
def test_linked_pages_exist(page: str) -> None:
    assert (ROOT / page).is_file()
    assert page.rsplit("/", 1)[-1] in README


def test_architecture_names_rooms_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = set(re.findall(r"`kvplan/([a-z]+)/`", text))
    assert rooms == {p.name for p in (ROOT / "kvplan").iterdir() if (p / "__init__.py").exists()} - {"data"}
