"""Step times are the planner's: one request alone, and every batch and context."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example
from hypothesis import given as given_
from hypothesis import settings as settings_
from hypothesis import strategies as st

from kvplan import plan
from kvplan.planning.plan import to_plain
from kvplan.planning.speed import decode
from kvplan.planning.speed.prefill import MOST_CHUNKS
from kvplan.simulate import results
from kvplan.simulate.run import simulate
from kvplan.simulate.timing import Line, StepTimer
from kvplan.simulate.trace import Builder, Trace


def figures(run: Any) -> Any:
    return to_plain(results.figures(run))


def trace_of(request: tuple[float, int, int]) -> Trace:
    made = Builder()
    made.add(*request)
    return made.build("test", "test")


LENGTHS = st.one_of(st.integers(1, 7000), st.sampled_from([1, 511, 512, 513, 2048, 2049, 4095, 4096, 6144, 6145]))

DEPLOYMENTS = [
    ("llama-3.1-8b", {}),
    ("llama-3.1-70b", {"tensor_parallel_size": 4}),
    ("llama-3.1-70b", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
    ("qwen3-30b-a3b", {}),
    ("gemma-3-27b", {"tensor_parallel_size": 2}),
    ("deepseek-v2-lite", {}),
    ("qwen3-next-80b-a3b", {"tensor_parallel_size": 4}),
]
MORE: list[tuple[str, dict[str, Any]]] = [
    ("gpt-oss-20b", {}),
    ("llama-3.1-8b", {"gpu": "l4"}),
    ("llama-3.1-70b", {"tensor_parallel_size": 2, "pipeline_parallel_size": 3}),
    ("deepseek-v3.2", {"gpu": "h200-sxm", "tensor_parallel_size": 8}),
]
"""Of engines that overlap a prompt's chunks over stages, and of sparse attention besides."""


@pytest.mark.parametrize(("model", "settings"), DEPLOYMENTS)
def test_a_decode_step_is_that_of_the_planner(site, model: str, settings: dict[str, int]) -> None:  # type: ignore[no-untyped-def]
    made = site(model, **settings)
    timer = StepTimer(made.setup, made.longest)
    for batch in (1, 3, 17, 64, 256):
        for context in (1, 100, 1023, 1024, 1025, 4097, 30_000):
            works, rates, layout, _ = made.setup
            right = float(decode.step(works, rates, layout, batch, context).seconds)
            assert timer.decode(batch, context) == pytest.approx(right, rel=2e-4), (batch, context)
    for steps in (1, 2, 700, 5000):
        one_by_one = sum(timer.decode(8, (8 * 500 + 8 * i) / 8) for i in range(steps))
        assert timer.decodes(8, 8 * 500, steps) == pytest.approx(one_by_one, rel=1e-6)


@pytest.mark.parametrize("chunk", [512, 2048, 8192])
@pytest.mark.parametrize(("model", "settings"), [*DEPLOYMENTS, *MORE])
def test_one_request_alone_has_the_numbers_of_the_plan(
    site: Any, model: str, settings: dict[str, Any], chunk: int
) -> None:
    """Whatever the chunks: whole ones, rests, one token. Where a window or a top-k fills up during the answer, the mean
    step is not quite that at the mean context, which is the plan's."""
    given = {"gpu": "h100-sxm", "max_model_len": 8192, **settings, "max_num_batched_tokens": chunk}
    made = site(model, **given)

    @settings_(max_examples=6, deadline=None)
    @given_(prompt=LENGTHS, half=st.integers(1, 300))
    @example(prompt=chunk, half=50)
    @example(prompt=chunk + 1, half=1)
    def agrees(prompt: int, half: int) -> None:
        output = 2 * half  # of an odd one the plan rounds the mean context down
        prompt = min(prompt, 8192 - output)
        result = figures(simulate(made, trace_of((0, prompt, output))))
        limits = [r.limit for work in made.setup.works for _, mixer in work.mixers for r in mixer.reads() if r.limit]
        bends = (*(window.tokens for window in made.shape.windows), *limits)
        bent = any(prompt <= bend <= prompt + output for bend in bends)
        right = plan(model, prompt_tokens=prompt, output_tokens=output, **given)
        assert right.prefill is not None
        assert right.decode is not None
        assert result["latency"]["ttft"]["p50"] == pytest.approx(right.prefill.seconds, rel=1e-6)
        assert result["latency"]["tpot"]["p50"] == pytest.approx(
            right.decode.seconds_per_step, rel=1e-3 if bent else 1e-6
        )
        assert result["memory"]["peak_blocks"] >= made.shape.blocks(prompt + output - 1)
        assert result["scheduling"]["steps"] == -(-prompt // chunk) + output - 1

    agrees()


def test_a_prompt_of_very_many_chunks_has_the_plans_time_too(site: Any) -> None:
    """Beyond `MOST_CHUNKS` the plan takes neighbours together."""
    for model in ("llama-3.1-8b", "gemma-3-27b"):
        made = site(model, max_num_batched_tokens=64, max_num_seqs=16)
        assert 4 * MOST_CHUNKS < 100_000 // 64
        result = figures(simulate(made, trace_of((0, 100_001, 2))))
        right = plan(
            model, gpu="h100-sxm", prompt_tokens=100_001, output_tokens=2, max_num_batched_tokens=64, max_num_seqs=16
        )
        assert right.prefill is not None
        assert result["latency"]["ttft"]["p50"] == pytest.approx(right.prefill.seconds, rel=1e-6)


def test_steps_until_is_the_first_step_that_ends_late_enough(site) -> None:  # type: ignore[no-untyped-def]
    timer = StepTimer(site("gemma-3-27b", tensor_parallel_size=2).setup, 100_000)
    for seconds in (1e-9, 0.05, 1.0, 7.5):
        steps = timer.steps_until(5, 5 * 900, seconds, 2000)
        assert timer.decodes(5, 5 * 900, steps) >= seconds or steps == 2000
        assert steps == 1 or timer.decodes(5, 5 * 900, steps - 1) < seconds
    assert timer.steps_until(5, 5 * 900, 1e9, 2000) == 2000


def test_a_line_follows_a_bent_function() -> None:
    def bent(x: int) -> float:
        return min(x, 1024) * 2.0 + x + 5

    line = Line(bent, 131_072)
    assert all(line(x) == pytest.approx(bent(x), rel=1e-3) for x in range(0, 131_073, 97))
    assert line(200_000) == pytest.approx(bent(200_000), rel=1e-6)
    assert len(line.at) < 30
