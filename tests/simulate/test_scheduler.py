"""Who runs when: laws of every run, and single cases worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.planning.plan import to_plain
from kvplan.simulate import results
from kvplan.simulate import run as running
from kvplan.simulate.run import ALLOCATORS, Options, Run, simulate
from kvplan.simulate.scheduler import Replica
from kvplan.simulate.site import Site, with_blocks
from kvplan.simulate.synthetic import synthetic
from kvplan.simulate.trace import Builder, Trace
from kvplan.simulate.traces import read_trace


def figures(run: Run) -> Any:
    return to_plain(results.figures(run))


SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def trace_of(*requests: tuple[Any, ...]) -> Trace:
    """(arrival, prompt, output[, keys, lengths[, samples]]) each."""
    made = Builder()
    for arrival, prompt, output, *rest in requests:
        keys, lengths, samples = (*rest, (), (), 1)[:3] if len(rest) < 3 else rest
        if len(rest) == 2:
            samples = 1
        made.add(arrival, prompt, output, keys, lengths, samples=samples)
    return made.build("test", "test")


REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 3), st.integers(1, 300), st.integers(1, 60), st.integers(0, 3), st.integers(1, 3)
    ),
    min_size=1, max_size=25,
)  # fmt: skip


def some_trace(raw: list[tuple[float, int, int, int, int]], samples: bool) -> Trace:
    rows = []
    for arrival, prompt, output, key, count in sorted(raw):
        shared = min(prompt, 64 * key)
        rows.append((arrival, prompt, output, [key] if shared else [], [shared] if shared else [],
                     count if samples else 1))  # fmt: skip
    return trace_of(*rows)


class OneByOne(Replica):
    """Every step on its own: what steps that are taken together must amount to."""

    def _next_event(self) -> int:
        super()._next_event()
        return self.step + 1


class Retrying(OneByOne):
    """Whoever waits is tried in every step, as vLLM does."""

    def _advance(self, until: float) -> None:
        self.blocked = False
        super()._advance(until)


@pytest.mark.parametrize(
    ("model", "engine"),
    [("llama-3.1-8b", "vllm@0.18.0"), ("llama-3.1-8b", "vllm"), ("gpt-oss-20b", "vllm"), ("gemma-3-27b", "vllm")],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_head_of_the_queue_gets_in_as_soon_as_it_fits(site: Any, model: str, engine: str, seed: int) -> None:
    made: Site = site(model, engine=engine, max_model_len=32768)
    small = with_blocks(made, int(made.shape.wanted(16000) * 1.5))
    trace = synthetic(
        "requests=60,prompt=lognormal:4000:1,output=lognormal:200,turns=3,think=1,rate=20,system=1000,longest=12000,"
        f"seed={seed}"
    )
    run = simulate(small, trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "Replica", Retrying)
        slow = simulate(small, trace)
    for name in ("admitted", "first", "finish"):
        np.testing.assert_allclose(getattr(run.rows, name), getattr(slow.rows, name), rtol=1e-6, atol=1e-9)
    assert run.rows.hits.tolist() == slow.rows.hits.tolist()
    assert run.rows.preemptions.tolist() == slow.rows.preemptions.tolist()


@SLOW
@given(raw=REQUESTS, blocks=st.integers(24, 90), sequences=st.integers(3, 9), tokens=st.sampled_from([32, 100, 400]),
       swap=st.booleans(), samples=st.booleans(), chunked=st.booleans())  # fmt: skip
def test_laws_of_a_run(site: Any, raw: Any, blocks: int, sequences: int, tokens: int, swap: bool, samples: bool,
                       chunked: bool) -> None:  # fmt: skip
    made: Site = with_blocks(site(max_num_seqs=sequences, max_num_batched_tokens=tokens), blocks)
    trace = some_trace(raw, samples)
    options = Options(preemption="swap" if swap else "recompute", chunked_prefill=chunked)
    run = simulate(made, trace, options)
    check(run)
    again = simulate(made, trace, options)
    assert figures(run) == figures(again)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "Replica", OneByOne)
        slow = simulate(made, trace, options)
    for name in ("admitted", "first", "finish"):
        np.testing.assert_allclose(getattr(run.rows, name), getattr(slow.rows, name), rtol=1e-6, atol=1e-9)
    assert run.rows.hits.tolist() == slow.rows.hits.tolist()
    assert [r.counts for r in run.replicas] == [r.counts for r in slow.replicas]


@SLOW
@given(
    ids=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=1, max_size=20),
    tokens=st.integers(0, 511), output=st.integers(1, 40), blocks=st.integers(200, 600),
)  # fmt: skip
def test_ids_that_follow_any_others_leave_the_sums_whole(
    site: Any, tmp_path_factory: pytest.TempPathFactory, ids: list[list[int]], tokens: int, output: int, blocks: int
) -> None:
    rows = [
        {"timestamp": 20 * i, "input_length": 512 * len(some) - tokens, "output_length": output, "hash_ids": some}
        for i, some in enumerate(ids)
    ]
    path = tmp_path_factory.mktemp("traces") / "ids.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    check(simulate(with_blocks(site(), blocks), read_trace(str(path))))


def check(run: Run) -> None:
    """What holds after every run."""
    rows, trace, result = run.rows, run.trace, figures(run)
    done = np.isfinite(rows.finish)
    assert done.sum() + len(rows.rejected) == len(trace)
    assert not any(done[i] for i in rows.rejected)
    for replica in run.replicas:
        memory = replica.memory
        assert memory.used == 0
        assert memory.tokens == 0
        assert not replica.running
        assert not replica.waiting
        assert replica.batch == replica.context == replica.sequences == replica.load_tokens == 0
        assert replica.line.peak_used <= memory.capacity
        assert replica.line.peak_running <= run.site.sequences
        if memory.paged:
            assert memory.cache.held_spans == 0
            assert memory.free + memory.cache.idle_blocks == memory.capacity
            assert memory.free >= 0
            assert memory.cache.idle_marks == sum(r.count for r in memory.cache.queue if r.mark)
            assert memory.other == 0
            assert all(ring.members == 0 for ring in memory.rings.whole)
    assert (rows.admitted[done] >= trace.arrivals[done] - 1e-9).all()
    assert (rows.first[done] > rows.admitted[done]).all()
    assert (rows.finish[done] >= rows.first[done]).all()
    assert (rows.hits < np.maximum(trace.prompts, 1)).all()
    samples = run.options.samples or trace.samples
    computed = (trace.prompts - rows.hits + (trace.outputs - 1) * samples)[done].sum()
    extra = result["scheduling"]["recomputed_tokens"]
    total = sum(replica.line.total[-1] for replica in run.replicas)
    if np.max(samples) == 1:  # several samples that are preempted compute the answer of one again
        assert total >= computed - 1e-6
    if not result["scheduling"]["preemptions"]:
        assert total == pytest.approx(computed)
        assert extra == 0
    memory = result["memory"]
    parts = [memory["stored_share"], *memory["waste"].values()]
    assert all(0 <= p <= 1 + 1e-9 for p in parts)
    assert sum(parts) == pytest.approx(1, abs=1e-6) or not done.any()


@SLOW
@given(raw=REQUESTS, allocator=st.sampled_from(ALLOCATORS), scheduler=st.sampled_from(["continuous", "static"]))
def test_laws_of_every_allocator(site: Any, raw: Any, allocator: str, scheduler: str) -> None:
    if scheduler == "static":
        allocator = "max"
    made = with_blocks(site(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=512), 200)
    run = simulate(made, some_trace(raw, False), Options(allocator=allocator, scheduler=scheduler))
    done = np.isfinite(run.rows.finish)
    assert done.sum() + len(run.rows.rejected) == len(run.trace)
    if scheduler == "continuous":
        check(run)


def test_windows_and_states_leave_nothing_behind(site: Any) -> None:
    trace = synthetic("requests=60,prompt=lognormal:900,output=lognormal:300,rate=20,seed=3")
    for model, blocks in (("gemma-3-27b", 3000), ("qwen3-next-80b-a3b", 60), ("gpt-oss-20b", 1500)):
        made = with_blocks(site(model, tensor_parallel_size=4), blocks)
        run = simulate(made, trace)
        check(run)
        assert figures(run)["scheduling"]["finished"] > 0


def test_the_budget_is_shared_first_come_first_served(site: Any) -> None:
    """400 tokens a step: 300 of the first prompt and 100 of the second; then its other 200 beside one decode."""
    made = site(max_num_seqs=8, max_num_batched_tokens=400)
    run = simulate(made, trace_of((0, 300, 3), (0, 300, 3), (0, 10, 1)))
    replica, rows = run.replicas[0], run.rows
    assert replica.counts.steps == 4
    assert rows.admitted.tolist()[:2] == [0, 0]
    assert rows.first[0] == rows.admitted[2], (
        "the third is admitted in the second step, which begins when the first ends"
    )
    assert rows.first[1] == rows.first[2] == rows.finish[2]
    assert rows.finish[0] > rows.first[1]
    assert rows.finish[1] > rows.finish[0]


def test_the_last_admitted_is_preempted_and_resumes_first(site: Any) -> None:
    """Seven blocks of 16 tokens: two requests of 48 tokens take three each; both want a fourth, one gets it."""
    made = with_blocks(site(enable_prefix_caching=False), 7)
    run = simulate(made, trace_of((0, 48, 10), (0, 48, 10), (0, 16, 1)))
    assert run.rows.preemptions.tolist() == [0, 1, 0]
    result = figures(run)
    assert result["scheduling"]["preemptions"] == 1
    assert result["scheduling"]["recomputed_tokens"] == 49, "the prompt and the one token that it had"
    assert run.rows.finish[1] > run.rows.finish[0]
    kept = figures(simulate(made, trace_of((0, 48, 10), (0, 48, 10), (0, 16, 1)), Options(preemption="swap")))
    assert kept["scheduling"]["swapped_tokens"] == 48
    assert kept["scheduling"]["recomputed_tokens"] == 0


def test_a_whole_prompt_must_fit_before_it_is_admitted(site: Any) -> None:
    made = with_blocks(site(max_num_batched_tokens=64, max_num_seqs=8, enable_prefix_caching=False), 11)
    trace = trace_of((0, 96, 40), (0, 96, 40))
    assert figures(simulate(made, trace))["scheduling"]["peak_batch"] == 1
    old = with_blocks(
        site(engine="vllm@0.18.0", max_num_batched_tokens=64, max_num_seqs=8, enable_prefix_caching=False), 11
    )
    assert figures(simulate(old, trace))["scheduling"]["peak_batch"] == 2


def test_shared_prompts_are_computed_once(site: Any) -> None:
    """Full blocks only, never the last token: of 100 shared tokens in blocks of 16 six blocks are found."""
    chain = ([7], [100])
    run = simulate(site(), trace_of((0, 100, 5, *chain), (9, 100, 5, *chain), (18, 96, 5, [7], [96])))
    assert run.rows.hits.tolist() == [0, 96, 80]
    assert simulate(site(enable_prefix_caching=False), run.trace).rows.hits.tolist() == [0, 0, 0]


def test_windows_and_states_are_kept_where_prompts_end_and_part(site: Any) -> None:
    """Blocks of 16 tokens. From 0.29 on a hybrid goes on only after a prompt's last full block, or where two parted."""
    trace = trace_of(
        (0, 2000, 400, [7, 8], [800, 1200]),
        (9, 2500, 4, [7, 8], [800, 1200]),  # after the first prompt, whose last token is not found
        (18, 2000, 4, [7, 9], [800, 1200]),  # nothing is kept at 800: it is from now on
        (27, 2000, 4, [7, 10], [800, 1200]),
        (36, 2000, 4, [7, 8], [800, 1200]),
        (45, 900, 4, [7, 8], [800, 100]),
    )
    for model in ("gpt-oss-20b", "gemma-3-27b"):
        made = site(model, tensor_parallel_size=2)
        assert (made.shape.span, made.shape.marked) == (16, True)
        assert simulate(made, trace).rows.hits.tolist() == [0, 1984, 0, 800, 1984, 800]
        old = site(model, tensor_parallel_size=2, engine="vllm@0.28.0")
        assert not old.shape.marked
        assert simulate(old, trace).rows.hits.tolist() == [0, 2000, 800, 800, 1984, 896]
    assert not site().shape.marked


