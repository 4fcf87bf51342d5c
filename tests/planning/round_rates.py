"""Made-up round rates, and what they are tried on: figures that can be worked by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import evaluate
from kvplan.planning.settings import resolve
from kvplan.planning.speed.figures import Setup, setup
from kvplan.planning.speed.rates import Rates
from kvplan.planning.speed.work import StageWork

ROUND = Rates(
    weight_bandwidth=1e12, attention_bandwidth=5e11, matmul_flops=1e15, attention_flops=2e14, linear_seconds=1e-6,
    attention_seconds=10e-6, layer_seconds=100e-6, routing_seconds=1e-3, step_seconds=0.5, link_bandwidth=1e11,
    link_seconds=1e-5, prefill_share=0.5, prefill_cap=None, softness=3.0, low=0.8, high=1.2, prefill_low=0.8,
    prefill_high=1.2, source="round figures",
)  # fmt: skip
LLAMA_PARAMETERS = 8_030_261_248
TABLE = 128_256 * 4096


@cache
def made(name: str = "llama-3.1-8b", engine: str = "generic", **given: Any) -> Setup:
    spec, device, chosen = load_model(name), load_gpu("h200-sxm"), get_engine(engine)
    settings, _ = resolve(spec, device, chosen, {"max_model_len": 8192, **given})
    spec = served_model(spec, chosen, settings)
    found = setup(spec, device, chosen, evaluate(spec, device, chosen, settings))
    assert isinstance(found, Setup)
    return found


def works(name: str = "llama-3.1-8b", **given: Any) -> tuple[StageWork, ...]:
    return tuple(made(name, **given).works)
