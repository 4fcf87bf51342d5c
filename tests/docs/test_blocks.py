"""Every code block of the pages does what it shows.

A shell block's kvplan commands run, in the order of the page, in a folder that holds the files they name; blocks of
Python run; specs, rules and JSON documents are read by the readers they are for. What cannot run here is marked on the
page with its reason, and its verbs and flags are still looked up.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import doc_blocks
import pytest
import typer
import yaml
from doc_blocks import PLACEHOLDER, Block, Line

from kvplan.cli.app import app
from kvplan.cli.main import main

ROOT = Path(__file__).parents[2]
LANGUAGES = {"", "sh", "console", "python", "yaml", "json"}
OTHERS = {"pip", "bash", "python", "pytest", "torchrun", "mkdocs", "git", "cd", "docker", "source"}
"""Programs that a shell block may call besides kvplan; they are not run."""
GENERATED = {"docs/cli.md", "docs/json.md"}
"""Commands there are usage lines."""
PAGES = doc_blocks.pages()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def known(words: Sequence[str]) -> None:
    """Raise where a command line, placeholders and all, has a verb or a flag that kvplan has not.

    A verb alone is the name of the command, and needs no arguments.
    """
    command: Any = typer.main.get_command(app)
    rest = [word.strip("[],.") for word in words[1:]]
    with command.make_context("kvplan", ["plan"], resilient_parsing=True) as context:
        while hasattr(command, "commands") or hasattr(command, "get_command"):
            if not rest or rest[0].startswith("-"):
                return
            inner = command.get_command(context, rest[0])
            if inner is None and not PLACEHOLDER.search(rest[0]):
                raise AssertionError(f"no such command: {' '.join(words)}")
            if inner is None:
                return
            command, rest = inner, rest[1:]
        flags = {
            name
            for param in command.params
            if param.param_type_name == "option"
            for name in (*param.opts, *param.secondary_opts)
        } | {"--help", "-h"}
    for word in rest:
        name = word.partition("=")[0]
        assert not re.match(r"--?[a-z]", name) or name in flags, f"{name} is no flag: {' '.join(words)}"


def run(line: Line) -> tuple[int, str]:
    """(exit status, everything printed) of one kvplan command, its stdout written where the page says."""
    words = [re.sub(r"\brequests=\d{4}\b", "requests=60", word) for word in line.words[1:]]  # a study, in small
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    if line.into:
        Path(line.into).write_text(out.getvalue(), encoding="utf-8")
    return status, out.getvalue() + err.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_run(page: Path, desk: Path) -> None:
    """Shell blocks in the order of the page, then the commands of its text; YAML that names its file is a file."""
    for block in doc_blocks.blocks(page):
        if block.language == "yaml" and (named := re.match(r"# ([\w.-]+\.yaml)\n", block.text)):
            Path(named[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            for line in doc_blocks.lines(block.text):
                known_or_run(block, line)
    for text in dict.fromkeys(doc_blocks.spans(page)):
        words = next(doc_blocks.lines(text)).words
        known(words)
        if whole(text, words) and name_of(page) not in GENERATED:
            status, printed = run(Line(words, 0, ""))
            assert status in (0, 1), f"{name_of(page)}: {text}\n{printed[-600:]}"


def known_or_run(block: Block, line: Line) -> None:
    if line.words[0] != "kvplan":
        assert line.words[0] in OTHERS, f"{block.name}: {line.words[0]}"
        return
    known(line.words)
    if not block.not_run:
        status, printed = run(line)
        assert status == line.status, f"{block.name}: {' '.join(line.words)}\n{printed[-600:]}"


def whole(text: str, words: Sequence[str]) -> bool:
    """Whether a command of the text can run: an input, no placeholder, no network, device or big file."""
    return (
        not PLACEHOLDER.search(re.sub(r"\b\d+[KMG]\b|\bOLLAMA_\w+|Q4_K_M", "", text))
        and any(not word.startswith("-") for word in words[3 if words[1] in ("models", "gpus", "trace") else 2 :])
        and words[1] not in ("validate", "completion", "diff")
        and "--hub" not in words
        and not any(word.endswith(".gguf") for word in words)
    )


def test_there_are_pages_and_blocks_of_every_language() -> None:
    """Else what follows holds of nothing."""
    assert {"README.md", "docs/architecture.md"} <= {name_of(page) for page in PAGES}
    assert {block.language for page in PAGES for block in doc_blocks.blocks(page)} == LANGUAGES


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_say_what_they_are(page: Path) -> None:
    for block in doc_blocks.blocks(page):
        assert block.language in LANGUAGES, block.name
        if not block.language and name_of(page) not in GENERATED:
            assert "kvplan " not in block.text, f"{block.name}: a command in a block without a language"
        if block.language == "console":
            assert block.text.startswith("$ kvplan "), f"{block.name}: the generator would pass it over"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_run_and_their_comments_hold(page: Path, desk: Path) -> None:
    """Names live on from block to block of a page; ``expression  # value`` is compared."""
    names: dict[str, Any] = {}
    for block in doc_blocks.blocks(page):
        if block.language == "python":
            exec(compile(block.text, block.name, "exec"), names)
            for line in block.text.splitlines():
                expression, _, comment = line.partition("  # ")
                claimed = re.match(r"True|False|None|-?\d[\d_]*(\.\d+)?\b|\"[^\"]*\"|'[^']*'|\[.*\]", comment)
                if claimed and not line.startswith(" "):
                    value, wanted = eval(expression.partition(" = ")[0], names), eval(claimed[0])
                    assert (type(value), value) == (type(wanted), wanted), f"{block.name}: {line}"


