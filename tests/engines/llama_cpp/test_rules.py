"""The rules of llama.cpp one by one: cells, types, offload, slots, and what a GPU holds."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given as fuzz
from hypothesis import settings as fuzzing
from hypothesis import strategies as st

from kvplan import load_gpu, load_model
from kvplan.engines.llama_cpp import architectures, offload
from kvplan.engines.llama_cpp.geometry import pad, slot_tokens
from kvplan.errors import InputError, KvplanError, UnsupportedError
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.sources.gguf import architectures as gguf_architectures
from kvplan.sources.gguf.metadata import read_metadata

MIB, GIB = 2**20, 2**30


def plan(model: str, gpu: str | None = None, engine: str = "llama.cpp", **given: Any) -> Plan:
    return plan_deployment(load_model(model), load_gpu(gpu) if gpu else None, engine, given)


def pools(model: str, **given: Any) -> dict[str, float]:
    """MiB by kind of cache."""
    allocation = plan(model, **given).allocation
    assert allocation is not None
    return {pool.kind: pool.bytes / MIB for pool in (*allocation.pools, *allocation.states)}


# ---- cells, slots, streams ----


@pytest.mark.parametrize(
    ("n_ctx", "slots", "cells"), [(4097, 1, 4352), (1, 1, 256), (8192, 3, 8448), (1000, 4, 1024), (10000, 3, 10752)]
)
def test_cells(n_ctx: int, slots: int, cells: int) -> None:
    assert slot_tokens(n_ctx, slots, False) * slots == cells
    found = plan("llama-3.1-8b", ctx_size=n_ctx, parallel=slots)
    assert found.allocation is not None
    assert [pool.cells for pool in found.allocation.pools] == [cells]


def test_left_to_itself_four_slots_share_a_pool() -> None:
    auto, one = plan("gemma-3-27b", ctx_size=32768), plan("gemma-3-27b", ctx_size=32768, parallel=1)
    assert auto.inputs["slots"] == 4
    assert auto.inputs["unified"] is True
    assert auto.inputs["max_model_len"] == 32768
    assert pools("gemma-3-27b", ctx_size=32768)["sliding"] == 52 * 4608 * 16 * 128 * 4 / MIB
    assert one.allocation is not None
    assert pools("gemma-3-27b", ctx_size=32768, parallel=1) == {"full": 2560, "sliding": 624}


def test_given_slots_have_streams_and_share_the_context_out() -> None:
    found = plan("llama-3.1-8b", ctx_size=8192, parallel=4)
    assert found.inputs["max_model_len"] == 2048
    assert any("shared out: 4 slots of 2,048" in w for w in found.warnings)


def test_the_longest_request_may_be_given_instead_of_the_context() -> None:
    assert pools("llama-3.1-8b", max_model_len=8192, parallel=4) == {"full": 4096}
    with pytest.raises(InputError, match="one slot's share"):
        plan("llama-3.1-8b", max_model_len=8192, ctx_size=8192)


@fuzz(st.integers(1, 1 << 22), st.integers(1, 64), st.booleans())
def test_a_context_holds_what_was_asked_for(n_ctx: int, slots: int, unified: bool) -> None:
    tokens = slot_tokens(n_ctx, slots, unified)
    assert tokens % 256 == 0
    assert tokens * (1 if unified else slots) >= n_ctx - slots
    assert tokens <= pad(n_ctx)


# ---- what an architecture changes ----


@pytest.mark.parametrize("model", ["ministral-8b-2410", "phi-3-medium-4k", "starcoder2-15b"])
def test_windows_that_are_ignored(model: str) -> None:
    found = plan(model, ctx_size=16384, parallel=1)
    assert found.allocation is not None
    assert [pool.kind for pool in found.allocation.pools] == ["full"]
    assert any("ignores the window" in w for w in found.warnings)


def test_converted_architectures_are_those_that_files_may_have() -> None:
    assert set(architectures.CONVERTED) <= gguf_architectures.KNOWN
    assert architectures._WINDOWED - {"deepseek4"} == set(gguf_architectures.WINDOWS)


def test_configuration_and_file_give_the_same_caches() -> None:
    keys = {
        "block_count": 62, "embedding_length": 5376, "attention.head_count": 32, "attention.head_count_kv": 16,
        "attention.key_length": 128, "attention.value_length": 128, "attention.sliding_window": 1024,
        "feed_forward_length": 21504, "vocab_size": 262144, "context_length": 131072,
    }  # fmt: skip
    given = {"ctx_size": 65536, "parallel": 2, "kv_cache_dtype": "q8_0,q5_1"}
    from_file = plan_deployment(read_metadata("gemma3", keys), None, "llama.cpp", given)
    assert from_file.allocation is not None
    by_name = plan("gemma-3-27b", **given)
    assert by_name.allocation is not None
    assert from_file.allocation.pools == by_name.allocation.pools


def test_an_unknown_architecture_is_planned_with_a_warning() -> None:
    assert any("no converter" in w for w in plan("opt-13b", ctx_size=2048).warnings)


@pytest.mark.parametrize("model", ["whisper-large-v3", "llama-3.2-11b-vision", "deepseek-v4.1-flash"])
def test_caches_that_llama_cpp_does_not_have(model: str) -> None:
    with pytest.raises(UnsupportedError, match=r"llama\.cpp has no"):
        plan(model, ctx_size=4096, max_model_len=None)


# ---- types ----


@pytest.mark.parametrize(
    ("model", "given", "said", "hint"),
    [
        ("llama-3.1-8b", {"cache_type_v": "q8_0", "flash_attn": "off"}, "needs flash attention", "-fa on"),
        ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}, "no cache type fp8", "q8_0"),
        ("llama-3.1-8b", {"cache_type_k": "q3_k"}, "llama.cpp takes f32", None),
        ("phi-2", {"cache_type_k": "q8_0"}, "K head size of 80", "-ctk f16"),
        ("deepseek-v3", {"cache_type_k": "q8_0"}, "K and V take one type", "-ctk q8_0 -ctv q8_0"),
        ("deepseek-v4-flash", {"cache_type_v": "q8_0"}, "K and V take one type", "-ctv f16"),
        ("grok-1", {"cache_type_v": "q8_0"}, "grok runs without it", "-ctv f16"),
    ],
)
def test_types_that_are_refused(model: str, given: dict[str, Any], said: str, hint: str | None) -> None:
    with pytest.raises(UnsupportedError) as error:
        plan(model, ctx_size=2048, **given)
    assert said in str(error.value)
    assert hint is None or hint in (error.value.hint or "")


def test_types_that_are_taken() -> None:
    assert pools("llama-3.1-8b", ctx_size=8192, cache_type_k="q8_0", flash_attn="off") == {"full": 784}
    assert pools("phi-2", ctx_size=2048, cache_type_k="bf16", cache_type_v="f32") == {
        "full": 32 * 2560 * 6 * 2048 / MIB
    }
    # without flash attention blocks run over whole rows
    assert (
        pools("phi-2", ctx_size=2048, cache_type_k="q8_0", flash_attn="off")["full"] == 32 * 2048 * (2720 + 5120) / MIB
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("parallel", "0"), ("parallel", "x"), ("parallel", 257), ("flash_attn", "maybe"), ("tensor_split", "a,b"),
     ("tensor_split", "0,0"), ("tensor_split", "nan"), ("n_gpu_layers", "few"), ("n_gpu_layers", "-7"),
     ("ubatch_size", 0), ("ctx_size", -5), ("n_rs_seq", 1.5)],
)  # fmt: skip
def test_settings_that_cannot_be_read(name: str, value: Any) -> None:
    with pytest.raises(InputError):
        plan("llama-3.1-8b", **{name: value})


# ---- where layers lie ----


def test_layers_by_share() -> None:
    assert offload.split(80, 81, (1.0,)) == offload.Split(0, (80,))
    assert offload.split(80, 81, (1.0, 1.0)) == offload.Split(0, (41, 39))  # the output head is on the last
    assert offload.split(80, 81, (2.0, 1.0)) == offload.Split(0, (54, 26))
    assert offload.split(80, 20, (1.0,)) == offload.Split(61, (19,))
    assert offload.split(80, 0, (1.0,)) == offload.Split(80, (0,))
    with pytest.raises(UnsupportedError, match="GPU 1 would hold none"):
        offload.split(80, 81, (1.0, 0.0))


@fuzz(st.integers(1, 200), st.integers(0, 210), st.lists(st.floats(0.05, 9), min_size=1, max_size=6))
def test_every_layer_lies_somewhere(layers: int, on_gpus: int, shares: list[float]) -> None:
    try:
        parts = offload.split(layers, min(on_gpus, layers + 1), shares)
    except UnsupportedError:
        assert len(shares) > 1
        return
    assert parts.host + sum(parts.gpus) == layers
    assert parts.host == max(0, min(layers, layers + 1 - on_gpus))


def test_caches_follow_their_layers() -> None:
    whole = plan("llama-3.1-70b", "h200-sxm", ctx_size=32768, weights="q4_k_m")
    part = plan("llama-3.1-70b", "rtx-4090", ctx_size=32768, n_gpu_layers=20, weights="q4_k_m")
    two = plan("llama-3.1-70b", "h200-sxm", ctx_size=32768, weights="q4_k_m", tensor_split="2,1")
    assert whole.kv.bytes_per_sequence_per_gpu == 10 * GIB
    assert part.kv.bytes_per_sequence_per_gpu == 10 * GIB * 19 // 80
    assert two.kv.bytes_per_sequence_per_gpu == 10 * GIB * 54 // 80
    assert two.inputs["gpus"] == 2
    assert two.memory is not None
    assert len(two.memory) == 2
    assert plan("llama-3.1-70b", "h200-sxm", ctx_size=32768, gpus=2, weights="q4_k_m").inputs["layers_per_gpu"] == [
        41,
        39,
    ]


def test_weights_add_up_over_host_and_gpus() -> None:
    given = {"ctx_size": 4096, "weights": "q4_k_m"}
    whole = plan("llama-3.1-70b", "h200-sxm", **given).memory
    halves = plan("llama-3.1-70b", "h200-sxm", gpus=2, **given).memory
    nothing = plan("llama-3.1-70b", "h200-sxm", n_gpu_layers=0, **given).memory
    assert whole is not None
    assert halves is not None
    assert nothing is not None
    assert sum(row.weights_bytes for row in halves) == whole[0].weights_bytes
    assert nothing[0].weights_bytes == 0


def test_tied_embeddings_are_on_the_gpu_as_the_head() -> None:
    tied, untied = (plan(m, "h200-sxm", ctx_size=4096).memory for m in ("gemma-3-27b", "llama-3.1-8b"))
    assert tied is not None
    assert untied is not None
    assert "weights not on this GPU" not in [t.name for t in tied[0].terms]
    term = next(t for t in untied[0].terms if t.name == "weights not on this GPU")
    assert term.bytes == -128256 * 4096 * 2


def test_caches_in_host_memory() -> None:
    found = plan("llama-3.1-70b", "h200-sxm", ctx_size=1 << 20, kv_offload=False, weights="q4_k_m")
    assert found.kv.bytes_per_sequence_per_gpu == 0
    assert found.allocation is not None
    assert found.allocation.bytes == 320 * GIB
    assert found.verdict.fits


def test_tensor_parallelism_is_pointed_to_layers() -> None:
    with pytest.raises(UnsupportedError) as error:
        plan("llama-3.1-70b", tensor_parallel_size=2, ctx_size=4096)
    assert "--gpus 2" in (error.value.hint or "")


# ---- capacity ----


def test_requests_share_the_pool_or_have_a_slot_each() -> None:
    found = plan("llama-3.1-8b", "h100-sxm", ctx_size=65536).capacity
    assert found is not None
    assert found.max_concurrency == 1.0
    assert found.kv_tokens == found.engine_reported_tokens == 65536
    at = {row.tokens: row.requests for row in found.at}
    assert (at[1024], at[16384], at[65536]) == (4, 4, 1)
    streams = plan("llama-3.1-8b", "h100-sxm", ctx_size=65536, parallel=8).capacity
    assert streams is not None
    assert streams.max_concurrency == 8.0
    assert streams.max_single_request_tokens == 8192


@pytest.mark.parametrize(
    ("parallel", "slots", "longest"), [(1, 1, 131072), (2, 2, 131072), (4, 4, 65536), (None, 4, 131072)]
)
def test_a_slot_ends_at_the_trained_context(parallel: int | None, slots: int, longest: int) -> None:
    """Twice what the model was trained with: cells are laid out, requests do not get them."""
    given = {} if parallel is None else {"parallel": parallel}
    made = plan("llama-3.1-8b", "h100-sxm", ctx_size=262144, **given)
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 262144
    assert made.capacity.max_single_request_tokens == longest
    at = {row.tokens: row.requests for row in made.capacity.at}
    assert at[1024] == slots
    assert at.get(262144, 0) == 0
    whole = longest >= made.inputs["max_model_len"]
    assert made.capacity.max_concurrency == (slots if whole else 0)


def test_a_context_that_is_not_given_shrinks_to_the_memory() -> None:
    found = plan("llama-3.1-8b", "rtx-4090")
    assert found.verdict.fits
    assert found.memory is not None
    assert found.memory[0].budget_bytes == found.memory[0].total_bytes - GIB
    length = found.inputs["max_model_len"]
    assert 4096 < length < 131072
    assert length % 256 == 0
    asked = plan("llama-3.1-8b", "rtx-4090", ctx_size=131072)
    assert asked.verdict.fits is False
    assert asked.verdict.binding == "kv"
    assert asked.capacity is not None
    assert asked.capacity.max_single_request_tokens is not None
    assert length <= asked.capacity.max_single_request_tokens < 131072


@fuzzing(max_examples=25, deadline=None)
@fuzz(
    st.sampled_from(["gemma-3-27b", "qwen3-next-80b-a3b", "deepseek-v3", "llama-3.1-8b"]),
    st.integers(1, 400),
    st.integers(1, 8),
)
def test_longer_contexts_take_no_less(model: str, steps: int, slots: int) -> None:
    small, large = (plan(model, ctx_size=n * 256, parallel=slots).allocation for n in (steps, steps + 7))
    assert small is not None
    assert large is not None
    assert small.bytes <= large.bytes


# ---- Ollama ----


def test_ollama_gives_each_slot_its_context() -> None:
    found = plan("llama-3.1-8b", engine="ollama", num_ctx=8192, num_parallel=4)
    assert found.allocation is not None
    assert [p.bytes for p in found.allocation.pools] == [4 * GIB]
    assert found.inputs["max_model_len"] == 8192


@pytest.mark.parametrize(("gpu", "tokens"), [("h100-sxm", 131072), ("rtx-4090", 32768), ("rtx-3060-12gb", 4096)])
def test_ollama_chooses_a_context_by_memory(gpu: str, tokens: int) -> None:
    assert plan("qwen2.5-7b", gpu, "ollama", weights="q4_k_m").inputs["num_ctx"] == min(tokens, 131072)


def test_ollama_batches_by_context() -> None:
    short, middle, long = (plan("gemma-3-4b", "h100-sxm", "ollama", num_ctx=n) for n in (4096, 8192, 65536))
    assert [p.inputs["ubatch_size"] for p in (short, middle, long)] == [512, 1024, 2048]
    assert long.allocation is not None
    assert next(p.cells for p in long.allocation.pools if p.kind == "sliding") == 1024 + 2048
    small = plan("gemma-3-4b", "h100-sxm", "ollama", num_ctx=65536, flash_attn="off")
    assert small.inputs["ubatch_size"] == 512


def test_ollama_runs_recurrent_models_with_one_slot() -> None:
    assert plan("qwen3-next-80b-a3b", engine="ollama", num_ctx=8192, num_parallel=4).inputs["slots"] == 1


def test_types_given_beside_auto() -> None:
    assert pools("llama-3.1-8b", ctx_size=8192, kv_cache_dtype="auto", cache_type_k="q8_0") == {"full": 784}
    with pytest.raises(InputError, match="says K and V already"):
        plan("llama-3.1-8b", ctx_size=8192, kv_cache_dtype="q8_0", cache_type_k="q8_0")


def test_ollama_refuses_what_llama_server_refuses() -> None:
    """In its own words: nobody can give llama-server's flags there."""
    with pytest.raises(UnsupportedError, match="needs flash attention, and OLLAMA_FLASH_ATTENTION is off") as caught:
        plan("llama-3.1-8b", engine="ollama", num_ctx=4096, kv_cache_dtype="q8_0", flash_attn="off")
    assert caught.value.where == "OLLAMA_KV_CACHE_TYPE"
    assert (caught.value.hint or "").startswith("OLLAMA_FLASH_ATTENTION=1")
    with pytest.raises(UnsupportedError) as phi:
        plan("phi-2", engine="ollama", num_ctx=2048, kv_cache_dtype="q8_0")
    assert (phi.value.hint or "").startswith("OLLAMA_KV_CACHE_TYPE=f16")
    for error in (caught, phi):
        assert "-ct" not in (error.value.hint or "")


