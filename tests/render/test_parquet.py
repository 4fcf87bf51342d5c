"""Parquet, where pyarrow is there: the types and values of the columns, and gaps as nulls."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kvplan.cli.main import main

WORDS = (
    "sweep", "llama-3.1-8b", "--gpu", "h100-sxm", "--vary", "tp=1,3", "--vary", "concurrency=1..50", "--figure", "all",
    "-q",
)  # fmt: skip


def test_parquet_says_what_csv_says(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main([*WORDS, "-o", str(tmp_path / "grid.parquet")]) == 0
    assert main([*WORDS, "-o", str(tmp_path / "grid.csv")]) == 0
    table = parquet.read_table(tmp_path / "grid.parquet")
    with open(tmp_path / "grid.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert table.num_rows == len(rows) == 100
    types = {field.name: str(field.type) for field in table.schema}
    assert (types["concurrency"], types["capacity.num_blocks"]) == ("int64", "int64")
    assert (types["capacity.max_concurrency"], types["verdict.fits"], types["refused"]) == ("double", "bool", "string")
    for row, line in zip(table.to_pylist(), rows, strict=True):
        for name, value in row.items():
            shown = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            assert shown == line[name], name
