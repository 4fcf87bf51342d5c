"""Rates, drafts and loads at their branches: each figure again from the ones that stand beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy
import pytest

from kvplan import load_gpu
from kvplan.planning.calibration import Calibration, from_data
from kvplan.planning.speed import decode, load, prefill, speculation
from kvplan.planning.speed.load import Limits
from kvplan.planning.speed.profile import Lengths, _same, passed, profile, some_of
from kvplan.planning.speed.rates import Rates, rates
from kvplan.spec.formats import get_format

from .round_rates import ROUND, made
from .test_calibration import calibration, figure, line

H200, H100, CARD = load_gpu("h200-sxm"), load_gpu("h100-sxm"), load_gpu("rtx-4090")
BF16, FP8, Q4 = get_format("bf16"), get_format("fp8_e4m3"), get_format("q4_k_m")


def known(gpu: Any, engine: str, weights: Any = BF16, cache: Any = BF16, **more: Any) -> Rates:
    found = rates(gpu, engine, weights, cache, **more)
    assert found is not None
    return found


def measured(**changed: Any) -> Calibration:
    return from_data(calibration(**changed), "x")


# ---- rates ----


def test_geforce_cards_accumulate_in_half_where_the_engine_asks_for_it() -> None:
    half = CARD.fp16_accumulate_flops
    assert half is not None
    for weights in (BF16, Q4):
        assert weights.units == "16"
        assert known(CARD, "llama.cpp", weights).matmul_flops == pytest.approx(0.78 * half)
    plain = 0.78 * (CARD.bf16_flops or 0)
    assert known(CARD, "vllm").matmul_flops == pytest.approx(plain) != pytest.approx(0.78 * half)
    assert known(CARD, "llama.cpp", FP8).matmul_flops == pytest.approx(0.73 * (CARD.fp8_flops or 0))
    assert known(replace(CARD, fp16_accumulate_flops=None), "llama.cpp").matmul_flops == pytest.approx(plain)
    own = known(CARD, "llama.cpp", calibration=measured(matmul_flops={"16": figure(1e14)}))
    assert own.matmul_flops == 1e14  # what was measured counts more
    eight = known(CARD, "llama.cpp", calibration=measured(matmul_flops={"fp8": figure(1e14)}))
    assert eight.matmul_flops == pytest.approx(0.78 * half)


@pytest.mark.parametrize(("engine", "narrow"), [("vllm", True), ("sglang", True), ("generic", False)])
def test_scores_of_an_index_at_the_rate_of_their_units(engine: str, narrow: bool) -> None:
    share = (H100.bf16_flops or 0) / (H100.fp8_flops or 1)
    assert known(H100, engine).index_share == (pytest.approx(share) if narrow else 1.0)
    assert known(replace(H100, fp8_flops=None), engine).index_share == 1.0
    assert known(replace(H100, bf16_flops=None, fp16_flops=None), engine).index_share == 1.0


def test_limits_of_kernels_beside_the_memory() -> None:
    assert known(H200, "generic").weight_memory is None
    assert known(H200, "generic").attention_memory is None
    mac = load_gpu("apple-m4-max")
    found, bare = known(mac, "llama.cpp", Q4), 0.955 * (mac.bandwidth_bytes_per_second or 0)
    # unpacking is arithmetic: 8 % of the 16-bit rate, two FLOPs an element, 144 bytes for 256 of them
    limit = 0.08 * (mac.bf16_flops or mac.fp16_flops or 0) / 2 * 144 / 256
    assert found.weight_bandwidth == pytest.approx((bare**-3 + limit**-3) ** (-1 / 3))
    assert found.weight_memory == pytest.approx(bare)
    slow = known(mac, "llama.cpp", Q4, flash=False)
    assert slow.attention_bandwidth == pytest.approx(0.13 * (mac.bandwidth_bytes_per_second or 0))
    assert slow.attention_memory == pytest.approx(found.attention_bandwidth)
    assert found.attention_memory is None
    assert known(H200, "vllm", flash=False).attention_memory is None
    assert known(load_gpu("mi300x"), "llama.cpp").prefill_cap is None
    assert known(replace(H200, sm_count=None), "llama.cpp").prefill_cap is None


def test_what_a_calibration_replaces_and_what_it_leaves() -> None:
    stated = known(H200, "generic")
    found = known(H200, "generic", calibration=measured(
        linear={"16": line(2e12, 9e-6)}, attention={"16": line(1e12, 8e-6)}, layer_seconds=figure(1e-5),
        matmul_flops={"16": figure(5e14)},
    ))  # fmt: skip
    assert (found.weight_bandwidth, found.linear_seconds) == (2e12, 9e-6)
    assert (found.attention_bandwidth, found.attention_seconds, found.layer_seconds) == (1e12, 8e-6, 1e-5)
    assert found.matmul_flops == 5e14
    assert found.attention_flops == pytest.approx(0.55 / 0.78 * 5e14)
    assert found.source.startswith("calibration of NVIDIA H200, 2026-11-30")
    assert found.source.endswith("; " + stated.source)
    bare = known(H200, "generic", calibration=measured(
        linear=None, attention={"8": line(1e12, 8e-6)}, layer_seconds=None, matmul_flops=None,
    ))  # fmt: skip
    assert (bare.weight_bandwidth, bare.linear_seconds) == (4.6e12, stated.linear_seconds)
    for name in ("attention_bandwidth", "attention_seconds", "layer_seconds", "matmul_flops", "attention_flops"):
        assert getattr(bare, name) == getattr(stated, name)
    nothing = replace(H200, bandwidth_bytes_per_second=None)
    of_read = known(nothing, "generic", calibration=measured(linear=None, attention=None))
    assert of_read.attention_bandwidth == pytest.approx(0.928 * 4.6e12 / 0.955)
    only = measured(read_bytes_per_second=None, linear={"16": line(2e12, 9e-6)}, attention=None)
    of_line = known(nothing, "generic", FP8, calibration=only)  # weight-only formats share the 16-bit line
    assert (of_line.weight_bandwidth, of_line.attention_bandwidth) == (2e12, pytest.approx(0.928 * 2e12 / 0.955))


# ---- drafts ----


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("pp", [1, 2])
def test_the_last_stage_of_a_pipeline_proposes_for_its_micro_batch(batch: int, pp: int) -> None:
    spoken = '{"model": "llama-3.2-1b", "num_speculative_tokens": 3}'
    base = made("llama-3.1-8b", "vllm", speculative_config=spoken, pipeline_parallel_size=pp)._replace(rates=ROUND)
    found = speculation.speculative_seconds(base, batch, 1000, 3)
    checked = decode.step(base.works, ROUND, base.layout, batch, 1000, width=4).seconds
    micro = -(-batch // pp)
    drafting = 3 * speculation.proposal_seconds(base, micro, 1000)
    assert drafting > 0
    expected = checked + drafting
    if pp > 1:  # or its own part of every micro-batch, where that takes longer
        alone = decode.step(base.works[-1:], ROUND, base.layout._replace(pp=1), micro, 1000, width=4).seconds - 0.5
        expected = max(expected, -(-batch // micro) * (alone + drafting) + 0.5)
    assert found == pytest.approx(expected)
    assert speculation.break_even(base, batch, 1000, 3) == pytest.approx(
        found / decode.step(base.works, ROUND, base.layout, batch, 1000).seconds
    )


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("drafts", [1, 2, 5])
def test_tokens_of_a_step_with_drafts(acceptance: float, drafts: int) -> None:
    """The model's own, and each draft that comes after nothing but accepted ones."""
    expected = sum(acceptance**n for n in range(drafts + 1))
    assert speculation.expected_tokens(acceptance, drafts) == pytest.approx(expected)


