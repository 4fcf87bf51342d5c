"""Several replicas: who gets what, and what it is worth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvplan.errors import UnknownNameError
from kvplan.planning.plan import to_plain
from kvplan.simulate import results
from kvplan.simulate.routing import POLICIES
from kvplan.simulate.run import Options, simulate
from kvplan.simulate.site import with_blocks
from kvplan.simulate.synthetic import synthetic
from kvplan.simulate.trace import Builder


def figures(run: Any) -> Any:
    return to_plain(results.figures(run))


TALKS = "requests=600,turns=6,prompt=400,output=60,rate=4,think=8,system=300,seed=4"


def test_round_robin_deals_in_turn(site: Any) -> None:
    run = simulate(site(data_parallel_size=3), synthetic("requests=30,prompt=50,output=5,rate=5"))
    assert run.rows.replica.tolist() == [0, 1, 2] * 10


def test_the_least_loaded_replica_is_chosen(site: Any) -> None:
    made = site(data_parallel_size=2)
    run = simulate(made, synthetic("requests=3,prompt=9000,output=300"), Options(routing="least-loaded"))
    assert run.rows.replica.tolist() == [0, 1, 0]
    tall = Builder()
    for index in range(200):  # every other request is long: dealt in turn, one replica gets all of these
        tall.add(index / 10, 12_000 if index % 2 else 100, 100)
    waits = {
        policy: figures(simulate(made, tall.build("t", "t"), Options(routing=policy)))["latency"]["e2e"]["mean"]
        for policy in ("round-robin", "least-loaded")
    }
    assert waits["least-loaded"] < 0.8 * waits["round-robin"]


def test_prefix_aware_routing_finds_more(site: Any) -> None:
    made = with_blocks(site(data_parallel_size=4), 4000)
    trace = synthetic(TALKS)
    hits = {policy: figures(simulate(made, trace, Options(routing=policy)))["cache"]["hit_rate"] for policy in POLICIES}
    assert hits["prefix-aware"] > 1.3 * hits["round-robin"]
    alone = figures(simulate(with_blocks(site(), 16_000), trace))["cache"]
    assert hits["prefix-aware"] <= alone["ceiling_rate"]
    assert alone["hit_rate"] <= alone["ceiling_rate"]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_served_once(site: Any, policy: str) -> None:
    run = simulate(site(data_parallel_size=3), synthetic(TALKS), Options(routing=policy))
    assert np.isfinite(run.rows.finish).all()
    assert set(run.rows.replica.tolist()) <= {0, 1, 2}
    assert sum(r.counts.looked_up_tokens for r in run.replicas) == run.trace.prompts.sum()


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(UnknownNameError, match="routing"):
        Options(routing="rounds").check()
