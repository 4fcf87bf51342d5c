"""A log held against its plan: sums that close, the term that explains, and plans that start from a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.planning.log_base import measured_base
from kvplan.planning.log_case import deployment
from kvplan.planning.log_report import LogReport, exceeds, report
from kvplan.planning.planner import plan_deployment
from kvplan.sources import find_gpu, find_model
from kvplan.sources.logs import read_log
from kvplan.units import GIB

LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"


def held_against(
    name: str,
    *,
    model: str | None = None,
    gpu: str | None = None,
    engine: str | None = None,
    figure: str | None = None,
    **given: Any,
) -> LogReport:
    log = read_log(str(LOGS / f"{name}.log"))
    found = deployment(
        log,
        name=name,
        model=find_model(model) if model else None,
        gpu=find_gpu(gpu) if gpu else None,
        engine=engine,
        given=given,
    )
    return report(log, found, file=name, figure=figure)


BUDGETS = [
    ("vllm-0.31.0-llama-3.1-8b", {}, 0.3),
    ("vllm-0.22.0-qwen2.5-7b", {"gpu": "l40s"}, 0.3),
    ("vllm-0.10.2-qwen3-next-tp2", {}, 0.3),
    ("vllm-v0-phi-4-gptq", {"model": "phi-4"}, 0.5),
]


@pytest.mark.parametrize(("name", "said", "gib"), BUDGETS)
def test_available_bytes_of_vllm(name: str, said: dict[str, Any], gib: float) -> None:
    found = held_against(name, **said)
    assert found.figure is not None
    assert found.figure.kind == "cache"
    assert found.figure.difference is not None
    assert abs(found.figure.difference) < gib * GIB


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, said, _ in BUDGETS])
def test_what_is_printed_adds_up(name: str, said: dict[str, Any]) -> None:
    """Budget less terms is the cache, as printed; so the differences of the terms add up to that of the cache."""
    rows = held_against(name, **said).rows
    cache = next(row for row in rows if row.kind == "cache")
    budget = next(row for row in rows if row.name == "budget")
    terms = [row for row in rows if row.kind == "term" and row.difference is not None]
    assert cache.difference is not None
    moved = (budget.difference or 0) - sum(row.difference or 0 for row in terms)
    assert cache.difference == pytest.approx(moved, abs=0.03 * GIB)


def test_the_largest_miss_explains() -> None:
    found = held_against("vllm-0.31.0-llama-3.1-8b", max_num_seqs=1024)
    assert found.explains is not None
    rows = {row.name: row for row in found.rows}
    named = rows[found.explains.name]
    assert named.difference is not None
    assert found.explains.bytes == -named.difference
    misses = [abs(row.difference) for row in found.rows if row.kind == "term" and row.difference]
    assert abs(named.difference) == max(misses)


TOKENS = [
    ("vllm-0.31.0-llama-3.1-8b", {}, 460_496),
    ("vllm-0.22.0-qwen2.5-7b", {}, 492_912),
    ("vllm-0.10.2-qwen3-next-tp2", {}, 973_760),
    ("sglang-qwen2.5-32b-tp4", {}, 46_611),
    ("sglang-kimi-k2.5-tp8", {}, 2_454_421),
    ("sglang-qwen3.6-27b-eagle", {}, 171_008),
    ("tensorrt-llm-deepseek-v3", {"kv_cache_dtype": "fp8"}, 1_256_288),
]


@pytest.mark.parametrize(("name", "said", "tokens"), TOKENS)
def test_tokens_of_the_printed_bytes(name: str, said: dict[str, Any], tokens: int) -> None:
    """The printed tokens lie where the printed bytes, which are rounded, put them."""
    row = held_against(name, figure="tokens", **said).figure
    assert row is not None
    assert row.said == tokens
    assert row.agrees


def test_the_bytes_of_a_token_say_the_cache_type() -> None:
    found = held_against("tensorrt-llm-deepseek-v3", figure="tokens")
    assert found.figure is not None
    assert found.figure.agrees is True
    assert found.inputs["kv_cache_dtype"] == "fp8"
    assert "35,136 bytes" in found.inputs["defaults"]["kv_cache_dtype"]


def test_a_wrong_cache_type_does_not_agree() -> None:
    found = held_against("tensorrt-llm-deepseek-v3", figure="tokens", kv_cache_dtype="bf16")
    assert found.figure is not None
    assert found.figure.agrees is False
    token = next(row for row in found.rows if row.kind == "token")
    assert (token.said, token.predicted) == (35_136, 70_272)


@pytest.mark.parametrize("name", ["llama.cpp-qwen3.5-27b-q3km", "ollama-gpt-oss-120b"])
def test_caches_of_llama_cpp_are_exact(name: str) -> None:
    found = held_against(name)
    caches = [row for row in found.rows if row.kind == "cache" or "cache" in row.name or row.name == "recurrent states"]
    assert len(caches) >= 2
    assert all(row.agrees for row in caches)


def test_the_cache_of_ollamas_own_engine() -> None:
    found = held_against("ollama-engine-qwen3-30b", model="qwen3-30b-a3b")
    assert found.figure is not None
    assert found.figure.predicted == 3 * GIB
    assert found.figure.agrees


def test_a_refused_start() -> None:
    found = held_against("vllm-0.11.0-qwen3-32b-refused", gpu="h100-sxm")
    assert found.fits is False
    assert "To serve at least one request" in found.refused[0]
    needed = next(row for row in found.rows if row.name.startswith("one request"))
    assert needed.agrees


def test_without_a_model_the_log_speaks_alone() -> None:
    found = held_against("vllm-v0-phi-4-gptq")
    assert found.model is None
    assert found.figure is None
    assert {"kv", "weights", "blocks"} <= set(found.said)
    assert any("--model" in text for text in found.warnings)
    with pytest.raises(InputError, match="nothing to compare"):
        exceeds(found.figure, 0.05)


def test_the_users_word_counts_more() -> None:
    log = read_log(str(LOGS / "vllm-0.31.0-llama-3.1-8b.log"))
    found = deployment(
        log, name="x", model=None, gpu=find_gpu("h100-sxm"), engine="vllm@0.30.0", given={"max_model_len": 8192}
    )
    assert found.engine == "vllm@0.30.0"
    assert found.gpu is not None
    assert found.gpu.id == "h100-sxm"
    assert found.settings["max_model_len"] == 8192
    assert "max_model_len" not in found.origins
    assert found.origins["gpu_memory_utilization"].startswith("x, line ")
    with pytest.raises(InputError, match="the log is of vllm"):
        deployment(log, name="x", model=None, gpu=None, engine="sglang", given={})


def test_the_gpu_by_its_memory() -> None:
    log = read_log(str(LOGS / "vllm-0.31.0-llama-3.1-8b.log"))
    found = deployment(log, name="x", model=None, gpu=None, engine=None, given={})
    assert found.gpu is not None
    assert found.gpu.id.startswith("a100")
    assert found.gpu.device_bytes == round(79.25 * GIB)
    assert any("by its memory" in text for text in found.warnings)


def base(name: str, **given: Any) -> tuple[int, dict[str, str], list[str]]:
    """(bytes of the cache, origins, warnings) of a plan from a log."""
    found = measured_base(
        read_log(str(LOGS / f"{name}.log")), name=name, model=None, gpu=None, engine=None, given=given
    ).found
    return found.settings["kv_cache_memory_bytes"], found.origins, found.warnings


def test_a_plan_starts_from_the_measured_bytes() -> None:
    size, origins, _ = base("vllm-0.31.0-llama-3.1-8b", concurrency=400, max_model_len=32768)
    assert size == round(56.21 * GIB)
    assert origins["kv_cache_memory_bytes"].startswith("measured: vllm-0.31.0-llama-3.1-8b, line 12")


def test_the_measured_bytes_move_with_what_is_changed() -> None:
    name = "vllm-0.31.0-llama-3.1-8b"
    at_rest, _, _ = base(name)
    smaller, origins, _ = base(name, gpu_memory_utilization=0.82)
    assert at_rest - smaller == pytest.approx(0.1 * 79.25 * GIB, abs=2)
    assert "moved by -7.9" in origins["kv_cache_memory_bytes"]


def test_a_smaller_batch_frees_no_more_than_the_log_leaves(tmp_path: Path) -> None:
    """Weights 15.27 and cache 54.50 GiB leave 1.5 GiB of the budget, where the model would free 4.8."""
    log = tmp_path / "v1.log"
    log.write_text(
        "INFO 10-20 09:12:01 [api_server.py:1896] vLLM API server version 0.11.0\n"
        "INFO 10-20 09:12:01 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 32768, "
        "'gpu_memory_utilization': 0.9}\n"
        "INFO 10-20 09:12:50 [gpu_model_runner.py:2653] Model loading took 15.2683 GiB and 8.1 seconds\n"
        "INFO 10-20 09:13:20 [gpu_worker.py:298] Available KV cache memory: 54.50 GiB\n"
    )
    gpu = find_gpu("h100-sxm")
    found = measured_base(
        read_log(str(log)), name="v1", model=None, gpu=gpu, engine=None, given={"max_num_seqs": 64}
    ).found
    size = found.settings["kv_cache_memory_bytes"]
    assert 54.5 * GIB < size <= 0.9 * gpu.device_bytes - 15.26 * GIB
    assert found.origins["kv_cache_memory_bytes"].startswith("modelled: ")


def test_without_a_gpu_the_measured_bytes_stay_and_say_so() -> None:
    size, _, warnings = base("vllm-0.22.0-qwen2.5-7b", max_num_seqs=512)
    assert size == round(26.32 * GIB)
    assert any("do not follow" in text and "max_num_seqs" in text for text in warnings)


def test_a_log_of_llama_cpp_gives_its_settings() -> None:
    log = read_log(str(LOGS / "llama.cpp-qwen3.5-27b-q3km.log"))
    found = measured_base(log, name="x", model=None, gpu=None, engine=None, given={"ctx_size": 49152}).found
    assert found.model is not None
    plan = plan_deployment(found.model, None, found.engine, found.settings)
    assert plan.allocation is not None
    assert plan.allocation.bytes - plan.allocation.state_bytes == 3 * GIB


def test_a_log_without_the_bytes_is_no_base() -> None:
    log = read_log(str(LOGS / "vllm-0.11.0-qwen3-32b-refused.log"))
    log.run.figures.pop("kv")
    with pytest.raises(InputError, match="how many bytes"):
        measured_base(log, name="x", model=None, gpu=None, engine=None, given={})


def test_a_start_without_bytes_for_the_cache_is_a_refusal() -> None:
    text = (LOGS / "vllm-0.31.0-llama-3.1-8b.log").read_text(encoding="utf-8")
    text = text.replace("Available KV cache memory: 56.21 GiB", "Available KV cache memory: -1.35 GiB")
    found = report(*_of_text(text), file="x.log")
    assert found.refused == ("-1.35 GiB are left for the cache",)
    assert held_against("vllm-0.31.0-llama-3.1-8b").refused == ()


def test_a_what_if_keeps_bounds() -> None:
    """What moves the measured bytes is modelled, so they get the bounds of the move; unmoved they have none."""
    from kvplan.deployment import of_log

    path = str(LOGS / "vllm-0.31.0-llama-3.1-8b.log")
    moved = of_log(None, {"from_log": path, "max_num_seqs": 64}).plan().inputs
    low, high = moved["kv_cache_memory_bounds"]
    assert low < moved["kv_cache_memory_bytes"] < high
    assert high - low < 2**30
    assert "kv_cache_memory_bounds" not in of_log(None, {"from_log": path, "concurrency": 4}).plan().inputs


def test_a_log_of_an_unknown_model_says_so(tmp_path: Path) -> None:
    from kvplan.deployment import of_log
    from kvplan.errors import InputError

    text = (LOGS / "vllm-0.31.0-llama-3.1-8b.log").read_text(encoding="utf-8")
    file = tmp_path / "x.log"
    file.write_text(text.replace("meta-llama/Llama-3.1-8B-Instruct", "some/unheard-of"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        of_log(None, {"from_log": str(file)})
    assert caught.value.message == "the log names 'some/unheard-of', which is not known"


def _of_text(text: str) -> tuple[Any, Any]:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        log = read_log(file.name)
    return log, deployment(log, name="x.log", model=None, gpu=None, engine=None, given={})
