"""The figures of the pages on SGLang and TensorRT-LLM."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvplan import plan
from kvplan.engines.sglang import fraction
from kvplan.units import GIB

SGLANG, TRTLLM = (Path(f"docs/engines/{name}.md").read_text() for name in ("sglang", "tensorrt-llm"))


def examples() -> list[Any]:
    found = []
    for engine, text in (("sglang", SGLANG), ("tensorrt-llm", TRTLLM)):
        for line in text.split("## Examples")[1].splitlines():
            cells = [c.strip() for c in line.strip("|").split("|")]
            if line.startswith("|") and re.search(r"\d,\d{3}", line):
                numbers = [int(n.replace(",", "")) for n in re.findall(r"\d+(?:,\d{3})+", " ".join(cells[1:]))]
                found.append(pytest.param(engine, cells[0], numbers, id=f"{engine}-{cells[0]}"))
    return found


@pytest.mark.parametrize(("engine", "model", "figures"), examples())
def test_figures(engine: str, model: str, figures: list[int]) -> None:
    made = plan(model, engine=engine, kv_cache_memory_bytes=40 * GIB, max_model_len=131072)
    assert made.capacity is not None
    assert made.allocation is not None
    cells = {(p.cells or 0) - 1 for p in made.allocation.pools}
    assert set(figures) <= {made.capacity.kv_tokens, made.capacity.num_blocks, *cells}


@pytest.mark.parametrize(
    ("row", "mib", "tps", "latent"),
    [
        ("H100 81,559 MiB, tp 1 / tp 8", 81559, (1, 8), False),
        ("the same, latent attention, tp 8", 81559, (8,), True),
        ("H200 143,771 MiB, tp 1", 143771, (1,), False),
        ("B200 183,359 MiB, tp 1", 183359, (1,), False),
        ("L40S 46,068 MiB, tp 1", 46068, (1,), False),
    ],
)
def test_shares(row: str, mib: int, tps: tuple[int, ...], latent: bool) -> None:
    (line,) = [text for text in SGLANG.splitlines() if text.startswith(f"| {row} |")]
    shown = [cell.strip() for cell in line.strip("|").split("|")[1:]]
    for version, cell in zip(("0.5.23", "0.5.6", "0.4.9"), shown, strict=True):
        made = []
        for tp in tps:
            chunk = fraction.chunk_default(mib, version)
            reserved = fraction.reserved_mib(
                mib, version=version, tp=tp, pp=1, chunk=chunk, running=None, attn_dp=1, latent=latent
            )
            made.append(f"{fraction.static_fraction(mib, reserved):g}")
        assert cell == " / ".join(made)
