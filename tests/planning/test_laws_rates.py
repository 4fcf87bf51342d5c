"""Rates of devices and engines, and the proposals of drafts, at made-up round rates or worked by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines import get_engine
from kvplan.planning.evaluate import evaluate
from kvplan.planning.settings import resolve
from kvplan.planning.speed import decode, speculation
from kvplan.planning.speed.constants import ATTENTION_SHARE, LINKS, MATMUL_SHARE, READ_SHARE, REPORTED
from kvplan.planning.speed.decode import Layout
from kvplan.planning.speed.figures import Setup, setup
from kvplan.planning.speed.profile import Lengths, passed, profile
from kvplan.planning.speed.rates import cache_bits, dense_flops, join, rates
from kvplan.spec.format_table import FORMATS
from kvplan.spec.formats import get_format

from .test_laws_speed import LLAMA_PARAMETERS, ROUND, TABLE, made

# ---- rates ----


def test_joins() -> None:
    assert join(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert join(3.0, 4.0, 3) == pytest.approx(91 ** (1 / 3))
    assert join(0.0, 4.0, 3) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("stored", "key"),
    [
        ("bf16", "16"), ("fp8_e4m3", "fp8"), ("mxfp8", "fp8"), ("int8_channel", "int8"), ("nvfp4", "fp4"),
        ("mxfp4", "16"), ("awq_int4", "16"), ("q8_0", "16"),
    ],
)  # fmt: skip
def test_matrix_units_by_format(stored: str, key: str) -> None:
    """Weight-only formats are unpacked to 16 bits before they are multiplied."""
    assert get_format(stored).units == key


def test_attention_kernels_by_bits() -> None:
    """The nearest kernel above the bits of an element, whose scales come on top."""
    names = {
        "16": ("bf16", "fp16", "fp32"),
        "8": (
            "fp8_e4m3",
            "fp8_ds_mla",
            "q8_0",
            "mlx8_g32",
            "exl3_8",
            "exl3_6",
            "exl3_5",
            "q5_1",
            "q5_0",
            "mxfp6",
            "mlx6_g64",
        ),
        "4": (
            "q4_1",
            "q4_0",
            "nvfp4",
            "nvfp4_ds_mla",
            "mlx4_g32",
            "exl3_4",
            "exl3_2",
            "kivi4_g32",
            "turboquant_4bit_nc",
        ),
    }
    for bits, formats in names.items():
        assert {name: cache_bits(get_format(name)) for name in formats} == dict.fromkeys(formats, bits)


def test_what_runs_on_narrow_units_is_said_by_the_format_and_not_by_its_name() -> None:
    """Weights of 8 bits that are multiplied as such have a scale for a row, a tile or a tensor; none is weight-only."""
    narrow = {name: get_format(name).units for name in FORMATS if get_format(name).units != "16"}
    assert set(narrow.values()) == set(MATMUL_SHARE) - {"16"}
    assert all(8 * get_format(n).block_bytes / get_format(n).block_elements < 10 for n in narrow)
    assert get_format("int8").units == get_format("int8_g128").units == get_format("gptq_int8").units == "16"


def test_matrix_rates_fall_back_to_what_a_device_has() -> None:
    h200, a100, b200 = load_gpu("h200-sxm"), load_gpu("a100-sxm4-80gb"), load_gpu("b200")
    assert dense_flops(h200, "fp8") == (h200.fp8_flops, "fp8")
    assert dense_flops(h200, "fp4") == (h200.fp8_flops, "fp8")
    assert dense_flops(b200, "fp4") == (b200.fp4_flops, "fp4")
    assert dense_flops(a100, "fp8") == (a100.bf16_flops, "16")
    assert dense_flops(a100, "int8") == (a100.int8_ops, "int8")
    assert dense_flops(replace(a100, int8_ops=None), "int8") == (a100.bf16_flops, "16")
    assert dense_flops(replace(h200, bf16_flops=None), "16") == (h200.fp16_flops, "16")
    assert dense_flops(replace(h200, bf16_flops=None, fp16_flops=None), "16") is None


def test_rates_of_a_datasheet() -> None:
    """Measured shares of 4.8 TB/s, stated ones of 989.4 TFLOP/s dense, one direction of the link."""
    h200, bf16 = load_gpu("h200-sxm"), get_format("bf16")
    found = rates(h200, "generic", bf16, bf16)
    assert found is not None
    bandwidth, flops = h200.bandwidth_bytes_per_second, h200.bf16_flops
    assert bandwidth == 4_800_000_000_000
    assert flops == pytest.approx(989e12, rel=2e-3)
    assert found.weight_bandwidth == pytest.approx(READ_SHARE * bandwidth)
    assert found.attention_bandwidth == pytest.approx(ATTENTION_SHARE["16"] * bandwidth)
    assert found.matmul_flops == pytest.approx(0.78 * flops)
    assert found.attention_flops == pytest.approx(0.55 * flops)
    share, seconds = LINKS["nvlink"]
    assert found.link_bandwidth == pytest.approx(450e9 * share)  # one direction of NVLink's 900 GB/s
    assert found.link_seconds == pytest.approx(seconds)
    eager = rates(h200, "generic", bf16, bf16, eager=True)
    assert eager is not None
    for name in ("linear_seconds", "attention_seconds", "layer_seconds", "routing_seconds"):
        assert getattr(eager, name) == pytest.approx(2.3 * getattr(found, name))
    assert rates(replace(h200, bandwidth_bytes_per_second=None), "generic", bf16, bf16) is None


@pytest.mark.parametrize(("engine", "vendor"), sorted(REPORTED))
def test_shares_of_engines_are_shares_and_bounds_hold_the_point(engine: str, vendor: str) -> None:
    own = REPORTED[engine, vendor]
    for share in (own.read_share, own.prefill_share, own.matvec_share, own.naive_share):
        assert share is None or 0 < share <= 1
    assert 0 < own.low < 1 < own.high
    assert 0 < own.prefill_low < 1 < own.prefill_high
    assert own.latency_scale >= 1
    assert own.step_seconds >= 0


def test_an_engine_reads_its_share() -> None:
    h200, bf16 = load_gpu("h200-sxm"), get_format("bf16")
    alone, served = (rates(h200, engine, bf16, bf16) for engine in ("generic", "vllm"))
    assert alone is not None
    assert served is not None
    assert served.weight_bandwidth == pytest.approx(0.8 * alone.weight_bandwidth, rel=1e-12)
    assert served.attention_bandwidth == pytest.approx(0.8 * alone.attention_bandwidth, rel=1e-12)
    assert served.step_seconds == 0.5e-3
    # llama.cpp's multiprocessors unpack 12 GB a second each, of 132; both limits meet softly
    unpacked = rates(h200, "llama.cpp", bf16, bf16)
    assert unpacked is not None
    both = (READ_SHARE * 4.8e12, 132 * 12e9)
    assert unpacked.weight_bandwidth == pytest.approx((both[0] ** -3 + both[1] ** -3) ** (-1 / 3))
    assert unpacked.weight_memory == pytest.approx(both[0])
    assert unpacked.prefill_cap == 132 * 0.8e12
    slow = rates(h200, "llama.cpp", bf16, bf16, flash=False)
    assert slow is not None
    assert slow.attention_bandwidth == 290e9
    assert slow.attention_memory == pytest.approx(ATTENTION_SHARE["16"] * 4.8e12)


def test_figures_of_a_plan() -> None:
    found = plan(
        "llama-3.1-8b", gpu="h200-sxm", engine="generic", max_model_len=8192, concurrency=16, prompt_tokens=1000,
        output_tokens=200,
    ).decode  # fmt: skip
    assert found is not None
    assert (found.batch, found.context) == (16, 1100)
    assert found.kv_bytes == 16 * 1100 * 131_072
    assert found.weight_bytes == 2 * (LLAMA_PARAMETERS - TABLE)
    flops = 16 * (2 * (LLAMA_PARAMETERS - TABLE) + 32 * 4 * 4096 * 1100)
    assert found.arithmetic_intensity == pytest.approx(flops / (found.weight_bytes + found.kv_bytes))
    staged = plan(
        "llama-3.1-8b", gpu="h200-sxm", engine="generic", max_model_len=8192, concurrency=16, prompt_tokens=1000,
        output_tokens=200, pipeline_parallel_size=2,
    ).decode  # fmt: skip
    assert staged is not None
    assert staged.kv_bytes == 8 * 1100 * 131_072 // 2


def test_an_unknown_link_is_taken_for_pcie() -> None:
    bf16 = get_format("bf16")
    found = rates(replace(load_gpu("h200-sxm"), interconnect_bytes_per_second=None), "generic", bf16, bf16)
    assert found is not None
    assert found.link_bandwidth == pytest.approx(0.25 * 32e9)
    assert found.link_seconds == pytest.approx(45e-6)
    assert found.notes == ("link unknown: PCIe 4.0 x16 taken",)


# ---- speculation ----


def test_a_proposal_is_a_step_of_the_draft_layer_and_the_head() -> None:
    """DeepSeek-V3's draft layer by hand: of its 256 experts a token passes 8 and is sent through one head."""
    drafts = '{"method": "mtp", "num_speculative_tokens": 2}'
    found = made("deepseek-v3", "vllm", tensor_parallel_size=8, speculative_config=drafts)
    base = found._replace(rates=ROUND, layout=Layout(tp=8))
    last = base.works[-1]
    draft = last.draft
    assert draft is not None
    (experts,) = draft.experts
    assert (experts.experts, experts.per_token) == (256, 8)
    assert experts.parameters == 256 * 3 * 7168 * 2048 // 8
    head = 129_280 // 8 * 7168
    assert draft.head_parameters == last.head_parameters == head
    # latent attention, the shared expert and the router of one layer, the projection of two vectors to one
    divided = 128 * 192 * 1536 + 128 * 256 * 512 + 7168 * 128 * 128 + 3 * 7168 * 2048 + 2 * 7168 * 7168
    assert draft.parameters == pytest.approx((1536 + 576 + 256) * 7168 + divided / 8, rel=1e-3)
    assert draft.kernels.layers == draft.kernels.routed == 1
    assert draft.kernels.attention == 1
    kernels = draft.kernels.linear * 1e-6 + 10e-6 + 100e-6 + 1e-3
    for batch in (1, 10):
        share = 1 - (1 - 8 / 256) ** batch
        reading = (draft.weight_bytes + experts.num_bytes * share) / 1e12
        products = 2 * batch * (draft.parameters + experts.parameters * 8 // 256 + head) / 1e15
        cache = batch * 1000 * 576 * 2 / 5e11
        scores = batch * 1000 * 2 * (128 // 8) * (576 + 512) / 2e14
        messages = 2 * (1e-5 + batch * 2 * 7 / 8 * 7168 * 2 / 1e11) + 1e-5 + batch * 7 * 129_280 // 8 * 2 / 1e11
        want = join(reading, products, 3.0) + join(cache, scores, 3.0) + kernels + messages
        assert speculation.proposal_seconds(base, batch, 1000) == pytest.approx(want, rel=1e-4)
    checked = decode.step(base.works, ROUND, base.layout, 10, 1000, width=3).seconds
    both = checked + 2 * speculation.proposal_seconds(base, 10, 1000)
    assert speculation.speculative_seconds(base, 10, 1000, 2) == pytest.approx(both)
    plain = decode.step(base.works, ROUND, base.layout, 10, 1000).seconds
    assert speculation.break_even(base, 10, 1000, 2) == pytest.approx(both / plain)


def test_a_proposal_of_another_checkpoint_is_a_step_of_that_model() -> None:
    """With its own widths, head and cache, whatever model checks it."""
    spoken = '{"model": "llama-3.2-1b", "num_speculative_tokens": 4}'
    target = made("llama-3.1-70b", "vllm", tensor_parallel_size=2, speculative_config=spoken)
    alone = made("llama-3.2-1b", "vllm", tensor_parallel_size=2)
    for batch in (1, 64):
        step = decode.step(alone.works, target.rates, target.layout, batch, 1000).seconds - target.rates.step_seconds
        assert speculation.proposal_seconds(target, batch, 1000) == pytest.approx(step, rel=1e-9)


def test_a_profile_has_the_proposals_of_a_step() -> None:
    for name, spoken in (("deepseek-v3", {"method": "mtp"}), ("qwen2.5-7b", {"model": "qwen2.5-0.5b"})):
        config = json.dumps({**spoken, "num_speculative_tokens": 3})
        base = made(name, "vllm", tensor_parallel_size=2, speculative_config=config)._replace(rates=ROUND)
        lengths = Lengths(1000, 256, drafts=3, tokens_per_step=2.0)
        total, _ = passed(profile(base, lengths), 10, 0.0, 1)
        want = speculation.speculative_seconds(base, 10, lengths.context, 3)
        assert total + ROUND.step_seconds == pytest.approx(want, rel=1e-6)


def test_modules_of_several_draft_layers_propose_in_turn() -> None:
    """Each proposal is one module's, so a second one costs memory and no time."""
    spec = load_model("deepseek-v3")
    (name,) = spec.draft_layers
    tensors = tuple(replace(t, count=2) for t in spec.draft_tensors)
    twice = replace(spec, draft_layers=(name, name), draft_tensors=tensors)
    chosen, device = get_engine("vllm"), load_gpu("h200-sxm")
    drafts = []
    for model in (spec, twice):
        given = {"max_model_len": 8192, "tensor_parallel_size": 8, "speculative_config": '{"method": "mtp"}'}
        settings, _ = resolve(model, device, chosen, given)
        found = setup(model, device, chosen, evaluate(model, device, chosen, settings))
        assert isinstance(found, Setup)
        drafts.append(found.works[-1].draft)
    one, two = drafts
    assert one is not None
    assert two is not None
    assert two.weight_bytes == pytest.approx(one.weight_bytes, rel=1e-6)
    assert (two.parameters, two.kernels, two.mixers) == (one.parameters, one.kernels, one.mixers)


def test_drafts_of_a_model_without_draft_layers_cost_nothing_here() -> None:
    base = made()._replace(rates=ROUND)
    checked = decode.step(base.works, ROUND, base.layout, 10, 1000, width=5).seconds
    assert speculation.speculative_seconds(base, 10, 1000, 4) == pytest.approx(checked)


def test_without_draft_layers_there_is_no_proposal() -> None:
    assert speculation.proposal_seconds(made()._replace(rates=ROUND), 10, 1000) == 0.0
