"""Times of prompts at made-up round rates, where each figure can be worked by hand."""

from __future__ import annotations

import numpy
import pytest
from round_rates import LLAMA_PARAMETERS, ROUND, TABLE, works

from kvplan.planning.speed import prefill
from kvplan.planning.speed import work as of
from kvplan.planning.speed.decode import Layout
from kvplan.planning.speed.prefill import Prompt
from kvplan.planning.speed.rates import Rates
from kvplan.planning.speed.work import StageWork


def prompt(tokens: int, chunk: int, rates: Rates = ROUND, name: str = "llama-3.1-8b") -> Prompt:
    found = prefill.prompt(works(name), rates, Layout(), tokens, chunk)
    assert found is not None
    return found


def test_a_prompt_by_hand() -> None:
    """A thousand tokens in one step: every one passes the layers, the last one the head; attention is half a square."""
    body = LLAMA_PARAMETERS - 2 * TABLE
    products = 2 * (body * 1000 + TABLE)
    scores = 32 * 4 * 4096 * (1000 * 1001 // 2)
    weights, cache_ = 2 * (LLAMA_PARAMETERS - TABLE), 131_072 * 1000
    found = prompt(1000, 8192)
    assert found.flops == products + scores
    assert found.num_bytes == weights + cache_
    assert found.memory == pytest.approx(weights / 1e12 + cache_ / 5e11)
    assert found.compute == pytest.approx(products / 0.5e15 + scores / 2e14)
    kernels = 129e-6 + 320e-6 + 3200e-6
    a, b = (weights / 1e12, products / 0.5e15), (cache_ / 5e11, scores / 2e14)
    together = (a[0] ** 3 + a[1] ** 3) ** (1 / 3) + (b[0] ** 3 + b[1] ** 3) ** (1 / 3)
    assert found.seconds == pytest.approx(together + kernels + 0.5)


def test_chunks_compute_the_same_and_read_more() -> None:
    whole, cut = prompt(1000, 1000), prompt(1000, 300)
    assert cut.flops == whole.flops
    weights = 2 * (LLAMA_PARAMETERS - TABLE)
    assert cut.num_bytes == 4 * weights + 131_072 * (300 + 600 + 900 + 1000)
    assert cut.seconds > whole.seconds + 3 * 0.5


def test_many_chunks_are_grouped_and_cost_the_same() -> None:
    """Above 256 full steps neighbours count as the middle one of them: attention grows evenly, so the sum stays."""
    total = prompt(100 * 800 + 50, 100)
    assert total.flops == pytest.approx(prompt(100 * 800 + 50, 100_000).flops, rel=1e-3)
    weights = 2 * (LLAMA_PARAMETERS - TABLE)
    cache_ = 131_072 * (100 * 800 * 801 // 2 + 100 * 800 + 50)
    assert total.num_bytes == pytest.approx(801 * weights + cache_, rel=1e-3)


def test_a_cap_of_the_engine_joins_the_devices_rate() -> None:
    free, capped = prefill.product_seconds(ROUND, 1e15), prefill.product_seconds(ROUND._replace(prefill_cap=2e14), 1e15)
    assert free == pytest.approx(2.0)
    assert capped == pytest.approx((2.0**3 + 5.0**3) ** (1 / 3))
    assert ROUND.decode_flops == 1e15
    assert ROUND._replace(prefill_cap=1e15).decode_flops == pytest.approx(1e15 / 2 ** (1 / 3))
    assert ROUND._replace(matmul_flops=None, prefill_cap=1e15).decode_flops is None


def test_what_bounds_a_prompt() -> None:
    assert prefill.bound(Prompt(0, 0, 3.0, 2.0, 1.0, 6.0)) == "memory"
    assert prefill.bound(Prompt(0, 0, 2.0, 3.0, 1.0, 6.0)) == "compute"
    assert prefill.bound(Prompt(0, 0, 2.0, 3.0, 4.0, 9.0)) == "communication"
    assert prefill.prompt(works(), ROUND._replace(matmul_flops=None), Layout(), 10, 10) is None
    assert prefill.prompt(works(), ROUND._replace(attention_flops=None), Layout(), 10, 10) is None


def test_experts_of_a_lone_prompt_are_its_own() -> None:
    """With expert parallelism the other replicas idle: a prompt's tokens meet only each other in the experts."""
    given = dict(data_parallel_size=8, enable_expert_parallel=True)
    (work,) = works("deepseek-v3", **given)
    assert {e.groups for e in work.experts} == {8}
    found = prefill.prompt([work], ROUND, Layout(dp=8, expert_parallel=True), 1, 8192)
    assert found is not None
    (experts,) = work.experts
    alone = work.weight_bytes + int(experts.num_bytes * (1 - (1 - 8 / 256) ** 1))
    assert found.num_bytes == pytest.approx(alone + of.kv_bytes(work, 1), rel=1e-6)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b"])
@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("tokens", [512, 513, 1024, 5000])
def test_chunks_of_a_prompt_follow_each_other_through_a_pipeline(name: str, pp: int, tokens: int) -> None:
    """Step by step: a stage begins a chunk when it has done the one before and the stage before has done this one."""
    rates, layout, chunk = ROUND._replace(step_seconds=0.0), Layout(pp=pp), 512
    staged = [w._replace(head_parameters=0) for w in works(name, pipeline_parallel_size=pp)]

    def alone(work: StageWork, end: int) -> float:
        found = prefill.prompt([work], rates, layout, end, chunk)
        assert found is not None
        return float(found.seconds)

    ends = [*range(chunk, tokens, chunk), tokens]
    free = [0.0] * pp
    for before, end in zip([0, *ends], ends, strict=False):
        at = 0.0
        for i, work in enumerate(staged):
            at = free[i] = max(at, free[i]) + alone(work, end) - (alone(work, before) if before else 0.0)
    found = prefill.prompt(staged, rates, layout, tokens, chunk)
    assert found is not None
    assert found.seconds == pytest.approx(free[-1], rel=1e-9)
    numbers = prefill.prompt(staged, rates, layout, numpy.array([100, tokens, 3000]), chunk)
    assert numbers is not None
    assert numbers.seconds[1] == pytest.approx(found.seconds, rel=1e-9)


def test_stages_speed_up_a_prompt_of_many_chunks_and_no_other() -> None:
    def seconds(pp: int, tokens: int) -> float:
        found = prefill.prompt(works(pipeline_parallel_size=pp), ROUND, Layout(pp=pp), tokens, 512)
        assert found is not None
        return float(found.seconds) - 0.5 * -(-tokens // 512)

    for pp in (2, 4):
        assert seconds(pp, 512) == pytest.approx(seconds(1, 512), rel=0.02)
        chunks = 64
        assert seconds(1, 512 * chunks) / seconds(pp, 512 * chunks) == pytest.approx(
            chunks * pp / (chunks + pp - 1), rel=0.05
        )


def test_a_run_of_equal_chunks_is_the_same_as_one_after_the_other() -> None:
    seconds, free = [3.0, 1.0, 2.0], [5.0, 0.0, 9.0]
    for number in range(5):
        step = free
        for _ in range(number):
            step = prefill.left(step, seconds)
        assert prefill.left(free, seconds, number) == pytest.approx(step)
    rows = prefill.left(free, seconds, numpy.array([0, 4]))
    assert [row[0] for row in rows] == free
    assert [row[1] for row in rows] == pytest.approx(prefill.left(free, seconds, 4))
