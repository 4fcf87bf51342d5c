"""Whatever stands in a rule file, it is read, or refused in lines that name their place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.check.problems import RuleFileError

from .conftest import run

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-10, 10**6), st.floats(allow_nan=True), st.text(max_size=12),
    st.sampled_from(
        ["llama-3.1-8b", "h100-sxm", "32K", "vllm", "fp8", "verdict.fits == true", "capacity.max_concurrency >= 8",
         "kvplan.yaml", "vllm serve llama-3.1-8b", "${X}", "chat", "kvplan.rules/1", "sglang", "q8_0"]
    ),
)  # fmt: skip
KEYS = st.sampled_from(
    ["schema", "include", "environment", "defaults", "workloads", "rules", "deployments", "model", "command", "from",
     "gpu", "engine", "max-model-len", "tp", "rule", "level", "bound", "chat", "a", "kv-cache-dtype", "concurrency",
     "price", "speculative-config", "enforce-eager", "gpu-memory", "kv-cache-memory-bytes", "gpus", "pp"]
)  # fmt: skip
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)
SETTINGS = ("gpu", "tp", "max-model-len", "rules", "workloads", "concurrency", "engine")
DEPLOYMENT = st.fixed_dictionaries({"model": st.just("llama-3.1-8b")}, optional=dict.fromkeys(SETTINGS, SCALARS))
FILES = st.fixed_dictionaries(
    {"schema": st.just("kvplan.rules/1")},
    optional={
        "defaults": st.dictionaries(KEYS, SCALARS, max_size=3) | TREES,
        "rules": st.lists(SCALARS, max_size=3) | TREES,
        "workloads": TREES,
        "include": TREES,
        "environment": TREES,
        "deployments": st.dictionaries(st.text(max_size=5), DEPLOYMENT, max_size=3) | TREES,
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("fuzz"))
    yield Path()
    os.chdir(before)


def held(folder: Path) -> None:
    """The file is checked, or every line says where."""
    try:
        checked = run()
    except RuleFileError as error:
        lines = [str(problem) for problem in error.problems]
        problems = error.problems
    else:
        lines, problems = [], []
        assert all(f.message for findings in checked.findings for f in findings)
    assert all(p.place.line >= 1 and p.place.column >= 1 for p in problems)
    assert all(line.startswith("kvplan.yaml:") for line in lines)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(tree=FILES)
def test_any_tree(folder: Path, tree: Any) -> None:
    Path("kvplan.yaml").write_text(yaml.safe_dump(tree, allow_unicode=True))
    held(folder)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(at=st.integers(0, 400), put=st.text(max_size=6), cut=st.integers(0, 8))
def test_any_slip_of_the_hand(folder: Path, at: int, put: str, cut: int) -> None:
    text = (
        "schema: kvplan.rules/1\nenvironment: {LENGTH: 8K}\ndefaults: {gpu: h100-sxm}\n"
        "workloads:\n  chat: {prompt-tokens: 2K, concurrency: 4}\nrules:\n  - verdict.fits == true\n"
        "  - {rule: capacity.requests_at(4K) >= 4, level: warn, bound: mid}\n"
        'deployments:\n  a:\n    model: "llama-3.1-8b"\n'
        "    max-model-len: ${LENGTH}\n    workloads: [chat]\n  b: {command: vllm serve llama-3.1-8b -tp 2}\n"
    )
    Path("kvplan.yaml").write_text(text[:at] + put + text[at + cut :], encoding="utf-8", errors="surrogatepass")
    held(folder)
