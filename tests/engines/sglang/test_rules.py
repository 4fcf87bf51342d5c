"""SGLang's fraction by version, its pools, DP attention, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from kvplan import load_gpu, plan
from kvplan.deployment import find_deployment, of_command
from kvplan.engines.sglang import fraction
from kvplan.engines.sglang.pools import Cell, held_bytes, pools_of
from kvplan.errors import KvplanError, UnsupportedError
from kvplan.planning.plan import Plan
from kvplan.sources.commands import read_command
from kvplan.units import GIB


@pytest.mark.parametrize(
    ("version", "mib", "tp", "latent", "expected"),
    [
        ("0.5.23", 81559, 1, False, 0.83), ("0.5.23", 81559, 8, False, 0.812), ("0.5.23", 143771, 1, False, 0.903),
        ("0.5.23", 183359, 1, False, 0.854), ("0.5.23", 46068, 1, False, 0.843), ("0.5.23", 81559, 8, True, 0.799),
        ("0.5.12", 81559, 1, False, 0.83), ("0.5.6", 81559, 1, False, 0.835), ("0.5.2", 81559, 1, False, 0.874),
        ("0.4.9", 81559, 8, False, 0.831), ("0.4.9", 143771, 1, False, 0.911), ("0.4.9", 183359, 8, False, 0.821),
    ],
)  # fmt: skip
def test_static_fraction(version: str, mib: int, tp: int, latent: bool, expected: float) -> None:
    chunk = fraction.chunk_default(mib, version)
    reserved = fraction.reserved_mib(
        mib, version=version, tp=tp, pp=1, chunk=chunk, running=None, attn_dp=1, latent=latent
    )
    assert fraction.static_fraction(mib, reserved) == expected


def test_prefill_graphs() -> None:
    assert fraction.prefill_graph_count(8192) == 58
    assert fraction.prefill_graph_count(16384) == 74


def test_dp_attention_needs_more_for_graphs() -> None:
    plain = fraction.reserved_mib(
        143771, version="0.5.23", tp=8, pp=1, chunk=8192, running=None, attn_dp=1, latent=True
    )
    shared = fraction.reserved_mib(
        143771, version="0.5.23", tp=8, pp=1, chunk=8192, running=None, attn_dp=8, latent=True
    )
    assert shared - plain == 4.5 * 512 * 8


def test_tokens_of_an_h100() -> None:
    """78.9 GiB free before loading and 63.6 after it: 63.6 - 78.9 x 0.17 = 50.187 GiB of 131,072 B a token."""
    made = plan("llama-3.1-8b", engine="sglang", kv_cache_memory_bytes=int(50.187 * GIB))
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 411_131
    assert made.allocation is not None
    assert round(made.allocation.pools[0].k_bytes / GIB, 2) == 25.09


def test_windowed_pool_of_gpt_oss() -> None:
    have = 40 * GIB
    made = plan("gpt-oss-20b", engine="sglang", kv_cache_memory_bytes=have)
    assert made.capacity is not None
    tokens = int(have // 44236.8)
    assert made.capacity.kv_tokens == tokens
    assert made.allocation is not None
    assert [p.cells for p in made.allocation.pools] == [tokens + 1, int(tokens * 0.8) + 1]
    half = plan("gpt-oss-20b", engine="sglang", kv_cache_memory_bytes=have, swa_full_tokens_ratio=0.4).capacity
    assert half is not None
    assert half.kv_tokens == int(have // (12 * 2048 * 1.4))


def test_gemma_3_has_no_windowed_pool() -> None:
    made = plan("gemma-3-27b", engine="sglang", kv_cache_memory_bytes=30 * GIB)
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 30 * GIB // 507_904
    assert any("full length" in w for w in made.warnings)


def test_old_versions_have_no_windowed_pool() -> None:
    made = plan("gpt-oss-20b", engine="sglang@0.5.2", kv_cache_memory_bytes=30 * GIB)
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 30 * GIB // 49_152


def test_states_take_their_share_first() -> None:
    have = 40 * GIB
    made = plan("qwen3-next-80b-a3b", engine="sglang", kv_cache_memory_bytes=have)
    state = 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)
    slots = int(have * 0.9 / 1.9) // state - 1
    assert made.capacity is not None
    assert made.capacity.kv_tokens == (have - (slots + 1) * state) // 24_576
    assert made.capacity.max_num_seqs_allowed == slots // 5
    old = plan("qwen3-next-80b-a3b", engine="sglang@0.5.12", kv_cache_memory_bytes=have).capacity
    assert old is not None
    assert old.kv_tokens == (have - (slots + 1) * state) // 24_576  # one slot more handed out, none for padding
    assert old.max_num_seqs_allowed == (slots + 1) // 3


def test_dp_attention_multiplies_latent_caches() -> None:
    given: dict[str, Any] = {"kv_cache_memory_bytes": 20 * GIB, "tensor_parallel_size": 8}
    plain = plan("deepseek-v3", engine="sglang", **given).capacity
    shared = plan("deepseek-v3", engine="sglang", attn_dp_size=8, **given).capacity
    assert plain is not None
    assert shared is not None
    assert shared.kv_tokens == plain.kv_tokens == 20 * GIB // 70_272
    assert shared.max_concurrency == 8 * (plain.max_concurrency or 0)
    heads = plan("llama-3.1-70b", engine="sglang", attn_dp_size=8, **given).capacity
    assert heads is not None
    assert heads.kv_tokens == 20 * GIB // 327_680  # every rank holds all heads of its requests


def test_sparse_rows() -> None:
    made = plan("deepseek-v3.2", engine="sglang", max_total_tokens=6400, page_size=64, kv_cache_dtype="fp8").allocation
    assert made is not None
    assert made.bytes == (6400 + 64) * 61 * (656 + 132)


def test_pipeline_takes_the_fewest_tokens() -> None:
    made = plan("llama-3.1-70b", engine="sglang", kv_cache_memory_bytes=10 * GIB, pipeline_parallel_size=3)
    assert made.capacity is not None
    assert made.capacity.kv_tokens == 10 * GIB // (27 * 4096)


def test_pages_round_down() -> None:
    made = plan("llama-3.1-8b", engine="sglang", kv_cache_memory_bytes=131072 * 1000, page_size=64).capacity
    assert made is not None
    assert made.kv_tokens == 960
    assert made.num_blocks == 15


def test_a_windowed_pool_below_one_request_is_refused() -> None:
    made = plan("gpt-oss-20b", engine="sglang", kv_cache_memory_bytes=44_237 * 160)
    assert made.verdict.fits is False
    assert "128" in made.verdict.reason or "129" in made.verdict.reason


def test_weights_above_the_share_do_not_start() -> None:
    made = plan(
        "llama-3.1-70b", gpu=load_gpu("h100-sxm"), engine="sglang", tensor_parallel_size=2, mem_fraction_static=0.5
    )
    assert made.verdict.fits is False
    assert made.verdict.binding == "weights"


def test_the_share_covers_weights_and_cache() -> None:
    made = plan("llama-3.1-8b", gpu=load_gpu("h100-sxm"), engine="sglang", mem_fraction_static=0.8)
    assert made.memory is not None
    row = made.memory[0]
    assert row.weights_bytes + row.runtime_bytes + row.kv_bytes == row.budget_bytes == int(row.total_bytes * 0.8)


@pytest.mark.parametrize(
    "given",
    [
        {"swa_full_tokens_ratio": 1.5}, {"mem_fraction_static": 0}, {"page_size": 0},
        {"mamba_full_memory_ratio": "much"}, {"chunked_prefill_size": "8K"},
        {"attn_dp_size": 3, "tensor_parallel_size": 8}, {"chunked_prefill_size": 1000, "page_size": 64},
        {"max_running_requests": -1},
    ],
)  # fmt: skip
def test_refusals(given: dict[str, Any]) -> None:
    with pytest.raises(KvplanError) as caught:
        plan("llama-3.1-8b", gpu=load_gpu("h100-sxm"), engine="sglang", **given)
    assert caught.value.hint


@drawn(
    have=st.integers(0, 10**12), full=st.integers(0, 10**6), windowed=st.integers(0, 10**6),
    state=st.integers(0, 10**8), page=st.sampled_from([1, 32, 64]), ratio=st.floats(0.05, 1.0),
)  # fmt: skip
def test_pools_fit_into_what_they_got(have: int, full: int, windowed: int, state: int, page: int, ratio: float) -> None:
    """All but the page that takes dummy writes, which SGLang does not charge either."""
    one = Cell(full, 0, windowed, 0, 128 if windowed else 0, 0, state)
    found = pools_of(have, one, version="0.5.23", page=page, ratio=ratio, state_ratio=0.9, slots=None, limit=None)
    dummy = page * (full + windowed) + (state if state else 0)
    assert held_bytes(found, one, page) <= have + dummy


def test_multimodal_models_get_a_smaller_share() -> None:
    """Kimi-K2.5's encoder is 27 layers of 1,152 (a ratio of 1.4238), of which its parameters tell the size."""
    exact = 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1))
    assert fraction.encoder_factor(416_866_032, "0.5.23") == pytest.approx(exact, abs=2e-3)
    assert fraction.encoder_factor(1, "0.5.2") == pytest.approx(0.95 * 1.05)
    assert fraction.encoder_factor(10**11, "0.5.2") == pytest.approx(0.95 * 0.8)
    assert fraction.encoder_factor(416_866_032, "0.4.9") == 0.9
    row = plan("kimi-k2.5", gpu=load_gpu("mi355x"), engine="sglang@0.5.6", tensor_parallel_size=8).memory[0]
    assert row.budget_bytes / row.total_bytes == pytest.approx(0.908 * exact, abs=2e-3)
    row = plan("kimi-linear-48b-a3b", gpu=load_gpu("mi355x"), engine="sglang@0.5.6", tensor_parallel_size=8).memory[0]
    assert row.budget_bytes / row.total_bytes == pytest.approx(0.908, abs=1e-3)


