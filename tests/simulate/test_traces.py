"""Readers, one a format; what they refuse; and what a trace is described as."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError, KvplanError, UnknownNameError
from kvplan.planning.plan import to_plain
from kvplan.simulate.describe import bounded, ceiling, describe
from kvplan.simulate.synthetic import retimed, sliced, synthetic
from kvplan.simulate.trace import Builder
from kvplan.simulate.traces import Reading, read_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
MOONCAKE = DATA / "mooncake_150.jsonl"
LINE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def write(folder: Path, text: str, name: str = "trace") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_mooncake_lines_become_requests() -> None:
    trace = read_trace(str(MOONCAKE))
    assert (len(trace), trace.format, trace.block_tokens, trace.timed) == (150, "mooncake", 512, True)
    assert (trace.prompts[0], trace.outputs[0]) == (6758, 500)
    assert trace.chain(0) == [(i, 512) for i in range(13)] + [(13, 6758 - 13 * 512)]
    assert trace.arrivals[0] == 0
    raw = [json.loads(line) for line in MOONCAKE.read_text().splitlines()]
    assert trace.arrivals[-1] == raw[-1]["timestamp"] / 1000
    assert trace.prompts.tolist() == [r["input_length"] for r in raw]


@pytest.mark.parametrize("size", [30, 300, 3000])
def test_the_ceiling_is_that_of_a_plain_count(size: int) -> None:
    raw = [json.loads(line) for line in MOONCAKE.read_text().splitlines()]
    seen: set[int] = set()
    held: OrderedDict[int, None] = OrderedDict()
    blocks = hits = tokens = kept = 0
    for request in raw:
        ids = request["hash_ids"]
        lead = next((i for i, x in enumerate(ids) if x not in seen), len(ids))
        hits, tokens, blocks = hits + lead, tokens + min(512 * lead, request["input_length"]), blocks + len(ids)
        seen.update(ids)
        kept += next((i for i, x in enumerate(ids) if x not in held), len(ids))
        for x in reversed(ids):
            held.pop(x, None)
            held[x] = None
        while len(held) > size:
            held.popitem(last=False)
    trace = read_trace(str(MOONCAKE))
    found = ceiling(trace)
    assert (found.blocks, found.hit_blocks, found.hit_tokens) == (blocks, hits, tokens)
    assert found.tokens == sum(r["input_length"] for r in raw)
    assert bounded(trace, size).hit_blocks == kept
    assert hits > 0


def test_azure_has_lengths_and_times_alone() -> None:
    trace = read_trace(str(DATA / "azure_59.csv"))
    assert (len(trace), trace.format) == (59, "azure")
    assert (trace.prompts[0], trace.outputs[0]) == (374, 44)
    assert trace.arrivals[1] == pytest.approx(50.9951690 - 46.6805900, abs=1e-6)
    assert describe(trace).prefix_ceiling.block_tokens is None


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(MOONCAKE.read_bytes()))
    assert read_trace(str(path)).prompts.tolist() == read_trace(str(MOONCAKE)).prompts.tolist()
    path.write_bytes(gzip.compress(MOONCAKE.read_bytes())[:3000])
    with pytest.raises(InputError, match="cannot read on"):
        read_trace(str(path))


def test_csv_by_named_columns(tmp_path: Path) -> None:
    text = "when,in,out,n,who,common\n2026-01-01T00:00:01Z,100,5,1,a,40\n2026-01-01T00:00:03.5Z,90,6,2,a,40\n"
    path = write(tmp_path, text)
    names = {
        "arrival": "when",
        "prompt": "in",
        "output": "out",
        "samples": "n",
        "prefix": "who",
        "prefix_tokens": "common",
    }
    trace = read_trace(path, Reading(format="csv", columns=names))
    assert trace.arrivals.tolist() == [0, 2.5]
    assert trace.samples.tolist() == [1, 2]
    assert trace.chain(0) == trace.chain(1) == [(1, 40)]
    plain = read_trace(write(tmp_path, "prompt_tokens,output_tokens\n7,8\n"))
    assert (plain.timed, plain.prompts.tolist(), plain.outputs.tolist()) == (False, [7], [8])


def test_sharegpt_takes_the_first_two_turns(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "x" * 40}, {"from": "gpt", "value": "y" * 80}, {"from": "human", "value": "z"}]
    text = json.dumps([{"conversations": talk}, {"prompt_len": 3, "output_len": 4}, {"conversations": talk[:1]}])
    trace = read_trace(write(tmp_path, text))
    assert (trace.prompts.tolist(), trace.outputs.tolist(), trace.timed) == ([10, 3], [20, 4], False)
    assert "estimated" in trace.notes[0]
    assert trace.broken == (1, ("conversation 3: has fewer than two turns",))


GOOD = [
    json.dumps({"conversations": [{"from": "human", "value": "a, {" * n}, {"from": "gpt", "value": '}, "b": ]' * n}]})
    for n in range(1, 6)
]


@pytest.mark.parametrize(
    "bad",
    ["oops", '{"conversations": [{"value": "a}, {"value": "c"}]}', '{"conversations": [{"value": "a" "b"}]}',
     '{"prompt_len": 3, "output_len": 4', '{"prompt_len": 3, "output_len": }', '"', "{}}"],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 2, 5])
def test_one_broken_conversation_takes_no_other_with_it(tmp_path: Path, bad: str, place: int) -> None:
    text = "[" + ",\n".join([*GOOD[:place], bad, *GOOD[place:]]) + "]"
    trace = read_trace(write(tmp_path, text), Reading(format="sharegpt"))
    right = read_trace(write(tmp_path, f"[{','.join(GOOD)}]"))
    assert trace.prompts.tolist() == right.prompts.tolist()
    assert trace.broken.lines == 1 + (bad == "{}}")
    assert trace.broken.first[0].startswith(f"conversation {place + 1}: ")
    with pytest.raises(InputError, match=r"is not JSON|no JSON object|two turns") as caught:
        read_trace(write(tmp_path, text), Reading(format="sharegpt", strict=True))
    assert f"conversation {place + 1}" in str(caught.value.where)


@pytest.mark.parametrize("end", [1, 20, len(GOOD[-1]) + 1])
def test_an_array_that_is_cut_off_has_one_broken_conversation(tmp_path: Path, end: int) -> None:
    trace = read_trace(write(tmp_path, f"[{','.join(GOOD)}]"[:-end]))
    assert len(trace) == len(GOOD) - (end > 1)
    assert trace.broken.lines == 1
    assert "cut off" in trace.broken.first[0]


def test_an_id_behind_another_one_is_another_block(tmp_path: Path) -> None:
    """Equal ids mean equal content before them; where a trace breaks that, they are told apart."""
    rows = [[1, 2, 3], [1, 2, 4], [5, 2, 3], [5, 2, 3], [3, 3]]
    lines = [
        json.dumps({"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids})
        for ids in rows
    ]
    trace = read_trace(write(tmp_path, "\n".join(lines)))
    keys = [[key for key, _ in trace.chain(i)] for i in range(len(rows))]
    assert keys[:2] == [[1, 2, 3], [1, 2, 4]]
    assert keys[2] == keys[3]
    assert keys[2][0] == 5
    assert len({*keys[0], *keys[2], *keys[4]}) == 8
    most = ceiling(trace)
    assert (most.hit_blocks, most.blocks) == (2 + 3, 14)
    assert "4 hash ids" in trace.notes[0]


def test_a_vllm_benchmark(tmp_path: Path) -> None:
    result = {"backend": "vllm", "request_rate": 4.0, "input_lens": [10, 20, 30], "output_lens": [5, 0, 7]}
    trace = read_trace(write(tmp_path, json.dumps(result)))
    assert (trace.prompts.tolist(), trace.outputs.tolist(), trace.arrivals.tolist()) == ([10, 30], [5, 7], [0, 0.5])
    assert trace.broken.first == ("request 2: output length 0 is not above 0",)
    timed = read_trace(write(tmp_path, json.dumps({**result, "start_times": [100.0, 100.5, 101.25]})))
    assert timed.arrivals.tolist() == [0, 1.25]
    with pytest.raises(InputError, match="input_lens"):
        read_trace(write(tmp_path, json.dumps({"backend": "vllm", "request_throughput": 3})))


BROKEN = [
    ("{", "is not JSON"),
    ("[" * 100_000, "nests too deeply"),
    ("7", "is no JSON object"),
    (json.dumps({**LINE, "input_length": -3, "hash_ids": []}), "input_length -3 is not above 0"),
    (json.dumps({**LINE, "output_length": None}), "output_length is missing"),
    (json.dumps({**LINE, "output_length": 2.5}), "output_length '2.5' is not a whole number"),
    (json.dumps({**LINE, "timestamp": "soon"}), "timestamp 'soon' is not a time"),
    (json.dumps({**LINE, "input_length": 10**12}), "input_length 1000000000000 is absurdly large"),
    (json.dumps({**LINE, "hash_ids": [1]}), "1 hash_ids for 600 tokens in blocks of 512"),
    (json.dumps({**LINE, "hash_ids": [1, "2"]}), "hash id '2' is not a whole number"),
]


def test_broken_lines_are_counted_and_the_first_three_named(tmp_path: Path) -> None:
    lines = [json.dumps(LINE)]
    for text, _ in BROKEN:
        lines += [text, json.dumps(LINE)]
    path = write(tmp_path, "\n".join(lines))
    trace = read_trace(path, Reading(format="mooncake"))
    assert len(trace) == len(BROKEN) + 1
    assert trace.broken.lines == len(BROKEN)
    assert trace.broken.first == tuple(f"line {2 * i + 2}: {why}" for i, (_, why) in enumerate(BROKEN[:3]))


@pytest.mark.parametrize(("text", "why"), BROKEN)
def test_strict_stops_at_the_first_broken_line(tmp_path: Path, text: str, why: str) -> None:
    path = write(tmp_path, json.dumps(LINE) + "\n\n" + text + "\n")
    with pytest.raises(InputError) as caught:
        read_trace(path, Reading(format="mooncake", strict=True))
    assert str(caught.value) == f"{path}, line 3: {why}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("hello\n", "begins like no trace"),
        ("1,2,3\n4,5,6\n", "begins like no trace"),
        ("a,b\n1,2\n", "no column of prompt tokens"),
        ("prompt_tokens,b\n1,2\n", "no column of output tokens"),
        ("prompt,output\n", "no request in it"),
        ("prompt,output\n-1,x\n", "no request in it (1 broken"),
        ("[]", "no request in it"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(write(tmp_path, text))
    assert why in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('2,"10,5', "quotes that do not match"),
        ('2,10,"5', "quotes that do not match"),
        ('2,"10"x,5', "quotes that do not match"),
        ("2,1,024,5", "4 cells where the header has 3"),
        ("2,10", "2 cells of 3"),
        ("1" * 401 + ",10,5", "is not a time"),
    ],
)
def test_a_broken_row_takes_no_other_with_it(tmp_path: Path, row: str, why: str) -> None:
    path = write(tmp_path, f"arrival,prompt,output\n0,10,5\n\n\n1,10,5\n{row}\n3,10,5\n4,10,5,\n")
    trace = read_trace(path)
    assert trace.arrivals.tolist() == [0, 1, 3, 4]
    assert trace.broken.lines == 1
    (named,) = trace.broken.first
    assert named.startswith("line 6: ")  # blank lines are lines of the file
    assert why in named
    with pytest.raises(InputError, match="line 6"):
        read_trace(path, Reading(strict=True))


def test_quoted_cells_are_read_and_a_broken_header_is_refused(tmp_path: Path) -> None:
    trace = read_trace(
        write(tmp_path, 'prompt,"output",prefix,prefix_tokens\r\n"20","5","a ""b"", c",20\r\n20,5,"a ""b"", c",20\r\n')
    )
    assert trace.outputs.tolist() == [5, 5]
    assert trace.chain(0) == trace.chain(1) != []
    with pytest.raises(InputError, match="first line"):
        read_trace(write(tmp_path, 'prompt,"output\n20,5\n'))


def test_a_time_of_hundreds_of_digits_is_a_broken_line(tmp_path: Path) -> None:
    huge = json.dumps({**LINE, "timestamp": 10**400})
    trace = read_trace(write(tmp_path, f"{json.dumps(LINE)}\n{huge}\n{json.dumps(LINE)}\n"))
    assert len(trace) == 2
    assert trace.broken.first[0].startswith("line 2: timestamp '1000")
    bench = {"input_lens": [5, 5], "output_lens": [5, 5], "start_times": [0, 10**400], "request_rate": 10**400}
    assert read_trace(write(tmp_path, json.dumps(bench))).broken.first[0].startswith("request 2: start time")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), str(tmp_path), "a\0b"):
        with pytest.raises(InputError, match="cannot read"):
            read_trace(path)
    with pytest.raises(UnknownNameError, match="moonkake"):
        read_trace(str(MOONCAKE), Reading(format="moonkake"))


def test_unsorted_timestamps_are_sorted_and_told(tmp_path: Path) -> None:
    times = [5000, 1000, 3000, 2000]
    text = "\n".join(json.dumps({**LINE, "timestamp": t, "input_length": 600 + i}) for i, t in enumerate(times))
    trace = read_trace(write(tmp_path, text))
    assert trace.arrivals.tolist() == [0, 1, 2, 4]
    assert trace.prompts.tolist() == [601, 603, 602, 600]
    assert trace.chain(3) == [(1, 512), (2, 88)]
    assert trace.notes == ("2 timestamps lie before those above: the requests were sorted",)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_no_file_brings_a_reader_down(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("t") / "f"
    for head in (b"", b"prompt,output\n", b'{"hash_ids"', b"[", b'{"input_lens"'):
        path.write_bytes(head + raw)
        said: KvplanError | None = None
        try:
            assert len(read_trace(str(path))) > 0
        except KvplanError as error:
            said = error
        assert said is None or (said.hint and "\n" not in str(said))


def test_slices_and_scales() -> None:
    trace = read_trace(str(MOONCAKE))
    some = sliced(trace, start=3, end=20, limit=10, scale=0.5)
    chosen = np.flatnonzero((trace.arrivals >= 3) & (trace.arrivals < 20))[:10]
    assert some.prompts.tolist() == trace.prompts[chosen].tolist()
    assert some.arrivals.tolist() == ((trace.arrivals[chosen] - trace.arrivals[chosen[0]]) / 2).tolist()
    assert [some.chain(i) for i in range(len(some))] == [trace.chain(i) for i in chosen.tolist()]
    with pytest.raises(InputError, match="no request is left"):
        sliced(trace, start=1e6)


def test_arrivals_anew_have_the_rate() -> None:
    trace = synthetic("requests=20000,prompt=10,output=2,rate=1")
    times = retimed(trace, 8.0, seed=3).arrivals
    gaps = np.diff(times)
    assert times[0] == 0
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 8, rel=0.05)


def test_synthetic_lengths_have_their_means() -> None:
    trace = synthetic("requests=50000,lengths=sharegpt,rate=3,seed=1")
    assert trace.prompts.mean() == pytest.approx(161, rel=0.03)
    assert trace.outputs.mean() == pytest.approx(338, rel=0.03)
    assert trace.outputs.std() / trace.outputs.mean() == pytest.approx(0.8, rel=0.05)
    bursty = np.diff(synthetic("requests=50000,rate=3,arrivals=bursty:3,seed=1").arrivals)
    assert bursty.std() / bursty.mean() == pytest.approx(3, rel=0.1)
    even = np.diff(synthetic("requests=50,rate=4,arrivals=even").arrivals)
    assert even == pytest.approx(0.25)
    uniform = synthetic("requests=5000,prompt=uniform:3..7,output=exponential:50").prompts
    assert set(uniform.tolist()) == {3, 4, 5, 6, 7}


def test_turns_repeat_the_conversation() -> None:
    trace = synthetic("requests=12,turns=4,prompt=uniform:10..90,output=uniform:5..30,system=100,rate=1,seed=2")
    talks: dict[int, list[int]] = {}
    for i in range(len(trace)):
        (first, shared), (talk, rest) = trace.chain(i)
        assert (first, shared) == (1, 100)
        assert rest == trace.prompts[i] - 100
        assert trace.tails[i] == talk
        talks.setdefault(talk, []).append(i)
    for turns in talks.values():
        assert len(turns) == 4
        for before, after in itertools.pairwise(turns):
            assert trace.prompts[after] > trace.prompts[before] + trace.outputs[before]
    assert (np.diff(trace.arrivals) >= 0).all()


def test_the_same_seed_gives_the_same_trace() -> None:
    spec = "requests=300,turns=3,prompt=lognormal:50,output=exponential:9,rate=2,system=7"
    one, two, other = (synthetic(f"{spec},seed={s}") for s in (5, 5, 6))
    assert one.arrivals.tolist() == two.arrivals.tolist()
    assert one.prompts.tolist() == two.prompts.tolist()
    assert one.prompts.tolist() != other.prompts.tolist()


def test_no_request_is_longer_than_asked() -> None:
    for spec in ("lengths=sharegpt", "turns=5,prompt=300,output=200", "system=100,prompt=exponential:900"):
        trace = synthetic(f"requests=400,{spec},longest=1024,seed=1")
        assert (trace.prompts + trace.outputs).max() <= 1024
        assert trace.prompts.min() >= 1


@pytest.mark.parametrize(
    "spec",
    [
        "request=5", "requests", "requests=0", "requests=-3", "requests=x", "requests=99999999999", "rate=0",
        "rate=nan", "prompt=normal:5", "prompt=uniform:9..3", "prompt=-4", "arrivals=never,rate=1", "seed=1.5",
        "turns=0", "requests=5,requests=6", "lengths=wiki",
        "system=100,longest=50", "arrivals=bursty:0,rate=1", "output=inf",
    ],
)  # fmt: skip
def test_a_spec_that_makes_no_sense_is_refused(spec: str) -> None:
    with pytest.raises(KvplanError) as caught:
        synthetic(spec)
    assert caught.value.hint


def test_description_of_a_small_trace() -> None:
    made = Builder()
    for arrival, prompt, output in ((0.0, 10, 1), (1.0, 20, 3), (3.0, 60, 2)):
        made.add(arrival, prompt, output, [1], [10])
    plain: dict[str, Any] = to_plain(describe(made.build("t", "test")))
    assert (plain["requests"], plain["input_tokens"], plain["output_tokens"]) == (3, 90, 6)
    assert plain["percentiles"]["input"] == {
        "mean": 30, "min": 10, "p50": 20, "p90": pytest.approx(52), "p99": pytest.approx(59.2), "max": 60,
    }  # fmt: skip
    assert plain["arrivals"]["requests_per_second"] == pytest.approx(2 / 3)
    assert plain["arrivals"]["gap_variation"] == pytest.approx(1 / 3)
    assert plain["prefix_ceiling"]["hit_blocks"] == 0, "ten common tokens fill no block of 16"
