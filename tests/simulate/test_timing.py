"""Step times are the planner's: one request alone, and every batch and context."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import plan
from kvplan.planning.plan import to_plain
from kvplan.planning.speed import decode
from kvplan.simulate import results
from kvplan.simulate.run import simulate
from kvplan.simulate.synthetic import synthetic
from kvplan.simulate.timing import Line, StepTimer


def figures(run: Any) -> Any:
    return to_plain(results.figures(run))


DEPLOYMENTS = [
    ("llama-3.1-8b", {}),
    ("llama-3.1-70b", {"tensor_parallel_size": 4}),
    ("llama-3.1-70b", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
    ("qwen3-30b-a3b", {}),
    ("gemma-3-27b", {"tensor_parallel_size": 2}),
    ("deepseek-v2-lite", {}),
    ("qwen3-next-80b-a3b", {"tensor_parallel_size": 4}),
]


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


@pytest.mark.parametrize(("model", "settings"), DEPLOYMENTS)
def test_one_request_alone_has_the_numbers_of_the_plan(site, model: str, settings: dict[str, int]) -> None:  # type: ignore[no-untyped-def]
    """A prompt of full chunks as in the plan, one with a rest nearly; the mean step is that at the mean context."""
    made = site(model, **settings)
    chunk = made.tokens_per_step
    cases = ((1000, 200, 1e-9), (chunk, 100, 1e-9), (3 * chunk, 100, 1e-3), (3 * chunk + 17, 100, 0.03))
    for prompt, output, near in cases:
        run = simulate(made, synthetic(f"requests=1,prompt={prompt},output={output}"))
        result = figures(run)
        right = plan(model, gpu="h100-sxm", prompt_tokens=prompt, output_tokens=output, **settings)
        assert right.prefill is not None
        assert right.decode is not None
        assert result["latency"]["ttft"]["p50"] == pytest.approx(right.prefill.seconds, rel=near)
        assert result["latency"]["tpot"]["p50"] == pytest.approx(right.decode.seconds_per_step, rel=1e-3)
        reserved = made.shape.blocks(prompt + output - 1)
        assert result["memory"]["peak_blocks"] >= reserved
        assert result["scheduling"]["steps"] == -(-prompt // chunk) + output - 1


@pytest.mark.parametrize("chunk", [512, 2048])
@pytest.mark.parametrize(
    ("model", "low", "high"),
    [("llama-3.1-8b", 0.08, 0.17), ("qwen3-30b-a3b", -0.4, -0.3), ("gpt-oss-20b", -0.21, 0.15)],
)
def test_a_short_rest_differs_from_equal_chunks_as_documented(
    site: Any, model: str, low: float, high: float, chunk: int
) -> None:
    made = site(model, max_num_batched_tokens=chunk)
    result = figures(simulate(made, synthetic(f"requests=1,prompt={chunk + 1},output=2")))
    right = plan(model, gpu="h100-sxm", prompt_tokens=chunk + 1, output_tokens=2, max_num_batched_tokens=chunk)
    assert right.prefill is not None
    assert low <= result["latency"]["ttft"]["p50"] / right.prefill.seconds - 1 <= high


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