def test_rocm_ranks_hold_the_buffer_of_quick_all_reduce_and_indices_of_experts() -> None:
    """4 GiB at the share for 8 ranks of AMD; int32 indices of 7,168 + 256 inputs of 384 experts in 60 layers."""

    def terms(gpu: str, version: str = "0.5.12") -> dict[str, Any]:
        made = plan(
            "kimi-k2.5", gpu=load_gpu(gpu), engine=f"sglang@{version}", tensor_parallel_size=8, mem_fraction_static=0.8
        )
        assert made.memory is not None
        return {t.name: t for t in made.memory[0].terms}

    amd, nvidia, old = terms("mi355x"), terms("b200"), terms("mi355x", "0.4.9")
    context, indices = "context, communication", "indices of 4-bit experts"
    assert amd[context].bytes - nvidia[context].bytes == pytest.approx(0.8 * 4 * GIB, abs=1)
    assert amd[context].low_bytes == nvidia[context].low_bytes
    assert old[context] == nvidia[context]
    assert amd[indices].bytes == 60 * 384 * (7168 + 256) * 2 * 4
    assert amd[indices].low_bytes == 0
    assert indices not in nvidia
    assert indices not in old


# ---- what running requests lay out ----


def test_without_prefixes_requests_size_the_windowed_pool() -> None:
    """64 requests of a window of 127, 128 tokens between evictions and a page at either end; two chunks of 8,192."""
    have, given = 40 * GIB, {"kv_cache_memory_bytes": 40 * GIB, "disable_radix_cache": True, "max_running_requests": 64}
    made = plan("gpt-oss-20b", engine="sglang", **given)
    windowed = 64 * (127 + 128 + 1 + 1) + 2 * 8192 + 1
    assert made.capacity is not None
    assert made.capacity.kv_tokens == (have - windowed * 12 * 2048) // (12 * 2048) == 1_714_793
    assert made.allocation is not None
    assert [p.cells for p in made.allocation.pools] == [1_714_793 + 1, windowed + 1]
    one_chunk = plan("gpt-oss-20b", engine="sglang", disable_overlap_schedule=True, **given).allocation
    assert one_chunk is not None
    assert one_chunk.pools[1].cells == windowed - 8192 + 1
    paged = plan("gpt-oss-20b", engine="sglang", page_size=64, **given).allocation
    assert paged is not None
    assert paged.pools[1].cells == -(-(64 * (127 + 128 + 64 + 64) + 2 * 8192 + 64) // 64) * 64 + 64
    for other in ({"max_running_requests": 64}, {"disable_radix_cache": True}):
        ratio = plan("gpt-oss-20b", engine="sglang", kv_cache_memory_bytes=have, **other).capacity
        assert ratio is not None
        assert ratio.kv_tokens == int(have // 44236.8)
    before = plan("gpt-oss-20b", engine="sglang@0.5.12", **given).capacity
    assert before is not None
    assert before.kv_tokens == int(have // 44236.8)


def test_a_windowed_pool_for_too_many_requests_leaves_no_tokens() -> None:
    given: dict[str, Any] = {"disable_radix_cache": True, "max_running_requests": 4096}
    made = plan("gpt-oss-20b", engine="sglang", kv_cache_memory_bytes=20 * GIB, **given)
    assert made.verdict.fits is False
    assert made.verdict.reason.endswith("or lower --max-running-requests")
    assert plan("gpt-oss-20b", engine="sglang", kv_cache_memory_bytes=26 * GIB, **given).verdict.fits is not False


def test_a_limit_of_tokens_is_no_more_than_the_windowed_pool() -> None:
    given: dict[str, Any] = {"disable_radix_cache": True, "max_running_requests": 64}
    made = plan("gpt-oss-20b", engine="sglang", kv_cache_memory_bytes=40 * GIB, max_total_tokens=20_000, **given)
    assert made.allocation is not None
    assert [p.cells for p in made.allocation.pools] == [20_001, 20_001]
    alone = plan("gpt-oss-20b", engine="sglang", max_total_tokens=200_000, **given).allocation
    assert alone is not None
    assert [p.cells for p in alone.pools] == [200_001, 32_834]


def test_without_prefixes_requests_are_the_state_slots() -> None:
    have = 40 * GIB
    given: dict[str, Any] = {"kv_cache_memory_bytes": have, "disable_radix_cache": True, "max_running_requests": 64}
    made = plan("qwen3-next-80b-a3b", engine="sglang", tensor_parallel_size=4, **given).capacity
    state = 36 * (2048 * 3 * 2 + 8 * 128 * 128 * 4)
    assert made is not None
    assert made.kv_tokens == (have - 65 * state) // (12 * 2 * 256 * 2) == 3_393_073
    assert made.max_num_seqs_allowed == 64
    groups = plan("qwen3-next-80b-a3b", engine="sglang", tensor_parallel_size=4, attn_dp_size=4, **given).allocation
    assert groups is not None
    assert groups.states[0].cells == 64 // 4 + 1
    first = plan("qwen3-next-80b-a3b", engine="sglang@0.5.6", kv_cache_memory_bytes=have, disable_radix_cache=True)
    assert first.capacity is not None
    assert first.capacity.max_num_seqs_allowed == 512


@pytest.mark.parametrize(
    ("version", "given", "each"),
    [
        ("0.5.23", {}, 5), ("0.5.23", {"disable_radix_cache": True}, 1), ("0.5.14", {}, 5), ("0.5.12", {}, 3),
        ("0.5.23", {"mamba_radix_cache_strategy": "no_buffer"}, 3),
        ("0.5.23", {"mamba_radix_cache_strategy": "extra_buffer_lazy"}, 4),
        ("0.5.23", {"disable_overlap_schedule": True}, 3),
        ("0.5.23", {"disable_overlap_schedule": True, "page_size": 64}, 4),
        ("0.5.23", {"disable_overlap_schedule": True, "mamba_radix_cache_strategy": "extra_buffer"}, 4),
        ("0.5.12", {"mamba_radix_cache_strategy": "extra_buffer"}, 5),
    ],
)  # fmt: skip
def test_state_slots_of_a_request(version: str, given: dict[str, Any], each: int) -> None:
    held = plan(
        "qwen3-next-80b-a3b",
        engine=f"sglang@{version}",
        kv_cache_memory_bytes=40 * GIB,
        max_mamba_cache_size=60,
        **given,
    )
    assert held.capacity is not None
    assert held.capacity.max_num_seqs_allowed == 60 // each


def test_architectures_whose_states_are_not_tracked() -> None:
    """Kimi-Linear had no radix tree before 0.5.14, no tracking before 0.5.17."""
    for version, each in (("0.5.12", 1), ("0.5.14", 3), ("0.5.17", 5)):
        made = plan(
            "kimi-linear-48b-a3b", engine=f"sglang@{version}", kv_cache_memory_bytes=40 * GIB, max_mamba_cache_size=60
        )
        assert made.capacity is not None
        assert made.capacity.max_num_seqs_allowed == 60 // each


def test_too_few_state_slots_say_how_many_are_enough() -> None:
    few = plan("qwen3-next-80b-a3b", engine="sglang", kv_cache_memory_bytes=40 * GIB, max_mamba_cache_size=4)
    assert few.verdict.fits is False
    assert few.verdict.reason.endswith("raise --max-mamba-cache-size to 5")
    enough = plan("qwen3-next-80b-a3b", engine="sglang", kv_cache_memory_bytes=40 * GIB, max_mamba_cache_size=5)
    assert enough.verdict.fits is not False


@pytest.mark.parametrize(
    ("model", "version", "given", "says"),
    [
        ("qwen3-next-80b-a3b", "0.5.23", {"mamba_radix_cache_strategy": "extra"}, "none of"),
        ("qwen3-next-80b-a3b", "0.5.12", {"mamba_radix_cache_strategy": "extra_buffer_lazy"}, "0.5.12 has no"),
        ("qwen3-next-80b-a3b", "0.5.6", {"mamba_radix_cache_strategy": "no_buffer"}, "0.5.6 has no"),
        ("kimi-linear-48b-a3b", "0.5.14", {"mamba_radix_cache_strategy": "extra_buffer"}, "does not track"),
        ("qwen3-next-80b-a3b", "0.5.23",
         {"mamba_radix_cache_strategy": "extra_buffer_lazy", "disable_overlap_schedule": True}, "overlapped"),
    ],
)  # fmt: skip
def test_strategies_that_are_refused(model: str, version: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(KvplanError, match=says) as caught:
        plan(model, engine=f"sglang@{version}", kv_cache_memory_bytes=40 * GIB, **given)
    assert caught.value.hint


def test_nothing_is_shared_without_the_radix_tree() -> None:
    given: dict[str, Any] = {
        "kv_cache_memory_bytes": GIB, "concurrency": 12, "prompt_tokens": 1000, "output_tokens": 24,
        "shared_prefix_tokens": 900,
    }  # fmt: skip
    assert plan("llama-3.1-8b", engine="sglang", **given).verdict.fits is not False
    assert plan("llama-3.1-8b", engine="sglang", disable_radix_cache=True, **given).verdict.fits is False


def test_its_command_line_says_the_same() -> None:
    words = "--max-running-requests 64 --disable-radix-cache --disable-overlap-schedule"
    start = "python -m sglang.launch_server --model-path openai/gpt-oss-20b"
    found = read_command(f"{start} {words} --mamba-scheduler-strategy no_buffer")
    assert found.settings == {
        "max_running_requests": 64, "disable_radix_cache": True, "disable_overlap_schedule": True,
        "mamba_radix_cache_strategy": "no_buffer",
    }  # fmt: skip
    assert found.ignored == ()


LONG = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
LINE = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --context-length"


@pytest.mark.parametrize("line", [
    f"{LINE} 40961", f"{LONG}=0 {LINE} 40961",
    f"{LINE} 65536 --json-model-override-args '{{\"rope_scaling\": {{\"rope_type\": \"yarn\", \"factor\": 4.0, "
    "\"original_max_position_embeddings\": 32768}}'",
])  # fmt: skip
def test_a_context_longer_than_the_models_is_refused(line: str) -> None:
    with pytest.raises(UnsupportedError, match="the model's maximum is 40,960") as caught:
        made_of(line)
    assert "--max-model-len 40960" in str(caught.value.hint)


def test_a_context_longer_than_the_models_runs_where_the_variable_says_so() -> None:
    made = made_of(f"{LONG}=true {LINE} 40961")
    assert made.verdict.fits
    assert [w for w in made.warnings if "above the model's 40,960" in w]
    assert any(n.startswith(f"to paste: {LONG}=1 python -m sglang") for n in made.verdict.notes)
    assert made_of(f"{LINE} 40960").verdict.fits
    old = plan("qwen3-32b", gpu="h100-sxm", engine="sglang@0.4.9", tensor_parallel_size=2, max_model_len=40_961)
    assert [w for w in old.warnings if "above the model's maximum of 40,960" in w]


def made_of(line: str) -> Plan:
    return of_command(read_command(line), {"gpu": "h100-sxm"}).plan()


def test_the_variable_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"gpu": "h100-sxm", "engine": "sglang", "tensor_parallel_size": 2, "max_model_len": 40_961}
    with pytest.raises(UnsupportedError):
        find_deployment("qwen3-32b", given).plan()
    monkeypatch.setenv(LONG, "1")
    assert find_deployment("qwen3-32b", given).plan().verdict.fits
