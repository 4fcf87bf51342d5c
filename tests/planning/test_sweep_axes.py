"""What ``--vary`` reads: lists, ranges, steps and factors by the rules of the flag, and grids that make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.cli.flags import PLAN
from kvplan.cli.sweep import SweepVerb
from kvplan.errors import InputError, UnknownNameError
from kvplan.planning.sweep_axes import read_axes


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("max-model-len=1K..8K*2", [1024, 2048, 4096, 8192]),
        ("max_model_len=1000..10k*1.5", [1000, 1500, 2250, 3375, 5062, 7593]),
        ("concurrency=1..5", [1, 2, 3, 4, 5]),
        ("concurrency=1..10:4", [1, 5, 9]),
        ("concurrency=1,1..3,2", [1, 2, 3]),
        ("tp=1,2", [1, 2]),
        ("--max-model-len=-1,8K", [-1, 8192]),
        ("gpu-memory-utilization=0.5..0.9:0.1", [0.5, 0.6, 0.7, 0.8, 0.9]),
        ("gpu-memory=16GiB..32GiB:8GiB", [16 * 2**30, 24 * 2**30, 32 * 2**30]),
        ("enforce-eager=true,false", [True, None]),
        ("no-enable-prefix-caching=on,off", [False, None]),
        ("kv-cache-dtype=default;q8_0,q4_0", [None, "q8_0,q4_0"]),
        ("attention=own,mqa", ["own", "mqa"]),
        ("model=a,b", ["a", "b"]),
    ],
)  # fmt: skip
def test_values_are_read_by_the_rules_of_their_flag(text: str, values: list[Any]) -> None:
    (axis,) = read_axes([text], PLAN, {})
    assert list(axis.values) == values


def test_short_names_and_settings_are_the_same_axis() -> None:
    for name in ("tp", "tensor-parallel-size", "tensor_parallel_size"):
        assert read_axes([f"{name}=2"], PLAN, {})[0].setting == "tensor_parallel_size"
    assert read_axes(["ctk=f16"], PLAN, {})[0].setting == read_axes(["cache-type-k=f16"], PLAN, {})[0].setting


@pytest.mark.parametrize(
    ("texts", "given_", "message", "hint"),
    [
        (["concurency=1"], {}, "unknown flag to vary 'concurency'", "concurrency"),
        (["assume=x"], {}, "unknown flag to vary", ""),
        (["concurrency"], {}, "has no values", "concurrency=1,8,64"),
        (["concurrency="], {}, "an empty value", "=V1,V2"),
        (["concurrency=1,,2"], {}, "an empty value", ""),
        (["concurrency=1,024"], {}, "'024' looks like the end of a number", "1024, not 1,024"),
        (["concurrency=0"], {}, "0 is too small", "at least 1"),
        (["concurrency=x"], {}, "'x' is not a whole number", ""),
        (["concurrency=9..1"], {}, "runs backwards", "1..9"),
        (["concurrency=1..9:0"], {}, "0 is too small", ""),
        (["concurrency=1..9*1"], {}, "is no factor", "*2"),
        (["max-model-len=-1..9"], {}, "cannot start at -1", ""),
        (["output-tokens=0..9*2"], {}, "cannot start at 0", ""),
        (["gpu-memory-utilization=0.1..0.9"], {}, "needs its step", ":0.05"),
        (["enforce-eager=maybe"], {}, "neither true nor false", ""),
        (["attention=gqa8"], {}, "unknown attention", "own"),
        (["tp=1", "tensor-parallel-size=2"], {}, "varied twice", "one list"),
        (["tp=1"], {"tensor_parallel_size": 2}, "fixed by --tensor-parallel-size too", "leave out"),
        (["concurrency=1..1000000000000"], {}, "1,000,000,000,000 values", "at most"),
        (["concurrency=1..1M", "prompt-tokens=1..1M"], {}, "'1M' is not a whole number", ""),
        (["concurrency=1..1000000", "prompt-tokens=1..1m"], {}, "1,000,000,000,000 points", "at most"),
    ],
)
def test_grids_that_make_no_sense(texts: list[str], given_: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises((InputError, UnknownNameError)) as caught:
        read_axes(texts, PLAN, given_)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert str(caught.value).startswith("--vary")


def test_amounts_are_varied_by_steps_and_factors() -> None:
    def values(text: str) -> list[Any]:
        return list(read_axes([text], SweepVerb.flags, {})[0].values)

    assert values("request-rate=0.5..2:0.5") == [0.5, 1.0, 1.5, 2.0]
    assert values("request-rate=1..8*2") == [1.0, 2.0, 4.0, 8.0]
    assert values("ttft=300ms,1s") == [0.3, 1.0]
    for text in ("tpot=0.1..0.3", "request-rate=1..8*1", "request-rate=0.001..1000000:0.0001"):
        with pytest.raises(InputError):
            values(text)
