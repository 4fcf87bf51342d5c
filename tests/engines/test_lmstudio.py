"""LM Studio: predictions that share a context or have one each, the layers on the GPU, and ``lms load``."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.cli.main import main
from kvplan.errors import InputError, KvplanError, UnsupportedError
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources.commands import read_command

GIB = 2**30


def plan(model: str = "llama-3.1-8b", gpu: str | None = None, **given: Any) -> Plan:
    return plan_deployment(load_model(model), load_gpu(gpu) if gpu else None, "lmstudio", given)


def cells(made: Plan) -> dict[str, int | None]:
    assert made.allocation is not None
    return {pool.kind: pool.cells for pool in made.allocation.pools}


def test_four_predictions_share_a_context() -> None:
    made = plan("gemma-3-27b", "h100-sxm", max_model_len=32768)
    assert (made.inputs["slots"], made.inputs["unified"]) == (4, True)
    assert cells(made) == {"full": 32768, "sliding": 4 * 1024 + 512}
    assert made.capacity is not None
    assert made.capacity.max_concurrency == 1.0
    assert {row.tokens: row.requests for row in made.capacity.at}[4096] == 4


def test_or_have_one_each() -> None:
    made = plan("gemma-3-27b", "h100-sxm", max_model_len=32768, separate_caches=True, parallel=3)
    assert cells(made) == {"full": 3 * 32768, "sliding": 3 * (1024 + 512)}
    assert made.capacity is not None
    assert (made.capacity.max_concurrency, made.capacity.max_single_request_tokens) == (3.0, 32768)


def test_the_context_is_as_long_as_it_is_said_to_be() -> None:
    assert cells(plan()) == {"full": 4096}
    assert cells(plan(ctx_size=8192)) == cells(plan(max_model_len=8192)) == {"full": 8192}
    assert not [w for w in plan(ctx_size=8192, separate_caches=True).warnings if "shared out" in w]
    with pytest.raises(InputError, match="contextLength"):
        plan(ctx_size=8192, max_model_len=8192)


@pytest.mark.parametrize(("share", "layers"), [("max", 32), ("off", 0), ("0.5", 15), ("1", 32), ("0", 0)])
def test_layers_on_the_gpu(share: str, layers: int) -> None:
    """Of half of 32 layers the output head is one."""
    made = plan(gpu="h100-sxm", max_model_len=8192, gpu_offload=share)
    assert made.kv.bytes_per_sequence_per_gpu == GIB * layers // 32
    assert any("rounds" in w for w in made.warnings) is (share == "0.5")


@pytest.mark.parametrize(
    ("given", "kind"),
    [({"gpu_offload": "2"}, InputError), ({"gpu_offload": "much"}, InputError),
     ({"n_gpu_layers": "3"}, InputError), ({"cache_type_k": "bf16"}, UnsupportedError),
     ({"cache_type_v": "q8_0", "flash_attn": "off"}, UnsupportedError)],
)  # fmt: skip
def test_refusals(given: dict[str, Any], kind: type[KvplanError]) -> None:
    with pytest.raises(kind) as caught:
        plan(max_model_len=8192, **given)
    assert caught.value.hint


def test_lms_load() -> None:
    found = read_command("lms load qwen/qwen3-8b -c 8192 --parallel 2 --gpu 0.5 --ttl 60 -y")
    assert (found.engine, found.model) == ("lmstudio", "qwen/qwen3-8b")
    assert found.settings == {"max_model_len": 8192, "parallel": "2", "gpu_offload": "0.5"}
    assert found.quantization is not None
    assert found.quantization.format == "q4_k_m"
    named = read_command("lms load qwen/qwen3-8b@q8_0")
    assert (named.model, named.quantization) == ("qwen/qwen3-8b-q8_0", None)


def test_the_line_to_paste_loads_the_same() -> None:
    made = plan(gpu="h100-sxm", max_model_len=8192, parallel=2, separate_caches=True, cache_type_k="q8_0")
    (note,) = [line for line in made.verdict.notes if line.startswith("to paste: ")]
    assert "lms load meta-llama/Llama-3.1-8B --context-length 8192 --parallel 2" in note
    assert "llamaKCacheQuantizationType q8_0, useUnifiedKvCache false" in note


def examples() -> list[Any]:
    found = []
    for line in Path("docs/engines/lmstudio.md").read_text().split("## Examples")[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and re.search(r"\d,\d{3},\d{3}", line):
            figures = {int(n.replace(",", "")) for n in re.findall(r"\d+(?:,\d{3})+", cells[2])}
            found.append(pytest.param(cells[0], shlex.split(cells[1].strip("`")), figures, id=f"{cells[0]} {cells[1]}"))
    return found


@pytest.mark.parametrize(("model", "words", "figures"), examples())
def test_the_page(model: str, words: list[str], figures: set[int], capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", model, "--engine", "lmstudio", *words, "--json"])
    pools = json.loads(capsys.readouterr().out)["allocation"]["pools"]
    assert figures <= {pool["bytes"] for pool in pools} | {pool["cells"] for pool in pools}
    assert {pool["bytes"] for pool in pools} <= figures
