"""Cases on many devices at once: what is refused for all is asked once, and nobody is refused for another."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy
import pytest

from kvplan import load_gpu, load_model
from kvplan.catalog import gpu_ids
from kvplan.engines import get_engine
from kvplan.errors import KvplanError
from kvplan.planning.fit import cases as module
from kvplan.planning.fit.candidates import cache_formats, layouts, weight_formats
from kvplan.planning.fit.cases import Case
from kvplan.planning.fit.screen import REFUSED, WEIGHTS, Failed, Screen, Started
from kvplan.planning.fit.search import fit

from .test_fit import ask

DEVICES = ("h100-sxm", "h200-sxm", "h100-nvl", "l4", "rtx-4090", "a100-pcie-80gb", "t4", "b200", "mi300x", "mi250x")


def screen(model: str, engine: str, gpus: tuple[str, ...] = DEVICES, **given: Any) -> Screen:
    """A screening of ten requests under way."""
    asked = ask(concurrency=10, gpus=gpus, settings=given)
    return Screen(load_model(model), engine, [load_gpu(name) for name in gpus], asked, {})


def every_case(of: Screen, pinned: dict[str, Any]) -> list[Case]:
    return [
        Case(of.name, weights, cache, layout)
        for weights in weight_formats(of.model, of.engine, ())
        for cache in cache_formats(of.engine, ())
        for layout in layouts(of.model, of.engine, pinned)
    ]


@pytest.mark.parametrize(
    ("engine", "settings", "words"),
    [
        ("vllm@0.20.0", {"attention_backend": "awq"}, "unknown attention backend 'AWQ'"),
        ("transformers", {"cache_implementation": "none"}, "no cache implementation 'none'"),
    ],
)
def test_what_is_wrong_for_all_is_asked_once(
    engine: str, settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every device once, and then of one of each kind and pair of formats: not of each of thousands of cases."""
    calls: Counter[str] = Counter()
    resolve = module.resolve

    def counted(*given: Any) -> Any:
        calls[given[1].id] += 1
        return resolve(*given)

    monkeypatch.setattr(module, "resolve", counted)
    with pytest.raises(KvplanError) as refused:
        fit(load_model("qwen3-next-80b-a3b"), ask(concurrency=4, engines=(engine,), gpus=(), settings=settings))
    assert words in str(refused.value)
    runs = [name for name in gpu_ids() if get_engine(engine).takes(load_gpu(name))]
    asked = screen("qwen3-next-80b-a3b", engine)
    cases = len(every_case(asked, {}))
    assert set(runs) >= set(calls)
    assert sum(calls.values()) < len(runs) * cases / 4
    kinds = {(load_gpu(name).vendor, load_gpu(name).compute_capability) for name in runs}
    assert sum(calls.values()) <= len(runs) + 2 * len(kinds) * cases


def test_what_was_typed_is_wrong_before_a_device_is() -> None:
    """Devices without a backend come first in the catalog, and are not what is wrong with a backend's name."""
    with pytest.raises(KvplanError, match="unknown attention backend"):
        fit(
            load_model("llama-3.1-8b"),
            ask(concurrency=4, engines=("vllm",), gpus=("apple-m4-max", "h100-sxm"),
                settings={"attention_backend": "awq"}),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "engine", "given"),
    [
        ("llama-3.1-8b", "vllm", {}),
        ("llama-3.1-8b", "vllm", {"attention_backend": "FLASHINFER"}),
        ("llama-3.1-8b", "vllm@0.14.0", {"attention_backend": "FLASH_ATTN"}),
        ("deepseek-v3", "vllm", {"attention_backend": "FLASHMLA"}),
        ("deepseek-v3.2", "vllm", {"tensor_parallel_size": 8}),
        ("gpt-oss-20b", "vllm@0.12.0", {}),
        ("qwen3-next-80b-a3b", "vllm", {"block_size": 7}),
        ("gemma-3-27b", "generic", {"pipeline_parallel_size": 4}),
        ("llama-3.1-8b", "sglang", {"attention_backend": "fa3"}),
        ("llama-3.1-8b", "vllm", {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}),
    ],
)
def test_no_device_is_refused_for_another(model: str, engine: str, given: dict[str, Any]) -> None:
    """What `run` makes of all devices together is what the engine says of each of them alone."""
    of = screen(model, engine, **given)
    alone = screen(model, engine, **given).cases
    refused = accepted = 0
    for case in every_case(of, given):
        found: dict[str, Failed | Started] = {}
        for part in of.run(case, list(range(len(of.gpus)))):
            for gpu in part.gpus:
                assert gpu.id not in found
                found[gpu.id] = part
        assert set(found) == {gpu.id for gpu in of.gpus}
        for gpu in of.gpus:
            said, part = alone.settings(case, gpu), found[gpu.id]
            if isinstance(said, KvplanError):
                refused += 1
                assert isinstance(part, Failed)
                if part.why:  # which may name another device of its generation
                    assert part.reached == REFUSED
                    assert str(said).partition(":")[0] == part.why.partition(":")[0]
                else:  # told by its memory before it was asked
                    assert part.reached == WEIGHTS
                    assert numpy.min(part.miss) > 1
            else:
                accepted += 1
                assert isinstance(part, Started) or part.reached is not REFUSED
    assert refused + accepted == len(of.gpus) * len(every_case(of, given))
