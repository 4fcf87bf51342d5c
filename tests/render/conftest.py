"""One document with every part, hostile names included, for every writer."""

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
