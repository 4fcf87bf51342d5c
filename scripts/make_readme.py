"""Write the figures of README.md that other pages and the catalog own: the accuracy table, counts, the peers' table.

With ``--check`` nothing is written, and the exit status is 1 where README.md is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from replay_receipts import Replay, receipts, replay
from written import keep

from kvplan.catalog import gpu_ids, model_ids
from kvplan.probe.receipt import quantile

TARGET = ROOT / "README.md"
CASES = ROOT / "tests" / "data" / "cases"


def row(page: str, label: str) -> list[str]:
    """The cells behind the row of a page's table that begins with `label`.

    Raises:
        SystemExit: the page has no such row.
    """
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] == label:
            return cells[1:]
    raise SystemExit(f"docs/{page} has no row '{label}': adapt scripts/make_readme.py")


def count(*names: str) -> int:
    """Recorded cases in the files of `names`."""
    texts = ((CASES / f"{name}.jsonl").read_text(encoding="utf-8") for name in names)
    return sum(1 for text in texts for line in text.splitlines() if line.strip())


def other_models() -> list[Replay]:
    """Receipts of one GPU beside those of llama-3.1-8b."""
    return [replay(receipt) for name, receipt in receipts().items() if not name.startswith("h200-")]


def accuracy() -> str:
    """The table of `How far to trust it`."""
    logs, gib, _, bounds, _ = row("accuracy.md", "everything stated")
    half, most, worst = gib.split(" / ")
    points, off, _ = row("speed.md", "NVIDIA, each chip left out in turn")
    typical, nine, largest = off.split(" / ")
    prompts, late, _ = row("speed.md", "nvidia")
    step = row("validation/h200-decode.md", "median miss before calibration")[0]
    others = sorted((100 * quantile(found.stated, 0.5), found.model) for found in other_models())
    allocated = 1 + len(list((ROOT / "docs" / "validation" / "memory").glob("mem-*.json")))  # and that of the whole run
    return "\n".join(
        [
            "| question | against | error |",
            "| --- | --- | --- |",
            f"| bytes to blocks, tokens, requests | vLLM's own planner code, {count('vllm')} cases | none |",
            "| caches laid out | llama.cpp, transformers, MLX-LM, ExLlamaV3, "
            f"{count('llama_cpp', 'transformers', 'mlx_lm', 'exllamav3')} cases | none within what they print "
            "(two recordings leave out state that kvplan counts) |",
            f"| caches allocated | one H200, {allocated} models, 4 formats, to the byte and to the last block | none |",
            f"| bytes vLLM leaves for the cache | {logs} public start-up logs, everything stated | median {half} GiB, "
            f"nine in ten under {most} GiB, worst {worst} GiB; {bounds} within the bounds |",
            f"| one decode step | llama.cpp on NVIDIA cards, {points} points, each chip left out | "
            f"median {typical} %, nine in ten under {nine} %, worst {largest} % |",
            "| one decode step | whole steps on one H200 that memory binds, stated constants | "
            f"llama-3.1-8b: median {step} %; {len(others)} other models: "
            f"half under {quantile([off for off, _ in others], 0.5):.1f} %, worst {others[-1][1]}, "
            f"{others[-1][0]:.1f} % |",
            f"| one prompt | llama.cpp on NVIDIA cards, {prompts} points | median {late.split(' / ')[0]} %, "
            f"nine in ten under {late.split(' / ')[1]} % |",
        ]
    )


def peers() -> str:
    """The table of docs/peers.md, by tool and shortened to the figures."""
    text = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    head = next(r for r in rows if r[0] == "model")
    models = rows[rows.index(head) + 2 :]
    models = models[: next((i for i, r in enumerate(models) if len(r) != len(head)), len(models))]
    date = re.search(r"Run on (\d{4}-\d\d-\d\d)", text)
    if date is None:
        raise SystemExit("docs/peers.md has no date: run benchmarks/peers.py --write")
    lines = [f"GiB of one request of 32,768 tokens in 16 bits, run on {date[1]}:", ""]
    lines += ["| | " + " | ".join(r[0] for r in models) + " |", "| --- " * (len(models) + 1) + "|"]
    for column in range(1, len(head)):
        name = {"right, GiB": "**right**"}.get(head[column], head[column])
        lines.append(f"| {name} | " + " | ".join(r[column] for r in models) + " |")
    return "\n".join(lines)


def refreshed(text: str) -> str:
    """README.md with every generated part as it is now."""
    for name, part in (("accuracy", accuracy()), ("peers", peers())):
        start, end = f"<!-- {name}: written by scripts/make_readme.py -->", f"<!-- end of {name} -->"
        if start not in text or end not in text:
            raise SystemExit(f"README.md has no part {start}")
        text = f"{text.split(start)[0]}{start}\n{part}\n{end}{text.split(end)[1]}"
    text = re.sub(r"\b\d+ models\b(?=, each)", f"{len(model_ids())} models", text)
    return re.sub(r"\b\d+ accelerators\b", f"{len(gpu_ids())} accelerators", text)


def main(argv: Sequence[str] | None = None) -> int:
    return keep(TARGET, lambda: refreshed(TARGET.read_text(encoding="utf-8")), __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
