"""The pages' own reader, and a folder with the files that their commands name."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
sys.path.insert(0, str(ROOT / "scripts"))

COPIES = {
    "deployment.yaml": "examples/vllm-kubernetes/deployment.yaml",
    "vllm.log": "tests/data/logs/vllm-0.31.0-llama-3.1-8b.log",
    "sglang.log": "tests/data/logs/sglang-qwen2.5-32b-tp4.log",
    "conversation_trace.jsonl": "tests/data/traces/mooncake_150.jsonl",
    "conversation.csv": "tests/data/traces/azure_59.csv",
    "t.csv": "tests/data/traces/azure_59.csv",
    "my-model/config.json": "tests/data/cases/vllm_configs/deepseek-v3.json",
    "config.json": "tests/data/cases/vllm_configs/deepseek-v3.json",
    "Llama-3.1-8B/config.json": "tests/data/cases/vllm_configs/deepseek-v3.json",
    "my-model.yaml": "tests/data/sample-model.yaml",
    "model.yaml": "tests/data/sample-model.yaml",
}
"""Name in the pages -> a file of the repository that stands in for it."""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a reader's, in which the commands of a page run one after another."""
    for name, source in COPIES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / source, tmp_path / name)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "data").symlink_to(DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
