"""The pictures of an explanation: what a token costs by part, the cache against context, and against other caches."""

from __future__ import annotations

from typing import Any

from kvplan.render.plan_pictures import BINARY
from kvplan.render.svg.parts import Axis, Bars, Chart, Mark, Picture, Piece, Series, Stack
from kvplan.units import gib, human_bytes

Plain = dict[str, Any]


def explain_pictures(plain: Plain, curves: Plain) -> list[Picture]:
    """All of them.

    Args:
        plain: the object that ``explain --json`` prints.
        curves: `kvplan.planning.curves.Curves` of the same model, on no GPU.
    """
    found: list[Picture] = []
    terms = [t for t in plain["streams"] if t["bytes_per_token"]]
    if len(terms) > 1:
        pieces = [Piece(f"{t['kind']} {t['stream']}", t["bytes_per_token"]) for t in terms]
        whole = f"{human_bytes(plain['bytes_per_token'])} over all layers"
        found.append(Bars("Cache of one token", [Stack("", pieces, whole)], "bytes"))
    found.append(context_chart(plain, curves))
    stacks = [
        Stack(f"{c['name']} ({c['ratio']:.3g} x)", [Piece("", c["bytes_per_sequence"], gib(c["bytes_per_sequence"]))])
        for c in plain["comparisons"]
    ]
    if stacks:
        found.append(Bars(f"Cache of a request of {plain['max_model_len']:,} tokens, compared", stacks, "bytes"))
    return found


def context_chart(plain: Plain, curves: Plain) -> Chart:
    """Cache of one request against its length, with the lengths at which windows fill and where it outweighs."""
    lengths = curves["lengths"]
    marks = [Mark("x", k["tokens"], f"{k['layers']} layers' window full: {k['tokens']:,}") for k in curves["knees"]]
    if lengths and plain["weights_bytes"] < 4 * lengths[-1]["bytes"]:
        marks.append(Mark("y", plain["weights_bytes"], f"the weights: {gib(plain['weights_bytes'])}"))
    points = [(at["tokens"], at["bytes"]) for at in lengths]
    x = Axis(f"tokens of a request {BINARY}", "tokens", "log2", high=plain["max_model_len"])
    return Chart("KV cache against context", x, Axis("bytes over all layers", "bytes", "log2"),
                 [Series("", points)], marks)  # fmt: skip
