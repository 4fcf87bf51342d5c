"""Figures that few plans show: of layers that hold no more with the length, last steps, shares, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from kvplan import load_model, plan
from kvplan.cache.attention import FullAttention
from kvplan.errors import InputError, UnsupportedError
from kvplan.planning.advice import smallest_thousandth
from kvplan.planning.cost import Price, cost_figures, throughput_bounds
from kvplan.planning.explain import explain
from kvplan.planning.fit.ask import Ask, check
from kvplan.planning.speed.constants import engine_rates
from kvplan.planning.speed.profile import Lengths
from kvplan.planning.sweep import with_attention
from kvplan.planning.workload_lengths import Distribution, of_trace


def test_layers_that_read_an_encoder_do_not_grow() -> None:
    """Whisper's decoder keeps 1,500 encoder positions in each of 32 layers, 20 heads of 64, and grows by its own."""
    made = explain(load_model("whisper-large-v3"), {"max_model_len": 448})
    until = {(term.kind, term.stream): term.until_tokens for term in made.streams}
    assert until == {("full", "k"): None, ("full", "v"): None, ("cross", "k"): 0, ("cross", "v"): 0}
    assert made.bytes_per_token == 32 * 2 * 20 * 64 * 2
    assert made.fixed_bytes_per_sequence == 1500 * made.bytes_per_token


@dataclass(frozen=True, kw_only=True)
class OwnHeads(FullAttention):
    """A kind whose sizes go with its own heads alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kv_heads in (1, self.query_heads):
            raise ValueError("neither one head nor all of them")


def test_a_variant_that_a_kind_has_not_is_left_out_or_refused() -> None:
    whole = load_model("llama-3.1-8b")
    own = OwnHeads(query_heads=32, kv_heads=8, head_dim=128)
    (name,) = whole.blocks
    model = replace(whole, blocks={name: replace(whole.blocks[name], mixers=(own,))})
    assert [c.name for c in explain(model, {}).comparisons] == ["as it is", "fp8", "4 bits (nvfp4)"]
    assert [c.name for c in explain(whole, {}).comparisons][1].startswith("MHA")
    with pytest.raises(UnsupportedError, match=r"llama-3\.1-8b as mqa: neither one head nor all of them"):
        with_attention(model, "mqa")


def test_a_last_step_is_the_only_one_of_a_single_token() -> None:
    given = {"max_model_len": 8192, "prompt_tokens": 1000, "output_tokens": 1}
    found = explain(load_model("llama-3.1-8b"), given, saved=True).no_cache
    assert found is not None
    with_cache, without = found.with_cache, found.without
    assert found.last_step_flops_ratio == pytest.approx(
        (without.matrix_flops + without.attention_flops) / (with_cache.matrix_flops + with_cache.attention_flops)
    )


@pytest.mark.parametrize("engine", ["generic", "llama.cpp", "ollama", "lmstudio", "transformers"])
def test_engines_without_reports_on_a_device(engine: str) -> None:
    """Local engines have the kernels' own rates there, servers what vLLM makes of NVIDIA's devices."""
    assert engine_rates(engine, "intel") == engine_rates("generic", "intel")
    assert engine_rates("sglang", "intel") == engine_rates("tensorrt-llm", "intel") != engine_rates(engine, "intel")


def trace(prompts: list[int], outputs: list[int], arrivals: list[float] | None) -> Any:
    class Trace(SimpleNamespace):
        def __len__(self) -> int:
            return len(prompts)

    timed = arrivals is not None
    return Trace(
        prompts=numpy.array(prompts), outputs=numpy.array(outputs), arrivals=numpy.array(arrivals or []), timed=timed
    )


def test_what_a_trace_asks_for_on_average() -> None:
    found = of_trace(trace([100, 300], [50, 10], [0.0, 4.0]))
    assert (found.prompts.mean, found.prompts.cv, found.prompts.longest) == (200, 0.5, 300)
    assert (found.outputs.mean, found.outputs.longest, found.longest) == (30, 50, 310)
    assert found.requests_per_second == 0.25
    short = of_trace(trace([1, 1, 1], [0, 1, 0], [0.0, 0.0, 0.0]))
    assert (short.outputs.mean, short.requests_per_second) == (1, None)
    assert of_trace(trace([7], [3], [0.0])).requests_per_second is None
    assert of_trace(trace([7, 9], [3, 3], None)).requests_per_second is None


def test_a_rate_without_a_share_has_no_price_per_token() -> None:
    price = Price(3.0, 2.0, 4.0, "by hand", "2026-11-30")
    given: dict[str, Any] = {"prompt": 1000, "output": 101}
    for rate, share in ((None, 0.5), (0.0, 0.5), (2.0, None), (None, None)):
        found = cost_figures(price, 4, **given, rate=rate, share=share)
        assert found[0] == 12.0
        assert found[6:11] == (None,) * 5
    found = cost_figures(price, 4, **given, rate=2.0, share=0.25, speed=(0.5, 2.0))
    request = 12 / 3600 / 2
    assert found[6:11] == pytest.approx((2.0, request, 0.25, request * 0.25 * 1e3, request * 0.75 / 101 * 1e6))
    assert found[11:13] == pytest.approx((request * 2 / 3 / 2, request * 4 / 3 / 0.5))
    assert throughput_bounds(0.25, (0.5, 2.0), (1.0, 4.0)) == pytest.approx((1 / (0.25 + 1.5), 1 / (0.0625 + 0.375)))


@pytest.mark.parametrize("least", [1, 2, 437, 500, 999, 1000])
def test_the_smallest_thousandth(least: int) -> None:
    assert smallest_thousandth(lambda n: n >= least) == least / 1000
    assert smallest_thousandth(lambda n: False) is None


def asked(**given: Any) -> Ask:
    lengths = Lengths(100, 11, 0, 0.0, 0.0)
    return Ask(lengths, *(Distribution(n, 0, n, str(n)) for n in (100, 11)), 111, **given)


def test_targets_and_requests_in_flight_that_contradict_each_other() -> None:
    """10 steps of 50 ms after 0.5 s are a second: 8 requests at 4 a second would last two, 4 of them one."""
    model = load_model("llama-3.1-8b")
    check(asked(request_rate=4.0, concurrency=4, ttft=0.5, tpot=0.05), model)
    for given in ({"tpot": 0.05}, {"ttft": 0.5}, {}):
        check(asked(request_rate=4.0, concurrency=8, **given), model)
    with pytest.raises(InputError, match=r"last 2 s each .* allows 1 s") as refused:
        check(asked(request_rate=4.0, concurrency=8, ttft=0.5, tpot=0.05), model)
    assert refused.value.hint == "leave it out, or at most 4"
    with pytest.raises(InputError, match="111 tokens"):
        check(asked(settings={"max_model_len": 110}), model)
    check(asked(settings={"max_model_len": 111}), model)


@pytest.mark.parametrize("given", [{"ttft": 1.0, "tpot": 0.01, "request_rate": 1.0, "concurrency": 10}])
def test_a_plan_refuses_targets_that_contradict_each_other(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"Little's law"):
        plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=4096, prompt_tokens=100, output_tokens=11, **given)