@SLOW
@given(raw=REQUESTS, blocks=st.integers(150, 500), swap=st.booleans(), samples=st.booleans(), turns=st.integers(1, 4))
def test_laws_of_hybrids(site: Any, raw: Any, blocks: int, swap: bool, samples: bool, turns: int) -> None:
    options = Options(preemption="swap" if swap else "recompute")
    made: Site = site("gpt-oss-20b", max_num_seqs=6, max_num_batched_tokens=100)
    check(simulate(with_blocks(made, blocks), some_trace(raw, samples), options))
    talks = synthetic(f"requests=30,turns={turns},prompt=lognormal:90,output=lognormal:60,rate=20,think=1,system=70")
    check(simulate(with_blocks(made, blocks), talks, options))


def test_answers_are_found_again_in_the_next_turn(site: Any) -> None:
    trace = synthetic("requests=8,turns=4,prompt=160,output=33,rate=0.001,think=100,seed=1")
    run = simulate(site(), trace)
    order = np.argsort(trace.keys, kind="stable")
    for talk in np.split(order, 2):
        lengths = (trace.prompts[talk] + trace.outputs[talk] - 1) // 16 * 16
        assert run.rows.hits[talk].tolist() == [0, *lengths[:-1].tolist()]


def test_too_large_a_request_is_told_and_left(site: Any) -> None:
    made = with_blocks(site(max_model_len=4096), 20)
    run = simulate(made, trace_of((0, 5000, 10), (0, 300, 30), (0, 16, 4)))
    assert run.rows.rejected == {
        0: "5,010 tokens are over max_model_len 4,096", 1: "330 tokens do not fit the whole pool"
    }  # fmt: skip
    assert np.isfinite(run.rows.finish).tolist() == [False, False, True]
    short = simulate(site(max_num_seqs=4), trace_of((0, 16, 4)), Options(samples=5))
    assert short.rows.rejected == {0: "5 samples are over max_num_seqs 4"}


