"""Many simulations, wherever they run; and the smallest pool that meets a target."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import KvplanError
from kvplan.planning.sweep_axes import Axis
from kvplan.simulate.documents import Simulation
from kvplan.simulate.results import figures
from kvplan.simulate.run import Options, simulate
from kvplan.simulate.search import read_target, smallest_pool
from kvplan.simulate.site import with_blocks
from kvplan.simulate.synthetic import synthetic
from kvplan.simulate.taking import NAMES
from kvplan.simulate.vary import ROW, Point, points, run_study, simulate_point

SPEC = "requests=150,lengths=alpaca,rate=40,longest=1024"
AXES = [Axis("allocator", ["max", "paged"]), Axis("seed", ["1", "2"]), Axis("max_model_len", [1024, None])]
BASE = Point("llama-3.2-1b", {"gpu": "h100-sxm"}, None, {"synthetic": SPEC, "request_rate": "30"}, {})


def todo() -> list[tuple[dict[str, Any], Point]]:
    return list(points(BASE, AXES, of_trace=NAMES, of_options=Options._fields))


def test_the_grid_has_every_combination_in_order() -> None:
    chosen = [tuple(values.values()) for values, _ in todo()]
    assert chosen == [(a, s, n) for a in ("max", "paged") for s in ("1", "2") for n in (1024, None)]
    _, point = todo()[0]
    assert point.options == {"allocator": "max"}
    assert point.trace_flags["seed"] == "1"
    assert point.deployment == {"gpu": "h100-sxm", "max_model_len": 1024}


def test_processes_give_the_rows_of_a_serial_run() -> None:
    alone = run_study(todo(), workers=1)
    told: list[int] = []
    spread = run_study(todo(), workers=2, told=told.append)
    assert alone.rows == spread.rows
    assert len(alone.rows) == 8 == sum(told)
    assert all(row["refused"] is None and row["latency.ttft.p99"] > 0 for row in alone.rows)
    assert set(ROW) < set(alone.rows[0])


def test_ray_gives_the_rows_of_a_serial_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    # workers of a cluster import kvplan from where this test does
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    assert run_study(todo(), ray="local", workers=2).rows == run_study(todo(), workers=1).rows


@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
def test_an_interrupt_of_ray_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    slow = BASE._replace(trace_flags={"synthetic": "requests=3000000,lengths=sharegpt,rate=20"})
    work: list[tuple[dict[str, Any], Point]] = [({"n": 1}, slow), ({"n": 2}, BASE), ({"n": 3}, slow)]
    started = time.monotonic()
    # while the next one is waited for
    later = threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    study = run_study(work, ray="local", workers=2, told=lambda _: later.start())
    assert study.interrupted
    (row,) = study.rows
    assert row == {"n": 2, **simulate_point(BASE)}
    assert time.monotonic() - started < 60


def test_what_is_refused_is_a_row_with_its_reason() -> None:
    base = BASE._replace(deployment={"gpu": "h100-sxm", "kv_cache_memory_bytes": 10**6})
    (row,) = run_study(list(points(base, [], of_trace=NAMES, of_options=Options._fields)), workers=1).rows
    assert row["refused"]
    assert row["latency.ttft.p50"] is None


def test_an_interrupt_keeps_the_rows_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan.simulate import vary

    real, count = vary.simulate_point, []

    def third_is_interrupted(point: Point) -> dict[str, Any]:
        count.append(point)
        if len(count) == 3:
            raise KeyboardInterrupt
        return real(point)

    monkeypatch.setattr(vary, "simulate_point", third_is_interrupted)
    study = run_study(todo(), workers=1)
    assert study.interrupted
    assert len(study.rows) == 2


@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
def test_an_interrupt_ends_the_workers_and_keeps_what_they_finished() -> None:
    slow = BASE._replace(trace_flags={"synthetic": "requests=3000000,lengths=sharegpt,rate=20"})
    started, others = time.monotonic(), set(active_children())

    def interrupt(_: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    work: list[tuple[dict[str, Any], Point]] = [({"n": 1}, slow), ({"n": 2}, BASE)]
    study = run_study(work, workers=2, told=interrupt)
    assert study.interrupted
    assert [row["n"] for row in study.rows] == [2]  # the one behind it is not finished
    assert study.rows[0]["latency.ttft.p50"] > 0
    # the pool's own thread waits for them too, and whoever comes second learns a moment later that they are gone
    while set(active_children()) - others and time.monotonic() - started < 60:
        time.sleep(0.05)
    assert not set(active_children()) - others
    assert time.monotonic() - started < 60


def test_the_smallest_pool_meets_the_target_and_a_smaller_one_does_not(site: Any) -> None:
    made = site(max_model_len=1024)
    trace = synthetic(SPEC)
    aim = read_target("ttft.p90<=0.1")
    found = smallest_pool(made, trace, Options(), [aim])
    assert found.met
    assert found.blocks is not None
    assert found.finer_than == 1
    assert found.bytes == found.blocks * made.block_bytes

    def plain(blocks: int) -> Simulation:
        return figures(simulate(with_blocks(made, blocks), trace))

    assert aim.met(plain(found.blocks))
    less = plain(found.blocks - found.finer_than)
    assert not aim.met(less) or less.scheduling.rejected
    assert found.share_of_pool == pytest.approx(found.blocks / made.num_blocks)


def test_a_target_beyond_the_pool_is_looked_for_beyond_it(site: Any) -> None:
    small = with_blocks(site(max_model_len=1024), 70)
    trace = synthetic(SPEC)
    larger = smallest_pool(small, trace, Options(), [read_target("ttft.p90 <= 100ms")])
    assert larger.met
    assert larger.share_of_pool is not None
    assert larger.share_of_pool > 1
    never = smallest_pool(small, trace, Options(), [read_target("tpot.p50<=1ms")])
    assert not never.met
    assert never.blocks is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("ttft.p99<=2", 2), ("latency.tpot.p50 < 50ms", 0.05), ("hit_rate>=30%", 0.3), ("rejected<=0", 0)],
)
def test_targets_are_read(text: str, value: float) -> None:
    assert read_target(text).value == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "ttft", "ttft.p99=2", "ttft.p95<=2", "speed>=3", "ttft.p99<=2h", "ttft.p99<=-1"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(KvplanError) as caught:
        read_target(text)
    assert caught.value.hint
