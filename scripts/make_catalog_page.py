"""Write ``docs/catalog.md`` from the shipped models and accelerators.

With ``--check`` nothing is written, and the exit status is 1 where the page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from written import keep

from kvplan.catalog import gpu_ids, load_gpu, load_model, model_ids
from kvplan.spec.gpu import GpuSpec
from kvplan.spec.model import ModelSpec
from kvplan.units import GIB, human_count

TARGET = ROOT / "docs" / "catalog.md"
BF16 = 2
TOLERANCE = Fraction(1, 100)

INTRO = """# Catalog

Every model and accelerator that kvplan ships, written by `scripts/make_catalog_page.py` from
`models/` and `kvplan/data/gpus/`. `kvplan models show ID` and `kvplan gpus show ID` print one of them in full.
"""

MODELS_INTRO = """
## Models

- *Layers*: token mixers by kind; a window or a compression ratio stands in brackets. A layer with two mixers
  counts in both.
- *B/token*: bytes that one token adds to a bf16 cache over all layers while every window has room, indexer keys
  included, compressed entries at their mean; in brackets, what remains once the windows are full.
- *State*: bytes of one sequence that do not depend on its length, in bf16 (recurrent and convolution states,
  encoder entries).
- *Computed*, *published*: parameters from the spec, and as published; towers are in both, draft layers in neither.
- *Confidence*: `seen`, the model's own configuration was read; `derived`, from tables or defaults that the published
  total confirms; `recalled`, from memory only, which every plan that uses it says.
"""

NOTES_INTRO = """
### Parameter counts that differ by more than 1 %
"""

GPUS_INTRO = """
## Accelerators

- *Datasheet*: GB as the vendor writes them. *Driver*: the total that `nvidia-smi` or its like prints. *Torch*: the
  total that torch reports, which is what a process can hope for. A plan takes the last of the three that is known.
- *GB/s*: memory bandwidth of the datasheet.
- *Price*: on-demand USD an hour for one accelerator, and when it was read.
"""


def layers(model: ModelSpec) -> str:
    counts: dict[str, int] = {}
    for count, mixer in model.mixers():
        bounds = [getattr(mixer, name, None) for name in ("window", "ratio")]
        known = [f"{bound:,}" for bound in bounds if bound]
        label = f"{mixer.kind} ({' / '.join(known)})" if known else mixer.kind
        counts[label] = counts.get(label, 0) + count
    return " + ".join(f"{count} {label}" for label, count in counts.items()) or "none"


def token_bytes(model: ModelSpec) -> tuple[Fraction, Fraction]:
    """Bytes per token in bf16: (while windows have room, once they are full)."""
    short = full = Fraction(0)
    for count, mixer in model.mixers():
        for stream in mixer.streams():
            if stream.fixed_entries is None:
                size = Fraction(count * stream.heads * stream.head_dim * BF16, stream.ratio)
                short += size
                full += size if stream.window is None else 0
    return short, full


def state_bytes(model: ModelSpec) -> int:
    total = 0
    for count, mixer in model.mixers():
        total += count * sum(state.elements for state in mixer.states()) * BF16
        total += count * sum(s.heads * s.head_dim * (s.fixed_entries or 0) for s in mixer.streams()) * BF16
    return total


def number(value: Fraction | int) -> str:
    return f"{int(value):,}" if value == int(value) else f"{float(value):,.1f}"


def gap(model: ModelSpec) -> Fraction | None:
    """Computed over published parameters, less 1."""
    if not model.published_parameters:
        return None
    return Fraction(model.parameters - model.published_parameters, model.published_parameters)


def percent(off: Fraction | None) -> str:
    if off is None:
        return "-"
    return f"{float(off):+.2%}" if abs(off) >= Fraction(1, 20_000) else "0" if off == 0 else "< 0.01%"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table(head: tuple[str, ...], align: str, rows: Sequence[tuple[str, ...]]) -> str:
    rule = ["---:" if side == "r" else "---" for side in align]
    return "\n".join("| " + " | ".join(cell(c) for c in row) + " |" for row in [head, tuple(rule), *rows]) + "\n"


def model_row(model: ModelSpec) -> tuple[str, ...]:
    short, full = token_bytes(model)
    off = gap(model)
    published = human_count(model.published_parameters) if model.published_parameters else "-"
    return (
        f"`{model.id}`",
        f"`{model.repo}`" if model.repo else "-",
        layers(model),
        number(short) if short == full else f"{number(short)} ({number(full)})",
        number(state_bytes(model)) if state_bytes(model) else "-",
        human_count(model.parameters),
        published,
        percent(off),
        model.confidence,
    )


def models_part() -> str:
    models = [load_model(name) for name in model_ids()]
    head = ("id", "repo", "layers", "B/token", "state B", "computed", "published", "gap", "confidence")
    parts = [f"{len(models)} models.\n", table(head, "lllrrrrrl", [model_row(m) for m in models]), NOTES_INTRO]
    noted = []
    for model in models:
        off = gap(model)
        if model.parameters_note or (off is not None and abs(off) > TOLERANCE):
            noted.append((f"`{model.id}`", percent(off), model.parameters_note or "no reason is known"))
    parts.append(table(("id", "gap", "reason"), "lrl", noted) if noted else "None.\n")
    return "\n".join(parts)


def gib(value: int | None) -> str:
    return "-" if value is None else f"{value / GIB:.2f} GiB"


def price(gpu: GpuSpec) -> str:
    if gpu.price is None:
        return "-"
    low, high = gpu.price.low_usd_per_hour, gpu.price.high_usd_per_hour
    return (f"{low:g}" if low == high else f"{low:g} to {high:g}") + f" ({gpu.price.date})"


def gpus_part() -> str:
    gpus = [load_gpu(name) for name in gpu_ids()]
    head = ("id", "name", "datasheet", "driver", "torch", "GB/s", "USD/h", "confidence")
    rows = [
        (
            f"`{g.id}`", g.name, f"{g.datasheet_gb:g} GB", gib(g.nvml_total_bytes), gib(g.torch_total_bytes),
            f"{(g.bandwidth_bytes_per_second or 0) / 1e9:,.10g}", price(g), g.confidence,
        )
        for g in gpus
    ]  # fmt: skip
    return f"{len(gpus)} accelerators.\n\n" + table(head, "llrrrrll", rows)


def render() -> str:
    return "\n".join([INTRO + MODELS_INTRO, models_part() + GPUS_INTRO, gpus_part()])


def main(argv: Sequence[str] | None = None) -> int:
    return keep(TARGET, render, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