def test_samples_share_their_prompt(site: Any) -> None:
    """160 tokens in 10 blocks once, and 2 blocks of each sample's 20 cached tokens."""
    run = simulate(site(enable_prefix_caching=False), trace_of((0, 160, 21)), Options(samples=4))
    assert run.replicas[0].line.peak_used == 10 + 4 * 2
    odd = simulate(site(enable_prefix_caching=False), trace_of((0, 165, 21)), Options(samples=4))
    assert odd.replicas[0].line.peak_used == 10 + 4 * 2, "the partial block is copied by each but one"
    assert figures(run)["throughput"]["tokens_per_second"] * figures(run)["throughput"]["seconds"] == pytest.approx(84)


def test_paged_waste_stays_below_one_block_a_sequence(site: Any) -> None:
    made = site(enable_prefix_caching=False)
    run = simulate(made, synthetic("requests=200,lengths=alpaca,rate=100,seed=5"))
    total = run.replicas[0].line.total
    used, stored, running_requests = total[1], total[2], total[6]
    assert 0 < used - stored < running_requests


def test_static_batches_wait_for_their_longest(site: Any) -> None:
    made = site(max_model_len=2048)
    trace = synthetic("requests=100,lengths=sharegpt,rate=4,longest=2048,seed=2")
    static, continuous = simulate(made, trace, Options(scheduler="static")), simulate(made, trace)
    assert figures(static)["latency"]["e2e"]["p50"] > 1.5 * figures(continuous)["latency"]["e2e"]["p50"]
    alone = simulate(made, trace_of((0, 100, 50)), Options(scheduler="static"))
    once = simulate(made, trace_of((0, 100, 50)))
    assert alone.rows.finish[0] == pytest.approx(once.rows.finish[0])
    two = simulate(made, trace_of((0, 100, 50), (0, 10, 2)), Options(scheduler="static"))
    assert two.rows.finish[0] == two.rows.finish[1]