# ---- versions, names, speed ----


def test_other_builds_are_planned_by_the_known_rules() -> None:
    for engine in ("llamacpp", "llama.cpp@b8467", "llama.cpp@0.4.1"):
        assert plan("llama-3.1-8b", engine=engine, ctx_size=4096).allocation is not None
    with pytest.raises(KvplanError):
        plan("llama-3.1-8b", engine="llama.cpp@new; rm", ctx_size=4096)


def test_the_fast_path_stays_light() -> None:
    code = (
        "import sys; from kvplan.cli.main import main; "
        "main(['plan', 'llama-3.1-8b', '--engine', 'llama.cpp', '-c', '8192', '--gpu', 'h100-sxm', '--json']); "
        "print([m for m in ('pydantic', 'rich', 'numpy', 'torch', 'asyncio') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"


# ---- caches that do not fit ----


def test_the_caches_of_all_slots_are_what_does_not_fit() -> None:
    made = plan("qwen3-32b", "rtx-4090", weights="q4_k_m", ctx_size=32_768, parallel=4)
    assert made.verdict.reason.startswith("the caches of 4 slots (32,768 cells) need 8.00 GiB of cache per GPU")
    alone = plan("qwen3-32b", "rtx-4090", weights="q4_k_m", ctx_size=32_768, parallel=1)
    assert alone.verdict.reason.startswith("one request of 32,768 tokens needs 8.00 GiB of cache per GPU")


@pytest.mark.parametrize(("engine", "given"), [
    ("llama.cpp", {"ctx_size": 32_768, "parallel": 4}), ("llama.cpp", {"ctx_size": 32_768}),
    ("ollama", {"num_ctx": 8192, "num_parallel": 4}),
])  # fmt: skip
def test_what_does_not_start_holds_nothing(engine: str, given: dict[str, Any]) -> None:
    made = plan("qwen3-32b", "rtx-4090", engine, weights="q4_k_m", **given)
    assert made.verdict.fits is False
    assert made.capacity is not None
    assert made.capacity.max_concurrency == made.capacity.kv_tokens == 0
    assert {at.requests for at in made.capacity.at} == {0}


def test_a_smaller_cache_is_proposed_in_the_words_of_the_engine() -> None:
    given: dict[str, Any] = {"weights": "q4_k_m", "ctx_size": 32_768, "parallel": 4}
    found = [f"{h.flag} {h.value}" for h in plan("qwen3-32b", "rtx-4090", **given).verdict.hints]
    assert "--cache-type-k q8_0 --cache-type-v q8_0" in found
    typed = plan("qwen3-32b", "rtx-4090", **given, kv_cache_dtype="f16").verdict.hints
    assert "--kv-cache-dtype q8_0" in [f"{h.flag} {h.value}" for h in typed]
