"""Flags of ``vllm serve`` that move the batches in flight, the batch limits, the runner or the hybrid manager.

The figures of ``gemma-3-27b`` are vLLM's own planner's (``get_kv_cache_configs`` of 0.33.0) for 32,768 tokens and
20 GiB: 16,384, 8,192 and 32,768 tokens in flight, and without the hybrid manager.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvplan import load_gpu, plan
from kvplan.deployment import of_command
from kvplan.engines.base import Settings
from kvplan.engines.vllm import budget_outside as outside
from kvplan.engines.vllm.connectors import turned_off_by
from kvplan.engines.vllm.versions import Rules
from kvplan.errors import InputError, UnsupportedError
from kvplan.planning.plan import Plan
from kvplan.sources.commands import read_command
from kvplan.sources.logs import read_log

GEMMA = "google/gemma-3-27b-it --max-model-len 32768 --kv-cache-memory-bytes 20GiB"
ON, SYNC, WITHOUT = (62_557, 1.91), (97_435, 2.97), (42_272, 1.29)
LMCACHE = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'


def planned(line: str, engine: str = "") -> Plan:
    given = {"gpu": "h100-sxm", **({"engine": engine} if engine else {})}
    return of_command(read_command(line), given).plan()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", ON), ("--no-async-scheduling", SYNC), ("--async-scheduling", ON), ("--no_async_scheduling", SYNC),
        (f"--kv-transfer-config '{LMCACHE}'", WITHOUT),
        ("--kv-transfer-config.kv_connector LMCacheConnectorV1", WITHOUT),
        ('--kv-transfer-config \'{"kv_connector":"NixlConnector"}\'', ON), ("--kv-offloading-size 40", ON),
        ("--kv-offloading-size 40 --kv-offloading-backend lmcache", WITHOUT),
        ("--disable-hybrid-kv-cache-manager", WITHOUT),
    ],
)  # fmt: skip
def test_what_windows_keep(flags: str, expected: tuple[int, float]) -> None:
    found = planned(f"vllm serve {GEMMA} {flags}").capacity
    assert found is not None
    assert found.max_concurrency is not None
    assert (found.engine_reported_tokens, round(found.max_concurrency, 2)) == expected


def test_a_connector_is_said_to_hold_windows_whole() -> None:
    said = planned(f"vllm serve {GEMMA} --kv-transfer-config '{LMCACHE}'").warnings
    assert any("LMCacheConnectorV1 turns the hybrid cache manager off" in text for text in said)
    plain = planned(f"vllm serve meta-llama/Llama-3.1-8B --kv-transfer-config '{LMCACHE}'").warnings
    assert not any("hybrid cache manager" in text for text in plain)  # nothing is windowed there


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm serve M", (8_192, 1_024)), ("vllm serve M --performance-mode throughput", (16_384, 2_048)),
        ("vllm serve M --performance-mode interactivity", (8_192, 1_024)),
        ("vllm serve M --performance-mode throughput --max-num-seqs 64", (16_384, 64)),
        ("vllm serve M --performance-mode throughput --max-num-batched-tokens 4096", (4_096, 2_048)),
        ("vllm serve M --performance-mode throughput --max-model-len 4 --max-num-seqs 64", (256, 64)),
        ("vllm serve M --no-enable-chunked-prefill", (131_072, 1_024)),
        ("vllm serve M --enable-chunked-prefill False", (131_072, 1_024)),
        ("vllm serve M --enable-chunked-prefill=False", (131_072, 1_024)),
        ("vllm serve M --enable-chunked-prefill", (8_192, 1_024)),
        ("vllm serve M --no-enable-chunked-prefill --max-model-len 4096", (8_192, 1_024)),
    ],
)  # fmt: skip
def test_batch_limits(line: str, expected: tuple[int, int]) -> None:
    """``_set_default_max_num_seqs_and_batched_tokens_args``: doubled where not given, then at least the longest prompt,
    then at most all sequences at full length."""
    found = planned(line.replace(" M", " meta-llama/Llama-3.1-8B")).inputs
    limits = found["max_num_batched_tokens"], found["max_num_seqs"]
    assert limits == (expected[0], min(expected[1], expected[0]))


@pytest.mark.parametrize(
    ("version", "flags", "expected"),
    [
        ("0.11.0", "--no-enable-chunked-prefill", 8_192), ("0.12.0", "--no-enable-chunked-prefill", 131_072),
        ("0.16.0", "--performance-mode throughput", 8_192), ("0.17.0", "--performance-mode throughput", 16_384),
    ],
)  # fmt: skip
def test_batch_limits_by_version(version: str, flags: str, expected: int) -> None:
    found = planned(f"vllm serve meta-llama/Llama-3.1-8B {flags}", f"vllm@{version}").inputs
    assert found["max_num_batched_tokens"] == expected


def test_prompts_in_one_step_cost_their_activations() -> None:
    cut = planned("vllm serve meta-llama/Llama-3.1-8B")
    whole = planned("vllm serve meta-llama/Llama-3.1-8B --no-enable-chunked-prefill")
    assert cut.memory is not None
    assert whole.memory is not None
    assert (cut.memory[0].kv_bytes - whole.memory[0].kv_bytes) / 2**30 == pytest.approx(12.7, abs=0.05)


def test_prompts_in_one_step_need_room() -> None:
    """``verify_max_model_len``."""
    with pytest.raises(UnsupportedError, match="8,192 below max_model_len 131,072") as caught:
        planned("vllm serve meta-llama/Llama-3.1-8B --no-enable-chunked-prefill --max-num-batched-tokens 8192")
    assert "--max-model-len 8192" in (caught.value.hint or "")
    enough = "--max-num-batched-tokens 8192 --max-model-len 8192"
    assert planned(f"vllm serve meta-llama/Llama-3.1-8B --no-enable-chunked-prefill {enough}").verdict.fits


@pytest.mark.parametrize(("value", "which"), [("0", "V1 runner"), ("1", "V2 runner")])
def test_the_runner_by_its_variable(value: str, which: str) -> None:
    made = planned(f"VLLM_USE_V2_MODEL_RUNNER={value} vllm serve Qwen/Qwen3-30B-A3B", "vllm@0.28.0")
    assert made.memory is not None
    assert which in next(t.source for t in made.memory[0].terms if t.name == "activation peak")
    note = next(text for text in made.verdict.notes if text.startswith("to paste: "))
    assert note.startswith(f"to paste: VLLM_USE_V2_MODEL_RUNNER={value} vllm serve Qwen/Qwen3-30B-A3B")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("VLLM_USE_V2_MODEL_RUNNER=maybe vllm serve M", "is 0 or 1, not 'maybe'"),
        ("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 vllm serve M", "changes what the memory holds, and is not"),
        ("vllm serve M --use-replayssm", "--use-replayssm changes what the memory holds"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_said(line: str, words: str) -> None:
    made = planned(line.replace(" M", " meta-llama/Llama-3.1-8B"))
    assert any(words in text for text in made.warnings)


MULTI: dict[str, Any] = {
    "kv_connector": "MultiConnector",
    "kv_connector_extra_config": {"connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "X"}]},
}


@pytest.mark.parametrize(
    ("version", "extra", "off"),
    [
        ("0.21.0", {"kv_transfer_config": {"kv_connector": "NixlConnector"}}, True),
        ("0.22.0", {"kv_transfer_config": {"kv_connector": "NixlConnector"}}, False),
        ("0.29.0", {"kv_transfer_config": {"kv_connector": "MoRIIOConnector"}}, True),
        ("0.30.0", {"kv_transfer_config": {"kv_connector": "MoRIIOConnector"}}, False),
        ("0.33.0", {"kv_transfer_config": MULTI}, True),
        ("0.33.0", {"kv_transfer_config": {"kv_connector": "MultiConnector"}}, False),
        ("0.33.0", {"kv_transfer_config": {}}, False), ("0.19.0", {"kv_events_config": "{}"}, True),
        ("0.20.0", {"kv_events_config": "{}"}, False), ("0.33.0", {}, False),
    ],
)  # fmt: skip
def test_which_connectors_keep_the_hybrid_manager(version: str, extra: dict[str, Any], off: bool) -> None:
    given = Settings(engine="vllm", engine_version=version, extra=extra)
    as_text = replace(given, extra={n: v if isinstance(v, str) else json.dumps(v) for n, v in extra.items()})
    assert bool(turned_off_by(given, Rules(version))) is off
    assert turned_off_by(as_text, Rules(version)) == turned_off_by(given, Rules(version))


@pytest.mark.parametrize("text", ["[1]", "{", "nonsense"])
def test_a_connector_that_is_no_object(text: str) -> None:
    with pytest.raises(InputError, match="not a JSON object"):
        plan("gemma-3-27b", gpu="h200-sxm", max_model_len=4096, kv_transfer_config=text)


@pytest.mark.parametrize(
    ("given", "why"),
    [({"async_scheduling": "no"}, "neither True nor False"), ({"performance_mode": "fast"}, "no such mode")],
)
def test_values_that_are_none(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        plan("llama-3.1-8b", gpu="h100-sxm", **given)


def test_a_log_says_its_connector(tmp_path: Path) -> None:
    """Printed as an object, with an object inside."""
    config = (
        "KVTransferConfig(kv_connector='LMCacheConnectorV1', engine_id='a', kv_role='kv_both', "
        "kv_connector_extra_config={})"
    )
    path = tmp_path / "start.log"
    path.write_text(
        "INFO 10-20 09:12:50 [api_server.py:1] vLLM API server version 0.33.0\n"
        "INFO 10-20 09:12:50 [utils.py:1] non-default args: {'model': 'google/gemma-3-27b-it', 'max_model_len': 32768, "
        f"'async_scheduling': False, 'kv_transfer_config': {config}}}\n"
        "INFO 10-20 09:12:55 [gpu_worker.py:1] Available KV cache memory: 30.27 GiB\n",
        encoding="utf-8",
    )
    found = {name: said.value for name, said in read_log(str(path)).settings.items()}
    assert json.loads(found["kv_transfer_config"]) == {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    assert found["async_scheduling"] is False


def test_interactivity_captures_every_small_size() -> None:
    """``_set_cudagraph_sizes``: 1 to 32 each, then as ever."""
    plain = Settings(engine="vllm", engine_version="0.33.0", max_num_seqs=256, max_num_batched_tokens=8192)
    each = replace(plain, extra={"performance_mode": "interactivity"})
    sizes = outside.capture_sizes(each, load_gpu("h100-sxm"))
    assert sizes[:34] == [*range(1, 33), 40, 48]
    assert len(sizes) == len(outside.capture_sizes(plain, load_gpu("h100-sxm"))) + 25


@pytest.mark.parametrize(
    ("model", "version", "refused"),
    [
        ("qwen3-next-80b-a3b", "0.20.0", True), ("qwen3-next-80b-a3b", "0.25.0", True),
        ("qwen3-next-80b-a3b", "0.26.0", False), ("deepseek-v3", "0.25.0", False),
    ],
)  # fmt: skip
def test_prefixes_over_context_ranks(model: str, version: str, refused: bool) -> None:
    """``HybridKVCacheCoordinator`` asserts against it before 0.26: "DCP not support hybrid attn now"."""
    given = {"tensor_parallel_size": 4, "decode_context_parallel_size": 2, "max_model_len": 4096}
    engine = f"vllm@{version}"
    if not refused:
        assert plan(model, gpu="b200", engine=engine, force_prefix_caching=True, **given).inputs
        return
    with pytest.raises(UnsupportedError, match="DCP not support hybrid attn now") as caught:
        plan(model, gpu="b200", engine=engine, force_prefix_caching=True, **given)
    assert "vllm@0.26.0" in (caught.value.hint or "")
    assert plan(model, gpu="b200", engine=engine, **given).inputs["enable_prefix_caching"] is False