def test_an_interrupt_leaves_what_there_is(site: Any) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    run = simulate(site(), synthetic("requests=2000,prompt=100,output=10,rate=50"), progress=_once(interrupt))
    result = figures(run)
    assert result["interrupted"]
    assert 0 < run.served < 2000
    assert 0 < result["scheduling"]["finished"] <= run.served


def _once(act: Any) -> Any:
    told = []

    def progress(count: int) -> None:
        told.append(count)
        if len(told) == 1:
            act(count)

    return progress


def test_hits_stay_below_the_ceiling_of_the_blocks(site: Any) -> None:
    trace = synthetic("requests=60,turns=3,prompt=lognormal:700,output=lognormal:150,rate=8,system=300,seed=3")
    for engine in ("vllm", "sglang", "generic"):
        cache = results.figures(simulate(site(engine=engine), trace)).cache
        assert 0.3 < cache.hit_rate <= cache.ceiling_rate
    hybrid = site("qwen3-next-80b-a3b", tensor_parallel_size=4)
    assert hybrid.shape.span > 150, "a block covers a state, and the first prompts fill none"
    short = synthetic("requests=90,turns=3,prompt=90,output=60,rate=8,seed=3")
    cache = results.figures(simulate(hybrid, short)).cache
    assert cache.hit_rate <= cache.ceiling_rate
