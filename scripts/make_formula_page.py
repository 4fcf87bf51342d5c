"""Write ``docs/formula.md``: what each cache kind caches, with the numbers of a model that has it.

With ``--check`` nothing is written, and the exit status is 1 where the page is out of date.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from written import keep

from kvplan.cache import KINDS, kind_class
from kvplan.catalog import load_model, model_ids
from kvplan.planning.explain import Explanation, explain
from kvplan.spec.model import ModelSpec

TARGET = ROOT / "docs" / "formula.md"

INTRO = """# The formula

Written by `scripts/make_formula_page.py` from the classes in `kvplan/cache/` and the models of the catalog;
`kvplan explain MODEL` prints the same for one model.

For one sequence and one layer, with `heads` KV heads, `head_dim` elements a head and a row format that takes
`row_bytes(elements)` bytes, scales included:

```
growing part  = sum over streams of  entries(tokens) x row_bytes(heads x head_dim)
entries       = min(tokens / tokens per entry, window)
fixed part    = sum over states of   channels x columns x bytes per element
```

and over the model, the sum over its layers. With K and V of one shape in every layer, no window and plain elements
this is `2 x layers x kv_heads x head_dim x tokens x bytes_per_element`. Nothing in the code computes bytes of a cache
in any other way (`kvplan/cache/bytes.py`); engines then round to their pages.

A format's row counts its scales: fp8 with one scale a tensor takes 1 byte an element; nvfp4 takes 4 bits and an 8-bit
scale for each 16 elements, 4.5 bits; llama.cpp's q8_0 takes 34 bytes for 32 elements. `kvplan formats` lists them.

On one rank of tensor parallelism a layer holds `max(1, kv_heads / tp)` heads: beyond one head a rank the cache is
replicated, not divided. A latent row has no heads: every rank holds all of it.

## Kinds
"""


def smallest_with(kind: str, models: Sequence[ModelSpec]) -> ModelSpec | None:
    """The model of fewest layers of which `kind` mixes most of the layers, or else that has any of it."""
    having = [(m, sum(n for n, mixer in m.mixers() if mixer.kind == kind)) for m in models]
    having = [(m, n) for m, n in having if n]
    return min(having, key=lambda e: (-e[1] / e[0].num_layers, e[0].num_layers, e[0].id))[0] if having else None


def about(kind: str) -> str:
    """The docstring of the kind's class: what is kept, and the sources."""
    text = inspect.cleandoc(kind_class(kind).__doc__ or "").replace("``", "`")
    return re.sub(r"\n(?!\n)", " ", text).replace("\n ", "\n\n").strip()


def example(kind: str, model: ModelSpec, explained: Explanation) -> list[str]:
    """The rows of `kind` in a model's explanation."""
    rows = []
    for term in explained.streams:
        if term.kind == kind:
            product = " x ".join(str(f.value) for f in term.factors)
            over = f" / {term.tokens_per_entry}" if term.tokens_per_entry > 1 else ""
            grows = (
                "always" if term.until_tokens is None
                else f"to {term.until_tokens:,} tokens" if term.until_tokens
                else f"never: {term.window:,} entries"
            )  # fmt: skip
            size = f"{term.bytes_per_token:,} B a token" if term.until_tokens != 0 else "fixed"
            symbols = " x ".join(f.symbol for f in term.factors) + (" / tokens per entry" if over else "")
            rows.append(f"| {term.stream} | {symbols} | {product}{over} | {size} | {grows} |")
    for state in explained.states:
        if state.kind == kind:
            product = " x ".join(str(f.value) for f in state.factors)
            symbols = " x ".join(f.symbol for f in state.factors)
            rows.append(
                f"| {state.state} state | {symbols} | {product} | {state.bytes_per_sequence:,} B a sequence | never |"
            )
    if not rows:
        return ["Holds nothing of its own."]
    head = [f"In `{model.id}`:", "", "| part | symbols | numbers | bytes | grows |", "| --- | --- | --- | --- | --- |"]
    return head + rows


def page() -> str:
    models = [load_model(name) for name in model_ids()]
    parts = [INTRO]
    for kind in KINDS:
        parts.append(f"\n### {kind}\n\n{about(kind)}\n")
        model = smallest_with(kind, models)
        if model is not None:
            shown = explain(model, {"max_model_len": model.max_position_embeddings or 32768})
            parts.append("\n" + "\n".join(example(kind, model, shown)) + "\n")
    return "".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    return keep(TARGET, page, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
