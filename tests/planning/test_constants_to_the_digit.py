"""Stated constants as docs and sources state them, to the digit: a figure that moves by one is another figure."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from kvplan.engines.base import Settings
from kvplan.planning import cost
from kvplan.planning.advice import MAX_GPUS, MAX_STAGES
from kvplan.planning.calibration_schema import DeviceFile, FigureFile, SoftwareFile
from kvplan.planning.cost import CostFigures
from kvplan.planning.curves import _MOST_BATCH, _SHORTEST
from kvplan.planning.evaluate import _SMALL, MIX_PER_CENT
from kvplan.planning.fit.ask import DEFAULT_TOP
from kvplan.planning.fit.candidates import MOST_RANKS, REPLICAS, SIZES, Layout
from kvplan.planning.fit.judge import FULLEST, MOST_COPIES
from kvplan.planning.fit.search import WASTE
from kvplan.planning.log_report import ROOM_BYTES, SLACK_BYTES
from kvplan.planning.notes import WORTHLESS_SHARE
from kvplan.planning.prefix import MOST
from kvplan.planning.settings import FIT, MAX_WORLD_SIZE
from kvplan.planning.side_by_side import MOST as MOST_ENGINES
from kvplan.planning.speed import constants as of
from kvplan.planning.speed.batching import _FULL, _LONG, _MEETINGS, _NEAR
from kvplan.planning.speed.constants import EngineRates, engine_rates
from kvplan.planning.speed.figures import chunk_tokens, load
from kvplan.planning.speed.load import Limits
from kvplan.planning.speed.prefill import MOST_CHUNKS
from kvplan.planning.speed.profile import Lengths
from kvplan.planning.speed.rates import Rates
from kvplan.planning.sweep import BLOCK
from kvplan.planning.sweep_axes import MAX_POINTS, MAX_STEPS, MAX_VALUES
from kvplan.planning.workload_lengths import MAX_CV, P999

PAGE = (Path(__file__).parents[2] / "docs" / "speed.md").read_text(encoding="utf-8")


def test_constants_of_llama_cpp_are_those_of_the_page() -> None:
    """Its table has what was fitted, and beside it what the package takes."""
    table = {
        row[0].strip(): float(row[2]) for row in re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.M)
    }
    old, apple = engine_rates("llama.cpp", "nvidia", "b1400"), engine_rates("llama.cpp", "apple")
    assert table == {
        "NVIDIA: GB/s of weights a multiprocessor": (old.sm_bytes or 0) / 1e9,
        "NVIDIA: GB/s of cache without flash attention": (old.naive_bytes or 0) / 1e9,
        "NVIDIA: latencies, times those of a CUDA graph on an H200": old.latency_scale,
        "Apple: share of the 16-bit rate in matrix-vector products": apple.matvec_share,
        "Apple: share of the bandwidth for the cache without flash attention": apple.naive_share,
        "Apple: latencies": apple.latency_scale,
    }


def test_latencies_and_messages_are_those_of_the_page() -> None:
    said = re.search(r"(\d+) us a linear kernel, (\d+) us an attention kernel, (\d+) us a layer .* (\d+) us for", PAGE)
    assert said
    stated = (of.LINEAR_SECONDS, of.ATTENTION_SECONDS, of.LAYER_SECONDS, of.ROUTING_SECONDS)
    assert [float(us) for us in said.groups()] == pytest.approx([1e6 * seconds for seconds in stated], rel=1e-12)
    vllm = engine_rates("vllm", "nvidia")
    assert f"a share of the read rate ({vllm.read_share:.2f}) and {1e3 * vllm.step_seconds:g} ms a step" in PAGE
    assert of.LINKS == {"nvlink": (0.7, 36e-6), "infinity-fabric": (0.7, 15e-6), "pcie": (0.25, 45e-6)}
    assert of.SMALL_MESSAGES == {"nvlink": (0.39, 10.5e-6)}
    assert of.OTHER_LINK == (0.7, 30e-6)


NVIDIA_LLAMA = {"sm_bytes": 12e9, "naive_bytes": 290e9, "half_accumulate": True, "sm_flops": 0.8e12,
                "prefill_low": 0.35, "prefill_high": 2.2, "reported": True, "high": 1.35}  # fmt: skip
APPLE_LLAMA = {"matvec_share": 0.08, "naive_share": 0.13, "latency_scale": 3.85, "prefill_share": 0.8, "low": 0.7,
               "high": 1.5, "reported": True}  # fmt: skip
SERVER = {"read_share": 0.8, "step_seconds": 5e-4}
PLAIN = {
    "read_share": 1.0, "sm_bytes": None, "matvec_share": None, "naive_bytes": None, "naive_share": None,
    "latency_scale": 1.0, "step_seconds": 0.0, "prefill_share": 0.9, "half_accumulate": False, "sm_flops": None,
    "low": 0.6, "high": 1.4, "prefill_low": 0.5, "prefill_high": 1.6, "reported": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "vendor", "version", "differs"),
    [
        ("generic", "NVIDIA", "", {"low": 0.8, "high": 1.15, "reported": True}),
        ("generic", "amd", "", {"low": 0.5, "high": 1.3}),
        ("vllm", "nvidia", "0.11.0", {**SERVER, "low": 0.55, "high": 1.45, "reported": True}),
        ("vllm", "amd", "", {**SERVER, "low": 0.5, "high": 1.6}),
        ("exllamav3", "nvidia", "", {**SERVER, "low": 0.5, "high": 1.6}),
        ("mlx", "nvidia", "", {**SERVER, "low": 0.5, "high": 1.6}),
        ("mlx", "apple", "",
         {"matvec_share": 0.12, "latency_scale": 2.0, "prefill_share": 0.8, "low": 0.5, "high": 1.5}),
        ("transformers", "nvidia", "", {"latency_scale": 6.5, "low": 0.5, "high": 1.6}),
        ("llama.cpp", "nvidia", "b1400", {**NVIDIA_LLAMA, "latency_scale": 1.93, "low": 0.75}),
        ("llama.cpp", "nvidia", "b3499", {**NVIDIA_LLAMA, "latency_scale": 1.93, "low": 0.75}),
        ("llama.cpp", "nvidia", "b3500", {**NVIDIA_LLAMA, "low": 0.7}),
        ("llama.cpp", "nvidia", "3499", {**NVIDIA_LLAMA, "low": 0.7}),
        ("llama.cpp", "nvidia", "b34x", {**NVIDIA_LLAMA, "low": 0.7}),
        ("ollama", "nvidia", "b1400", {**NVIDIA_LLAMA, "low": 0.7}),
        ("lmstudio", "apple", "", APPLE_LLAMA), ("llama.cpp", "apple", "b1400", APPLE_LLAMA),
    ],
)  # fmt: skip
def test_what_an_engine_makes_of_a_device(engine: str, vendor: str, version: str, differs: dict[str, Any]) -> None:
    found = engine_rates(engine, vendor, version)._asdict()
    del found["source"]
    assert found == {**PLAIN, **differs}
    assert EngineRates._field_defaults == {**PLAIN, "source": EngineRates().source}


def test_engines_that_score_index_keys_in_8_bits() -> None:
    """DeepGEMM's kernels, which vLLM and SGLang call."""
    assert {engine for engine, has in of.INDEX_IN_8_BITS.items() if has} == {"vllm", "sglang"}


