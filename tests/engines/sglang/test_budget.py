"""SGLang's share of a device and what is gone before it, by hand: classes of cards, encoders, AMD, DP attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from at_random import worked

from kvplan import load_gpu, load_model, plan
from kvplan.engines.sglang import budget, fraction
from kvplan.planning.planner import work_out
from kvplan.units import GIB, MIB


def captured(most: int) -> int:
    """Token counts of prefill graphs: ``piecewise_cuda_graph_tokens`` of ``server_args.py``."""
    counts, size = 0, 4
    while size <= most:
        counts += 1
        size += 4 if size < 32 else 16 if size < 256 else 32 if size < 512 else 64 if size < 1024 else (
            256 if size < 4096 else 512
        )  # fmt: skip
    return counts


@pytest.mark.parametrize("most", [1, 4, 5, 32, 33, 48, 256, 288, 512, 576, 1024, 1280, 2048, 4096, 4608, 8192, 16384])
def test_prefill_graphs(most: int) -> None:
    assert fraction.prefill_graph_count(most) == captured(most)
    assert fraction.prefill_graph_count(most - 1) == captured(most - 1)


def reserved(mib: int, tp: int, pp: int, chunk: int, running: int | None, dp: int, latent: bool) -> float:
    """``_handle_gpu_memory_settings`` of 0.5.23."""
    small, large = (8, 8) if mib < 20480 else (48, 160) if mib < 35840 else (32, 160) if mib < 61440 else (
        (256, 512) if mib < 163840 else (512, 512)
    )  # fmt: skip
    batch = small if tp < 4 else large
    batch = min(batch, running) if running else batch
    size = 512 + max(chunk, 2048) * 1.5 + tp * pp / 8 * 1024 + batch * 2
    if dp > 1:
        size += batch * dp * (3 if batch <= 300 else 4.5)
    size += 1536 if latent else captured(chunk) * 8
    return max(size, 10 * 1024) if mib > 60 * 1024 else size


@pytest.mark.parametrize("mib", [20479, 20480, 35839, 35840, 61439, 61440, 61441, 163839, 163840, 183359])
def test_the_share_of_a_card(mib: int) -> None:
    model = load_model("llama-3.1-8b")
    gpu = replace(load_gpu("h100-sxm"), nvml_total_bytes=mib * MIB + MIB - 1, torch_total_bytes=mib * MIB)
    for tp, running, asked in ((1, None, None), (4, 33, None), (2, None, 1024)):
        given: dict[str, Any] = {"tensor_parallel_size": tp}
        given |= {"max_running_requests": running} if running else {}
        given |= {"chunked_prefill_size": asked} if asked else {}
        outcome = work_out(model, gpu, "sglang", given)[3]
        chunk = asked or (2048 if mib < 20480 else 4096 if mib < 61440 else 8192 if mib < 163840 else 16384)
        share = round((mib - reserved(mib, tp, 1, chunk, running, 1, False)) / mib, 3)
        extra = outcome.settings.extra
        assert (extra["chunked_prefill_size"], extra["mem_fraction_static"]) == (chunk, share)
        assert outcome.waterfalls is not None
        assert outcome.waterfalls[0].budget_bytes == int(mib * MIB * share)
        (context,) = [t for t in outcome.waterfalls[0].terms if t.name == "context, communication"]
        sizes = (1200, 512, 2560) if tp > 1 else (512, 256, 1024)
        assert (context.bytes, context.low_bytes, context.high_bytes) == tuple(int(share * n * MIB) for n in sizes)


def test_the_share_beside_latent_attention_and_dp() -> None:
    outcome = worked(load_model("deepseek-v3"), "sglang", "h200-sxm", tensor_parallel_size=8, attn_dp_size=8)[1]
    gpu = load_gpu("h200-sxm")
    mib = (gpu.nvml_total_bytes or gpu.device_bytes) // MIB
    share = round((mib - reserved(mib, 8, 1, 8192, None, 8, True)) / mib, 3)
    assert outcome.settings.extra["mem_fraction_static"] == share


@pytest.mark.parametrize(
    ("parameters", "version", "factor"),
    [
        (0, "0.4.9", 0.9), (10**9, "0.4.9", 0.9), (24 * 1024**2 * 23 // 2, "0.5.23", 0.95),
        (24 * 1024**2 * 23, "0.5.2", 0.95 * 0.9), (24 * 1024**2 * 69 // 2, "0.5.2", 0.95 * 0.8),
        (10**11, "0.5.23", 0.95 * 0.8), (24 * 1024**2 * 23 // 4, "0.5.23", 0.95 * 1.05), (1, "0.5.23", 0.95 * 1.05),
    ],
)  # fmt: skip
def test_encoders(parameters: int, version: str, factor: float) -> None:
    """``adjust_mem_fraction_for_vlm``: 0.95 of it for ViT-L/14, a tenth less for every one more, 0.8 to 1.05."""
    assert fraction.encoder_factor(parameters, version) == pytest.approx(factor, rel=1e-9)


def test_an_encoder_makes_the_share_smaller() -> None:
    plain, seeing = (worked(load_model(n), "sglang", "h100-sxm")[1].settings for n in ("qwen2.5-7b", "qwen2.5-vl-7b"))
    tower = max(t.parameters for t in load_model("qwen2.5-vl-7b").towers if t.name == "vision")
    share = plain.extra["mem_fraction_static"] * fraction.encoder_factor(tower, "0.5.23")
    assert seeing.extra["mem_fraction_static"] == round(share, 4)
    for model, given, said in (
        ("qwen2.5-vl-7b", {}, True), ("qwen2.5-vl-7b", {"mem_fraction_static": 0.8}, False), ("qwen2.5-7b", {}, False),
    ):  # fmt: skip
        made = plan(model, gpu="h100-sxm", engine="sglang", **given)
        assert any("share of multimodal models" in w for w in made.warnings) is said


@pytest.mark.parametrize(
    ("gpu", "tp", "version", "more"),
    [
        ("mi300x", 1, "0.5.23", 0), ("mi300x", 2, "0.5.23", 4), ("mi300x", 4, "0.5.2", 4), ("mi300x", 8, "0.5.23", 4),
        ("mi300x", 8, "0.4.9", 0), ("h100-sxm", 8, "0.5.23", 0), ("mi300x", 16, "0.5.23", 0),
    ],
)  # fmt: skip
def test_quick_all_reduce(gpu: str, tp: int, version: str, more: int) -> None:
    """Two stages of messages of 2 GiB on 2, 4 or 8 AMD devices, from 0.5.2 on."""
    settings = worked(load_model("llama-3.1-8b"), f"sglang@{version}", gpu, tensor_parallel_size=tp)[1].settings
    term = budget.context_term(settings, load_gpu(gpu), version)
    middle, high = (1200 * MIB, 2560 * MIB) if tp > 1 else (512 * MIB, GIB)
    assert (term.bytes, term.high_bytes) == (middle + more * GIB, high + more * GIB)
    assert term.low_bytes == (512 * MIB if tp > 1 else 256 * MIB)


def test_indices_of_4_bit_experts() -> None:
    """Two int32 for each input of each expert: hidden size and width, on AMD from 0.5.12 on."""
    model = load_model("kimi-k2-thinking")
    for gpu, version, there in (("mi300x", "0.5.23", True), ("mi300x", "0.5.12", True), ("mi300x", "0.5.6", False),
                                ("h200-sxm", "0.5.23", False)):  # fmt: skip
        outcome = worked(model, f"sglang@{version}", gpu, tensor_parallel_size=8)[1]
        stage = outcome.stages[0]
        term = budget.expert_indices(stage, model, load_gpu(gpu), version)
        assert (term is not None) is there
        if term is not None:
            size = 60 * 384 * (7168 + 2048 // 8) * 2 * 4
            assert (term.bytes, term.low_bytes, term.high_bytes) == (size, 0, size)


def test_a_card_that_keeps_more_back_than_it_has() -> None:
    from kvplan.errors import UnsupportedError

    gpu = replace(load_gpu("h100-sxm"), nvml_total_bytes=4000 * MIB, torch_total_bytes=4000 * MIB)
    with pytest.raises(UnsupportedError, match="more back for activations and graphs than this device has") as caught:
        work_out(load_model("llama-3.2-1b"), gpu, "sglang", {"chunked_prefill_size": 8192})
    assert "--mem-fraction-static SHARE" in caught.value.hint


@pytest.mark.parametrize("version", ["0.4.9", "0.5.2"])
@pytest.mark.parametrize(
    ("mib", "ranks", "kept"),
    [(35839, 1, 2.9), (35839, 8, 3.6), (35840, 1, 10.0), (92159, 8, 13.5), (92160, 2, 13.0), (163839, 4, 14.0),
     (163840, 4, 32.0)],
)  # fmt: skip
def test_shares_by_class_of_card(version: str, mib: int, ranks: int, kept: float) -> None:
    """Before 0.5.6: GiB by size of card, more for each rank; 4 more with DP attention."""
    given: dict[str, Any] = {"version": version, "chunk": 8192, "running": None, "latent": False, "pp": 1}
    assert fraction.reserved_mib(mib, tp=ranks, attn_dp=1, **given) == pytest.approx(kept * 1024)
    assert fraction.reserved_mib(mib, tp=ranks, attn_dp=2, **given) == pytest.approx((kept + 4) * 1024)
    chunk = 2048 if mib < 35840 else 8192 if mib < 163840 else 16384
    assert fraction.chunk_default(mib, version) == chunk


def test_latent_pools_have_a_part_for_the_rotary_key() -> None:
    made = plan("deepseek-v3", engine="sglang", max_total_tokens=1000).allocation
    assert made is not None
    (pool,) = made.pools
    assert pool.k_bytes + pool.v_bytes == pool.bytes == 1001 * 61 * 576 * 2
