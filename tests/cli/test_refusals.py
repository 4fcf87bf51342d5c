"""Command lines that were met at random and took too long, or ended in an internal error."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.planning.fit import search

from .conftest import Run, one_line_error


@pytest.mark.parametrize(
    ("verb", "words"),
    [("fit", ("--gpu", "h200")), ("sweep", ("--gpu", "h200", "--vary", "tp=1,2")), ("plan", ("--gpu", "h200"))],
)
def test_an_answer_without_a_place_is_not_worked_out(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str, words: tuple[str, ...]
) -> None:
    import kvplan.deployment

    def work(*_: object, **__: object) -> None:
        raise AssertionError("worked out")

    monkeypatch.setattr(kvplan.deployment, "find_deployment", work)
    for place, why in (("none/out.json", "No such file or directory"), (".", "Is a directory"), ("a\0b", "null byte")):
        monkeypatch.chdir(tmp_path)
        said, _ = one_line_error(run(verb, "llama-3.1-8b", *words, "-o", place))
        assert said.startswith("-o: cannot write ")
        assert said.endswith(why)
    assert "AssertionError: worked out" in run(verb, "llama-3.1-8b", *words, "-o", "out.json").err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["-tp", "-dp", "-pp"])
def test_a_layout_beyond_what_is_searched_is_said(run: Run, flag: str) -> None:
    words = ("fit", "llama-3.1-8b", "--gpu", "h200,b200")
    said, hint = one_line_error(run(*words, flag, "99999999"))
    assert said == f"layout: 99,999,999 GPUs for one copy are more than the {search.WASTE * 64} that are searched"
    assert flag in hint
    assert run(*words, "-dp", "16").status in (0, 1)


@pytest.mark.parametrize(("rate", "known"), [("1e-300", False), ("1e-9", True), ("1e13", False), ("nan", False)])
def test_rates_of_traces_have_bounds(run: Run, tmp_path: Path, rate: str, known: bool) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 10, "output_length": 20}\n' * 50)
    done = run("trace", "describe", str(trace), "--json", "--request-rate", rate)
    if known:
        assert done.status == 0
    else:
        assert one_line_error(done)[0].startswith("--request-rate: ")


def test_a_rule_file_with_a_name_that_no_file_has(run: Run) -> None:
    assert "null byte" in one_line_error(run("check", "a\0b/c", "--init"))[0]
