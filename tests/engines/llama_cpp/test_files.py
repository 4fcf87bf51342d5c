"""What is a file of its own: encoders beside the weights, and logs that do not say what was loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.errors import InputError
from kvplan.planning.log_base import measured_base
from kvplan.planning.log_case import deployment
from kvplan.sources.logs import read_log

LOGS = Path(__file__).parents[2] / "data" / "logs"


def terms(model: str, **given: Any) -> dict[str, int]:
    made = plan(model, gpu="h100-sxm", engine="llama.cpp", ctx_size=8192, **given)
    assert made.memory is not None
    return {term.name: sum(t.bytes for row in made.memory for t in row.terms if t.name == term.name)
            for row in made.memory for term in row.terms}  # fmt: skip


@pytest.mark.parametrize(("weights", "size"), [("auto", 2), ("q4_k_m", 2), ("fp32", 4)])
def test_an_encoder_is_a_file_of_its_own(weights: str, size: int) -> None:
    tower = sum(t.parameters for t in load_model("gemma-3-27b").towers)
    assert tower > 4e8
    assert terms("gemma-3-27b", weights=weights)["encoder file not loaded"] == -size * tower


def test_over_several_gpus_it_comes_off_once() -> None:
    tower = sum(t.parameters for t in load_model("gemma-3-27b").towers)
    assert terms("gemma-3-27b", gpus=2)["encoder file not loaded"] == -2 * tower


def test_a_model_without_one_has_no_such_line() -> None:
    assert "encoder file not loaded" not in terms("llama-3.1-8b")


def without_type(tmp_path: Path) -> str:
    lines = (LOGS / "llama.cpp-qwen3.5-27b-q3km.log").read_text().splitlines(keepends=True)
    kept = [line for line in lines if "file type" not in line]
    assert len(kept) == len(lines) - 1
    path = tmp_path / "run.log"
    path.write_text("".join(kept))
    return str(path)


def test_a_log_without_a_file_type_warns_and_is_no_base(tmp_path: Path) -> None:
    log = read_log(without_type(tmp_path))
    common: dict[str, Any] = {"model": load_model("qwen3.5-27b"), "gpu": load_gpu("rtx-4090"), "engine": None}
    found = deployment(log, name="run.log", given={}, **common)
    assert [text for text in found.warnings if "no file type line" in text]
    with pytest.raises(InputError, match="no file type line") as caught:
        measured_base(log, name="run.log", given={}, **common)
    assert "--weights" in (caught.value.hint or "")
    base = measured_base(log, name="run.log", given={"weights": "q4_k_m"}, **common)
    assert base.found.settings["weights"] == "q4_k_m"


def test_the_type_that_a_log_names_is_taken() -> None:
    log = read_log(str(LOGS / "llama.cpp-qwen3.5-27b-q3km.log"))
    base = measured_base(
        log, name="run.log", model=load_model("qwen3.5-27b"), gpu=load_gpu("rtx-4090"), engine=None, given={}
    )
    assert base.found.settings["weights"] == "q3_k_m"