# ---- loads ----


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(tpot=0.008), Limits(ttft=0.05), Limits(request=2.0), Limits(tpot=1e-6)]
)
@pytest.mark.parametrize("slots", [0.5, 1, 7, 60])
def test_the_most_that_can_always_be_under_way(limits: Limits, slots: float) -> None:
    """One more is over a limit, or over what runs at once; none where one alone is."""
    of = profile(made(), Lengths(1000, 200))

    def holds(count: int) -> bool:
        state = load.in_loop(of, count, slots) if count > 1 else load.alone(of)
        return count <= slots and bool(limits.factor(state, of.lengths) <= 1 + 1e-6)

    found = load.loops_carried(of, slots, limits)
    assert found == int(found)
    counted = 0
    while holds(counted + 1):
        counted += 1
    assert found == pytest.approx(counted, abs=1 if counted > 1 else 0)
    if limits == Limits():
        assert found == int(slots)
    both = load.loops_carried(of._replace(chunk=numpy.array([of.chunk] * 2)), numpy.array([slots] * 2), limits)
    assert both.tolist() == [found, found]


def test_no_load_is_carried_by_a_limit_below_a_lone_request() -> None:
    of = profile(made(), Lengths(1000, 200))
    alone = load.alone(of)
    assert load.carried(of, 10, Limits(ttft=float(alone.seconds_to_first_token) * 0.99)).requests_per_second == 0
    assert load.carried(of, 10, Limits(ttft=float(alone.seconds_to_first_token) * 1.5)).requests_per_second > 0
    assert load.alone(of).in_flight == pytest.approx(
        alone.requests_per_second * (alone.seconds_to_first_token + 199 * alone.seconds_per_step)
    )


