"""The caches of local engines in the report that people read."""

from __future__ import annotations

from kvplan import plan
from kvplan.render.allocation import allocation_part
from kvplan.render.report import plan_report


def test_every_cache_has_a_line_and_they_add_up() -> None:
    made = plan("gemma-3-4b", engine="llama.cpp", gpu="rtx-4090", ctx_size=32768, parallel=1).to_dict()
    grid = allocation_part(made)
    assert [row[0] for row in grid.rows] == ["full", "sliding", "together"]
    # llama.cpp prints 640 + 174 MiB for these settings
    assert grid.rows[0][1:3] == ["32,768", "320 MiB"]
    assert grid.rows[1][4] == "174 MiB"
    assert grid.rows[-1][-1] == f"{814 << 20:,}"
    assert "compute buffer" in grid.note


def test_states_stand_beside_tokens_with_their_slots() -> None:
    made = plan("falcon-h1-7b", engine="llama.cpp", gpu="h100-sxm", ctx_size=8192, parallel=4).to_dict()
    rows = {row[0]: row for row in allocation_part(made).rows}
    assert rows["recurrent (states)"][1] == "4 slots"
    assert rows["recurrent (states)"][4] == "535.22 MiB"


def test_engines_that_fill_their_budget_have_no_such_table() -> None:
    titles = [getattr(part, "title", "") for part in plan_report(plan("qwen3-8b", gpu="h100-sxm").to_dict())]
    assert not any("lays them out" in title for title in titles)
    titles = [
        getattr(part, "title", "") for part in plan_report(plan("qwen3-8b", gpu="h100-sxm", engine="mlx").to_dict())
    ]
    assert any("lays them out" in title for title in titles)