def test_limits_of_searches_and_sums() -> None:
    assert (MOST_CHUNKS, MOST, MOST_COPIES) == (256, 2**20, 2**20)
    assert (DEFAULT_TOP, WASTE, FULLEST) == (20, 8, 0.95)
    assert (SIZES, REPLICAS, MOST_RANKS) == ((1, 2, 4, 8), (2, 4, 8, 16), 64)
    assert (MAX_GPUS, MAX_STAGES, MAX_WORLD_SIZE, MOST_ENGINES, FIT) == (8, 8, 4096, 32, -1)
    assert (BLOCK, MAX_VALUES, MAX_POINTS, MAX_STEPS) == (2**16, 10**7, 10**8, 2000)
    assert (_SHORTEST, _MOST_BATCH, _SMALL, MIX_PER_CENT, WORTHLESS_SHARE) == (64, 2**16, 10 * 2**20, 4, 0.8)
    assert (SLACK_BYTES, ROOM_BYTES) == (5 * 2**20, 2**50)
    assert (_FULL, _NEAR, _LONG, _MEETINGS) == (1e-9, 1e-3, 1e6, 2)
    assert (cost.MILLION, MAX_CV) == (10**6, 100.0)
    assert NormalDist().cdf(P999) == pytest.approx(0.999, abs=1e-15)


def test_what_is_left_out_is_none_or_nothing() -> None:
    software, device = SoftwareFile(kvplan="0.1.0"), DeviceFile(name="x")
    assert (software.torch, software.triton, device.kind, device.gpu, device.driver) == (None,) * 5
    assert FigureFile(value=1, low=1, high=1).samples == 1
    assert Layout() == (1, 1, 1, 1, False)
    assert Limits() == (None, None, None, None)
    assert Lengths(7, 5) == (7, 5, 0, 0.0, 0.0, 0, 1.0)
    assert CostFigures(*(1,) * 11)[11:] == (None,) * 6
    left = {"notes": (), "weight_memory": None, "attention_memory": None, "short_bandwidth": None, "short_seconds": 0.0,
            "index_share": 1.0}  # fmt: skip
    assert Rates._field_defaults == left


@pytest.mark.parametrize(
    ("batched", "extra", "chunk"),
    [
        (2048, {"ubatch_size": 512}, 2048), (None, {"ubatch_size": 512, "chunked_prefill_size": 8192}, 512),
        (None, {"chunked_prefill_size": 8192}, 8192), (None, {"chunked_prefill_size": -1}, 2**40), (None, {}, 2**40),
        (0, {"ubatch_size": 1}, 1), (1, {}, 1), (None, {"ubatch_size": "auto", "chunked_prefill_size": 3}, 3),
    ],
)  # fmt: skip
def test_tokens_of_a_step_by_the_engine_s_own_setting(batched: int | None, extra: dict[str, Any], chunk: int) -> None:
    settings = Settings(engine="x", engine_version="", max_num_batched_tokens=batched, extra=extra)
    assert chunk_tokens(settings) == chunk


@pytest.mark.parametrize(
    ("most", "concurrency", "dp", "expected"),
    [
        (None, 10, 1, (10, 10)), (None, 10, 4, (3, 10)), (8, 10, 1, (8, 8)), (10, 10, 1, (10, 10)),
        (2, 10, 4, (2, 8)), (3, 10, 4, (3, 10)), (4, 15, 4, (4, 15)),
    ],
)  # fmt: skip
def test_sequences_of_a_step(most: int | None, concurrency: int, dp: int, expected: tuple[int, int]) -> None:
    """(of the most loaded replica, of the deployment), as far as the engine runs them at once."""
    settings = Settings(
        engine="x", engine_version="", max_num_seqs=most, concurrency=concurrency, data_parallel_size=dp,
        prompt_tokens=1000, output_tokens=101,
    )  # fmt: skip
    found = load(settings)
    assert (found.batch, found.running, found.context) == (*expected, 1050)
