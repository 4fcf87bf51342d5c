"""What a command loads: the same answer on any machine, however busy."""

from __future__ import annotations

import json

import pytest

from kvplan.cli.app import VERBS

from .conftest import Run

HEAVY = (
    "torch", "numpy", "pydantic", "asyncio", "http.client", "urllib.request", "importlib.metadata", "ssl",
    "kvplan.sources.schema", "kvplan.sources.yaml_file", "kvplan.sources.hf",
)  # fmt: skip
"""What no plan of a preset may load."""
CODE = """
import json, sys
from kvplan.cli.main import main
status = main(sys.argv[1:])
sys.stdout.flush()
print(json.dumps([status, sorted(sys.modules)]), file=sys.stderr)
"""


def loaded(spawn: Run, *words: str) -> tuple[int, set[str]]:
    """(status, modules loaded) of a command line in a fresh interpreter."""
    done = spawn(*words, code=CODE)
    status, modules = json.loads(done.err.splitlines()[-1])
    return status, set(modules)


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--json"),
        ("plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--format", "table"),
        ("plan", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "NVIDIA H100 80GB HBM3", "--format", "markdown"),
        ("plan", "deepseek-v3", "--json"),
        ("explain", "gemma-3-27b"),
        ("models", "list"),
        ("models", "show", "qwen3-32b"),
        ("gpus", "list"),
        ("formats",),
    ],
)
def test_a_preset_loads_nothing_heavy(spawn: Run, words: tuple[str, ...]) -> None:
    status, modules = loaded(spawn, *words)
    assert status == 0
    assert modules.isdisjoint(HEAVY)
    assert ("rich" in modules) == ("table" in words)


@pytest.mark.parametrize("words", [(), ("--help",), ("--version",), ("nope",)])
def test_the_root_imports_no_verb(spawn: Run, words: tuple[str, ...]) -> None:
    _, modules = loaded(spawn, *words)
    assert modules.isdisjoint(module for module, _ in VERBS.values())
    assert modules.isdisjoint((*HEAVY, "rich"))


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_imports_itself_alone(spawn: Run, verb: str) -> None:
    _, modules = loaded(spawn, verb, "--help")
    assert VERBS[verb][0] in modules
    assert modules.isdisjoint(module for name, (module, _) in VERBS.items() if name != verb)


def test_json_draws_nothing(spawn: Run) -> None:
    plan = ("plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--json")
    for words in (plan, ("formats", "--json"), ("models", "list", "--json"), ("gpus", "show", "h100-sxm", "--json")):
        _, modules = loaded(spawn, *words)
        assert "kvplan.render.jsonout" in modules
        assert modules.isdisjoint(f"kvplan.render.{name}" for name in ("grid", "text", "table", "markdown", "report"))


def test_the_package_itself_loads_nothing(spawn: Run) -> None:
    done = spawn(code="import sys, kvplan; print(*sorted(m for m in sys.modules if m.startswith('kvplan')))")
    assert done.out.split() == ["kvplan", "kvplan._version"]


def test_a_plan_reads_one_model_and_one_gpu_file(spawn: Run) -> None:
    code = """
import os, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from kvplan.cli.main import main
main(["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--json", "-o", os.devnull, "-q"])
print(*sorted({os.path.basename(path) for path in opened if path.endswith((".yaml", ".json"))}))
"""
    found = spawn(code=code).out.split()
    assert [name.rsplit(".", 1)[0] for name in found] == ["h100-sxm", "llama-3.1-8b"]