def test_requests_beyond_the_slots_wait_until_one_is_free() -> None:
    of = profile(made(), Lengths(1000, 200))
    full, over = load.in_loop(of, 5, 5), load.in_loop(of, 8, 5)
    assert full.slot_seconds == pytest.approx(0)
    assert over.slot_seconds == pytest.approx(3 / over.requests_per_second)
    assert over.seconds_to_first_token == pytest.approx(full.seconds_to_first_token + over.slot_seconds)
    assert over.in_flight == pytest.approx(5)


# ---- profiles ----


def test_entries_of_a_profile_of_arrays() -> None:
    of = profile(made("mixtral-8x7b", tensor_parallel_size=2), Lengths(1000, 200))
    (count, stage), rows = of.stages[0], [2, 0]
    wide = of._replace(
        stages=((numpy.array([1, 2, 3]), stage._replace(weights=numpy.array([5.0, 6.0, 7.0]), draft=stage)),),
        chunk=numpy.array([10, 20, 30]),
    )
    found = some_of(wide, rows)
    assert found.stages[0][0].tolist() == [3, 1]
    assert found.stages[0][1].weights.tolist() == [7.0, 5.0]
    assert found.chunk.tolist() == [30, 10]
    assert found.stages[0][1].draft == stage
    assert found.stages[0][1].experts == stage.experts
    assert (found.pp, found.spread, found.softness, found.lengths) == (of.pp, of.spread, of.softness, of.lengths)
    assert count == 1


def test_stages_that_cost_the_same() -> None:
    stage = profile(made("mixtral-8x7b", tensor_parallel_size=2), Lengths(1000, 200)).stages[0][1]
    ((idle, seconds),) = stage.experts
    assert _same(stage, stage._replace())
    for other in (
        stage._replace(weights=stage.weights * 2), stage._replace(fixed=stage.fixed * 2), stage._replace(experts=()),
        stage._replace(experts=((idle, seconds * 2),)), stage._replace(experts=((idle / 2, seconds),)),
        stage._replace(draft=stage),
    ):  # fmt: skip
        assert not _same(stage, other)
    one, two = (stage._replace(weights=numpy.array([1.0, n])) for n in (2.0, 3.0))
    assert _same(one, one._replace(fixed=one.fixed))
    assert not _same(one, two)


def test_drafts_of_a_step_that_decodes_and_none_of_a_prompt_alone() -> None:
    spoken = '{"model": "llama-3.2-1b", "num_speculative_tokens": 3}'
    base = made("llama-3.1-8b", "vllm", speculative_config=spoken)._replace(rates=ROUND)
    lengths = Lengths(1000, 200, drafts=3, tokens_per_step=2.0)
    of = profile(base, lengths)
    (_, stage), plain = of.stages[0], profile(base, lengths)
    assert stage.draft is not None
    without = plain._replace(stages=((1, stage._replace(draft=None)),))
    drafting = [passed(of, n, 0.0, 1)[0] - passed(without, n, 0.0, 1)[0] for n in (0.0, 0.5, 1.0, 8.0)]
    assert drafting[0] == 0
    assert drafting[1] == pytest.approx(3 * speculation.proposal_seconds(base, 0.5, lengths.context) / 2)
    assert drafting[2] == pytest.approx(3 * speculation.proposal_seconds(base, 1, lengths.context))
    assert drafting[3] == pytest.approx(3 * speculation.proposal_seconds(base, 8, lengths.context))
    assert profile(base, Lengths(1000, 200)).stages[0][1].draft is None


# ---- prompts ----


def test_what_bounds_a_prompt_and_what_its_seconds_are_made_of() -> None:
    base = made()._replace(rates=ROUND)
    found = prefill.prompt(base.works, ROUND, base.layout, 1000, 1000)
    assert found is not None
    assert found.communication == 0
    assert found.memory == pytest.approx(base.works[0].weight_bytes / 1e12 + 1000 * 131_072 / 5e11)
    assert prefill.prompt(base.works, ROUND._replace(matmul_flops=None), base.layout, 1000, 1000) is None
    assert prefill.prompt(base.works, ROUND._replace(attention_flops=None), base.layout, 1000, 1000) is None
    parts = {"memory": 1.0, "compute": 1.0, "communication": 1.0}
    for name in parts:
        assert prefill.bound(found._replace(**{**parts, name: 2.0})) == name
