"""One document with every part, and one picture of every kind, hostile names included, for every writer."""

from __future__ import annotations

import pytest

from kvplan.render.grid import (
    Bar,
    Column,
    Document,
    Grid,
    KeyValues,
    Notes,
    Segment,
    Title,
    Warnings,
)
from kvplan.render.svg import Axis, Bars, Chart, HeatMap, Mark, Picture, Piece, Series, Spot, Stack

GIB = 2**30

FIGURES = ("327,680 B", "320 KiB", "33.00 GiB", "35.00 GiB", "0.50 GiB", "70.6 B", "131,072", "262,144")
"""Figures of the document below; no writer may lose one."""


@pytest.fixture
def document() -> Document:
    return [
        Title("llama-3.1-70b", "4 GPUs, some engine"),
        KeyValues([("per token", "320 KiB", "327,680 B, unsharded"), ("requests", "12")], title="KV cache"),
        KeyValues([("blocks", "28,131"), ("tokens", "450,096")], title="Capacity", right=True),
        Bar(
            [
                Segment("weights", 33 * GIB, "33.00 GiB"),
                Segment("CUDA graphs", GIB // 2, "0.50 GiB"),
                Segment("KV cache", 35 * GIB, "35.00 GiB"),
                Segment("unused", 11 * GIB, "11.00 GiB", spare=True),
            ],
            79 * GIB + GIB // 2,
            "79.50 GiB",
            title="Memory",
        ),
        Grid(
            (
                Column("id"),
                Column("parameters", right=True),
                Column("context", right=True),
                Column("source", wrap=True),
                Column("repository", optional=True),
            ),
            [
                (
                    "llama-3.1-70b",
                    "70.6 B",
                    "131,072",
                    "seen in a file that somebody published",
                    "some-org/" + "x" * 40,
                ),
                ("evil\x1b[31m|<b>", "8 B", "262,144", "tab\there, line\nthere, 漢字 and \u202e", "o/r"),
            ],
            title="Models",
            note="context in tokens",
        ),
        Notes(["a remark", "another remark that is longer than eighty columns " + "and goes on " * 5], title="Notes"),
        Warnings(["the context is over the maximum"]),
    ]


EVIL = "evil\x1b[31m<script>\"&'\u202e"

CACHE = Chart(
    f"Cache {EVIL}",
    Axis("tokens", "tokens", "log2"),
    Axis("bytes", "bytes", "log2"),
    [
        Series("bf16", [(2.0**i, 2.0 ** (i + 17)) for i in range(8, 18)]),
        Series(EVIL, [(2.0**i, 2.0 ** (i + 16) if i != 12 else None) for i in range(8, 18)]),
    ],
    [
        Mark("y", 54 * GIB, "the pool: 54 GiB", limit=True),
        Mark("x", 4096, "window full: 4,096"),
        Mark("x", 99_000, EVIL),
    ],
    [Spot(32768.0, 2.0**32, "this one: 4 GiB")],
    note="unsharded",
)
TIMELINE = Chart(
    "Timeline",
    Axis("time", "seconds"),
    Axis("blocks", "count"),
    [
        Series("used", [(i * 1.5, (i * 37) % 101 * 300.0) for i in range(60)], "area"),
        Series("waiting", [(i * 1.5, (i * 13) % 50 * 100.0) for i in range(60)], "step"),
    ],
)
PARETO = Chart(
    "Cost against latency",
    Axis("seconds a token", "seconds", "log10"),
    Axis("cost", "usd", "log10"),
    [Series("options", [(0.005, 9.0), (0.01, 4.0), (0.03, 1.2)], "dots", names=["8 x h200", "4 x h100", EVIL])],
)
MEMORY = Bars(
    "Memory",
    [
        Stack("rank 0", [Piece("weights", 15 * GIB), Piece("cache", 55 * GIB), Piece("unused", 7 * GIB, spare=True)]),
        Stack(EVIL, [Piece("weights", 85 * GIB, "85 GiB"), Piece("cache", 0)]),
    ],
    "bytes",
    80 * GIB,
    "the device: 80 GiB",
)
PLAIN_BARS = Bars("Per request", [Stack(name, [Piece("", size)]) for name, size in (("a", 3.0), ("b", 0.25))])
HEAT = HeatMap(
    "requests", "tp", "length", ["1", "2", EVIL], ["1K", "2K"], [["1", "2"], ["3", "-"], ["5", "6"]],
    [[1.0, 2.0], [3.0, None], [5.0, 6.0]], note="1 refused",
)  # fmt: skip
PICTURES: dict[str, Picture] = {
    "cache": CACHE, "timeline": TIMELINE, "pareto": PARETO, "memory": MEMORY, "bars": PLAIN_BARS, "heat": HEAT,
}  # fmt: skip


@pytest.fixture
def pictures() -> dict[str, Picture]:
    return PICTURES


@pytest.fixture(params=list(PICTURES))
def picture(request: pytest.FixtureRequest) -> Picture:
    return PICTURES[request.param]


@pytest.fixture
def evil() -> str:
    """A name that wants to be markup and to move the cursor."""
    return EVIL


@pytest.fixture
def figures() -> tuple[str, ...]:
    return FIGURES
