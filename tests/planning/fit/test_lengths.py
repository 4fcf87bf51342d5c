"""Lengths of requests, as they are typed and as a trace has them."""

from __future__ import annotations

import math
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError, KvplanError
from kvplan.planning.workload_lengths import of_trace, read_lengths

FLAG = "--prompt-tokens"


@pytest.mark.parametrize(("text", "tokens"), [("1024", 1024), ("32K", 32768), ("2k", 2000), ("0", 0)])
def test_a_number_is_all_alike(text: str, tokens: int) -> None:
    found = read_lengths(text, FLAG)
    assert (found.mean, found.cv, found.longest) == (tokens, 0, tokens)


@given(st.integers(50, 100_000), st.floats(0.01, 3))
def test_a_lognormal_ends_where_its_quantile_is(mean: int, cv: float) -> None:
    found = read_lengths(f"lognormal:mean={mean},cv={cv}", FLAG)
    sigma = math.sqrt(math.log(1 + cv * cv))
    quantile = math.exp(math.log(mean) - sigma**2 / 2 + NormalDist().inv_cdf(0.999) * sigma)
    assert (found.mean, found.cv) == (mean, cv)
    assert found.longest == pytest.approx(quantile, abs=1, rel=1e-6)


def test_a_uniform_has_its_moments() -> None:
    found = read_lengths("uniform:min=100,max=300", FLAG)
    lengths = np.linspace(100, 300, 100_001)
    assert (found.mean, found.longest) == (200, 300)
    assert found.cv == pytest.approx(lengths.std() / lengths.mean(), rel=1e-4)


def test_percentiles_are_joined_by_lines() -> None:
    found = read_lengths("percentiles:p0=100,p50=200,p100=1000", FLAG)
    drawn = np.interp(np.linspace(0, 100, 200_001), [0, 50, 100], [100, 200, 1000])
    assert found.mean == pytest.approx(drawn.mean(), abs=0.6)
    assert found.cv == pytest.approx(drawn.std() / drawn.mean(), rel=1e-3)
    assert found.longest == 1000
    assert read_lengths("percentiles:p50=200,p90=900", FLAG).longest == 900


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "-5", "normal:mean=3", "lognormal:mean=3", "lognormal:mean=0,cv=1", "lognormal:mean=9,cv=-1",
        "lognormal:mean=9,cv=1e9", "lognormal:mean=9,cv=nan", "lognormal:mean=9,mean=8,cv=1", "uniform:min=9,max=3",
        "percentiles:p50=9,p40=90", "percentiles:p150=9", "percentiles:px=9", "percentiles:", "lognormal:",
    ],
)  # fmt: skip
def test_what_is_no_length_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(KvplanError) as caught:
        read_lengths(text, FLAG)
    assert caught.value.where == FLAG
    assert caught.value.hint


def test_a_trace_gives_means_spreads_and_its_rate() -> None:
    class Trace(SimpleNamespace):
        def __len__(self) -> int:
            return 4

    trace = Trace(
        prompts=np.array([100, 200, 300, 400]), outputs=np.array([10, 10, 10, 50]),
        arrivals=np.array([0.0, 1.0, 3.0, 6.0]), timed=True,
    )  # fmt: skip
    found = of_trace(trace)
    assert (found.prompts.mean, found.outputs.mean, found.longest, found.requests) == (250, 20, 450, 4)
    assert found.prompts.cv == pytest.approx(np.std([100, 200, 300, 400]) / 250)
    assert found.requests_per_second == pytest.approx(0.5)
    trace.timed = False
    assert of_trace(trace).requests_per_second is None


def test_errors_are_input_errors() -> None:
    with pytest.raises(InputError):
        read_lengths("lognormal:mean=1,cv=x", FLAG)
