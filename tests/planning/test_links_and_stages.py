"""Messages between ranks against the measured ones, and what pipeline stages read of layers left in 16 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.planning.evaluate import evaluate
from kvplan.planning.settings import resolve
from kvplan.planning.speed import work as of
from kvplan.planning.speed.figures import Setup, setup
from kvplan.planning.speed.rates import Rates, rates
from kvplan.spec.formats import get_format

RECEIPTS = Path(__file__).parents[2] / "docs" / "validation" / "two-gpus"
UNITS = {"KiB": 2**10, "MiB": 2**20}


def rates_of(gpu: str) -> Rates:
    bf16 = get_format("bf16")
    found = rates(load_gpu(gpu), "generic", bf16, bf16)
    assert found is not None
    return found


def measured() -> list[tuple[str, float, float]]:
    """(name, bytes over each link, seconds) of every collective between two H200s."""
    found = []
    for path in sorted(RECEIPTS.glob("*.json")):
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            name, _, size = row["name"].partition(", ")
            if name in ("all-reduce", "all-to-all") and row["unit"] == "s":
                number, unit = size.split()
                share = 1 if name == "all-reduce" else 0.5  # of two ranks
                found.append((row["name"], float(number) * UNITS[unit] * share, row["measured"]))
    return found


def test_messages_of_two_gpus_are_met_at_every_size() -> None:
    found = rates_of("h200-sxm")
    points = measured()
    assert len(points) == 36
    for name, carried, seconds in points:
        assert found.message_seconds(carried) == pytest.approx(seconds, rel=0.13), name


def test_the_faster_protocol_carries_a_message() -> None:
    """Times grow with the message, and a message costs no more a byte than a shorter one."""
    found = rates_of("h200-sxm")
    sizes = np.geomspace(1, 2**34, 200)
    times = found.message_seconds(sizes)
    assert (np.diff(times) > 0).all()
    assert (np.diff(times / sizes) < 0).all()
    assert times[0] == pytest.approx(found.short_seconds, rel=1e-3)
    assert times[-1] == pytest.approx(sizes[-1] / found.link_bandwidth, rel=1e-2)
    assert [found.message_seconds(s) for s in (4096, 2**25)] == pytest.approx(
        list(found.message_seconds(np.array([4096, 2**25])))
    )


def test_links_without_short_messages_have_one_line() -> None:
    found = rates_of("mi300x")
    assert found.short_bandwidth is None
    assert found.message_seconds(10**9) == pytest.approx(found.link_seconds + 10**9 / found.link_bandwidth)


def worked(**given: Any) -> Setup:
    spec, device, engine = load_model("llama-3.1-8b"), load_gpu("h200-sxm"), get_engine("vllm@0.33.0")
    settings, _ = resolve(spec, device, engine, {"max_model_len": 8192, **given})
    found = setup(spec, device, engine, evaluate(spec, device, engine, settings))
    assert isinstance(found, Setup)
    return found


@pytest.mark.parametrize("stages", [2, 4])
def test_stages_read_the_edge_layers_that_they_have(stages: int) -> None:
    """TurboQuant leaves the model's first and last two layers in 16 bits, not those of every stage."""
    packed, plain = 8 * 196, 8 * 2 * 128 * 2
    alone = worked(kv_cache_dtype="turboquant_k8v4")
    assert of.kv_bytes(alone.works[0], 1000) == 1000 * (28 * packed + 4 * plain)
    works = worked(kv_cache_dtype="turboquant_k8v4", pipeline_parallel_size=stages).works
    read = [of.kv_bytes(work, 1000) for work in works]
    layers = 32 // stages
    ends = 1000 * ((layers - 2) * packed + 2 * plain)
    assert read == [ends, *[1000 * layers * packed] * (stages - 2), ends]