def read_model(text: str) -> None:
    from kvplan.sources.yaml_file import lint_model_file

    Path("block.yaml").write_text(text, encoding="utf-8")
    assert [f for f in lint_model_file("block.yaml") if f.level == "error"] == []


def read_gpu(text: str) -> None:
    from kvplan import load_gpu

    Path("block-gpu.yaml").write_text(text, encoding="utf-8")
    load_gpu("./block-gpu.yaml")


def read_rules(text: str) -> None:
    Path("block-rules.yaml").write_text(text, encoding="utf-8")
    status, printed = run(Line(["kvplan", "check", "block-rules.yaml"], 0, ""))
    assert status in (0, 1), printed


READERS: dict[str, Callable[[str], None]] = {
    "kvplan.model/1": read_model,
    "kvplan.gpu/1": read_gpu,
    "kvplan.rules/1": read_rules,
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_yaml_blocks_load(page: Path, desk: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    hooks = {hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
    for block in doc_blocks.blocks(page):
        if block.language == "yaml":
            document = yaml.safe_load(block.text)
            if isinstance(document, dict) and "schema" in document:
                READERS[document["schema"]](block.text)
            for step in steps(document):
                if "kvplan" in step.get("uses", ""):
                    assert set(step.get("with", {})) <= set(action["inputs"]), block.name
                for words in map(str.split, str(step.get("run", "")).splitlines()):
                    if words[0] == "kvplan":
                        known(words)
            if isinstance(document, dict) and "repos" in document:
                assert {hook["id"] for repo in document["repos"] for hook in repo["hooks"]} <= hooks, block.name


def steps(node: Any) -> list[dict[str, Any]]:
    """Every step of a workflow, wherever the block begins."""
    if isinstance(node, dict):
        own = [node] if "uses" in node or "run" in node else []
        return own + [step for value in node.values() for step in steps(value)]
    return [step for value in node for step in steps(value)] if isinstance(node, list) else []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_json_blocks_fit_their_schemas(page: Path, desk: Path) -> None:
    for block in doc_blocks.blocks(page):
        if block.language == "json":
            json_fits(block)


def json_fits(block: Block) -> None:
    from jsonschema import Draft202012Validator

    document = json.loads(block.text)
    path = ROOT / "docs" / "schemas" / f"{document['schema'].replace('/', '-')}.json"
    Draft202012Validator(json.loads(path.read_text(encoding="utf-8"))).validate(document)
    if document["schema"] == "kvplan.calibration/1":
        Path("calibration.json").write_text(block.text, encoding="utf-8")
        words = ["kvplan", "plan", "llama-3.1-8b", "--gpu", document["device"]["gpu"], "--calibration"]
        assert run(Line([*words, "calibration.json"], 0, ""))[0] == 0, block.name
