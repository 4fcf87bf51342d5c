"""What is told of a run: means over merged steps, the target's pool, flags that have no effect, early turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cli.main import main
from kvplan.errors import InputError
from kvplan.simulate import scheduler, search
from kvplan.simulate.allocators.rings import Ring
from kvplan.simulate.results import early_turns, figures
from kvplan.simulate.run import Options, simulate
from kvplan.simulate.search import read_target, smallest_pool
from kvplan.simulate.site import with_blocks
from kvplan.simulate.synthetic import synthetic
from kvplan.simulate.taking import take_trace
from kvplan.simulate.traces import read_trace


@given(
    size=st.integers(1, 9), lengths=st.lists(st.integers(1, 30), max_size=6), step=st.integers(0, 40),
    steps=st.integers(1, 40),
)  # fmt: skip
def test_blocks_held_over_steps_are_the_sum_of_those_taken_by_each(
    size: int, lengths: list[int], step: int, steps: int
) -> None:
    ring = Ring(size)
    for length in lengths:
        ring.change(step, length, 1)
    assert ring.held(step, steps) == sum(ring.taken(step, j) for j in range(1, steps + 1))


@pytest.mark.parametrize(("model", "spec"), [
    ("llama-3.1-8b", "requests=1,prompt=16,output=17"),
    ("llama-3.1-8b", "requests=60,prompt=512,output=129,rate=1"),
    ("gpt-oss-20b", "requests=30,lengths=sharegpt,rate=2"),
])  # fmt: skip
def test_steps_that_are_taken_together_waste_what_single_steps_do(
    site: Any, monkeypatch: pytest.MonkeyPatch, model: str, spec: str
) -> None:
    made, trace = site(model), synthetic(spec)
    together = figures(simulate(made, trace)).memory
    real = scheduler.Replica._decode_steps
    monkeypatch.setattr(scheduler.Replica, "_decode_steps", lambda *args: real(*args[:5], 1))
    alone = figures(simulate(made, trace)).memory
    assert together.waste.internal == pytest.approx(alone.waste.internal, abs=3e-4)
    assert together.mean_utilisation == pytest.approx(alone.mean_utilisation, rel=2e-4)


def test_one_request_wastes_half_of_its_last_block_on_average(site: Any) -> None:
    """16 tokens fill a block; 16 more fill the second one by one, which is half empty on average."""
    memory = figures(simulate(site(), synthetic("requests=1,prompt=16,output=17"))).memory
    assert memory.waste.internal == pytest.approx(0.25, abs=0.01)


def test_the_pool_of_a_target_has_tokens_where_every_group_keeps_all(site: Any) -> None:
    trace, aims = synthetic("requests=20,prompt=200,output=20,rate=20"), [read_target("ttft.p99<=10")]
    plain = smallest_pool(site(), trace, Options(), aims)
    assert plain.blocks is not None
    assert plain.tokens == plain.blocks * 16
    hybrid = smallest_pool(with_blocks(site("gpt-oss-20b"), 2000), trace, Options(), aims)
    assert hybrid.met
    assert hybrid.tokens is None


def test_an_interrupted_search_says_what_it_knows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, runs = search.simulate, []

    def some(*args: Any) -> Any:
        runs.append(args)
        if len(runs) == 4:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(search, "simulate", some)
    spec = "requests=20,prompt=100,output=5,rate=50"
    status = main(
        ["simulate", "llama-3.2-1b", "--gpu", "h100-sxm", "--synthetic", spec, "--target", "ttft.p99<=9", "--json"]
    )
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert status == 130
    assert found["interrupted"] is False, "the figures are those of all requests"
    assert (found["smallest_pool"]["interrupted"], found["smallest_pool"]["runs"]) == (True, 3)
    assert found["smallest_pool"]["blocks"] >= found["smallest_pool"]["finer_than"] > 1
    assert "the search was interrupted" in told.err


@pytest.mark.parametrize(("given_", "where"), [
    ({"synthetic": "requests=3", "columns": "prompt=x"}, "--columns"),
    ({"synthetic": "requests=3", "strict": True}, "--strict"),
    ({"synthetic": "requests=3", "trace_block": 16}, "--trace-block"),
    ({"synthetic": "requests=3,seed=1", "seed": "2"}, "--seed"),
    ({"synthetic": "requests=3,arrivals=even"}, "--synthetic"),
])  # fmt: skip
def test_flags_without_effect_are_refused(given_: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        take_trace(None, given_)
    assert caught.value.where == where


def test_a_seed_is_of_the_description_or_of_a_rate(tmp_path: Path) -> None:
    one, two = (take_trace(None, {"synthetic": "requests=9,rate=2", "seed": s}) for s in "12")
    assert one.prompts.tolist() != two.prompts.tolist()
    assert two.prompts.tolist() == synthetic("requests=9,rate=2,seed=2").prompts.tolist()
    path = tmp_path / "trace.csv"
    path.write_text("prompt,output\n5,5\n5,5\n")
    with pytest.raises(InputError, match="nothing is drawn"):
        take_trace(str(path), {"seed": "1"})
    assert take_trace(str(path), {"seed": "1", "request_rate": "2"}).arrivals[1] > 0


def test_a_prefix_has_a_length(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("prompt,output,prefix\n50,5,a\n")
    with pytest.raises(InputError, match="how long is a prefix"):
        read_trace(str(path))


def test_the_last_of_appended_results_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    runs = [{"backend": "vllm", "input_lens": [n], "output_lens": [7]} for n in (11, 22)]
    path.write_text("\n".join(map(json.dumps, runs)) + "\n")
    trace = read_trace(str(path))
    assert trace.prompts.tolist() == [22]
    assert "of 2 results" in trace.notes[0]
    path.write_text(json.dumps(runs[0]) + " and more")
    with pytest.raises(InputError, match="is not JSON"):
        read_trace(str(path))


@pytest.mark.parametrize(("think", "early"), [("0.001", True), ("5000", False)])
def test_turns_before_their_answers_are_counted(site: Any, think: str, early: bool) -> None:
    run = simulate(site(), synthetic(f"requests=12,prompt=50,output=40,turns=3,rate=1,think={think}"))
    assert early_turns(run) == (8 if early else 0)


def test_hits_are_told_by_whole_blocks_too(site: Any) -> None:
    cache = figures(simulate(site(), synthetic("requests=5,prompt=40,output=3,system=160,rate=0.1"))).cache
    assert (cache.looked_up_blocks, cache.hit_blocks) == (5 * 12, 4 * 10)
    assert cache.hit_block_rate == pytest.approx(40 / 60)
    assert (cache.ceiling_blocks, cache.ceiling_block_tokens) == (40, 16)
    assert cache.ceiling_block_rate == pytest.approx(40 / 65), "13 blocks hold 200 tokens, the last in part"


def test_static_batches_say_what_they_reserve(capsys: pytest.CaptureFixture[str]) -> None:
    spec = "requests=5,prompt=40,output=3"
    assert main(["simulate", "llama-3.2-1b", "--gpu", "h100-sxm", "--synthetic", spec, "--scheduler", "static"]) == 0
    text = capsys.readouterr().out
    assert "max_model_len reserved for each request" in text
    assert "Prefix cache" not in text
