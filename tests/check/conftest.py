"""Rule files written for one test, read and checked as the command does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from kvplan.check.baseline import figures_of
from kvplan.check.problems import RuleFileError
from kvplan.check.result import to_dict
from kvplan.check.run import Checked, check
from kvplan.cli.check import OPTIONS

HEAD = "schema: kvplan.rules/1\n"
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes files into the present folder: ``write(text)`` is the rule file, keywords are others."""
    monkeypatch.chdir(tmp_path)

    def call(text: str, **others: str) -> None:
        (tmp_path / "kvplan.yaml").write_text(HEAD + dedent(text))
        for name, content in others.items():
            path = tmp_path / name.replace("__", "/").replace("_yaml", ".yaml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(HEAD + dedent(content) if "apiVersion" not in content else dedent(content))

    return call


def run(path: str = "kvplan.yaml", *, env: dict[str, str] | None = None, old: Any = None) -> Checked:
    """A check of the present folder; `old` is an earlier result."""
    return check(path, OPTIONS, environment=env or {}, baseline=figures_of(old) if old else None)


def result(path: str = "kvplan.yaml", **settings: Any) -> dict[str, Any]:
    """The same as plain data."""
    return to_dict(run(path, **settings), baseline=settings.get("old"))


def problems(path: str = "kvplan.yaml", **settings: Any) -> list[str]:
    """Everything that is wrong with a file, a line each."""
    with pytest.raises(RuleFileError) as caught:
        run(path, **settings)
    return [str(problem) for problem in caught.value.problems]


def findings(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for d in found["deployments"] for f in d["findings"]]
