"""Variants side by side for people: bars beside the bytes, and the ratio to the first."""

from __future__ import annotations

from typing import Any

from kvplan.render.grid import Column, Document, Grid, Title
from kvplan.render.sweep_table import heading, shown

BLOCKS = "▏▎▍▌▋▊▉█"
"""An eighth of a character to a whole one."""
_CELLS = 8
"""Characters of the longest bar."""
_BARRED = {"kv.bytes_per_1k_tokens": "per 1k tokens", "kv.bytes_per_request": "per request"}
_HEADS = {
    "kv.bytes_per_request_per_gpu": "reserved per GPU",
    "capacity.requests": "requests at once",
    "capacity.max_concurrency": "at full length",
    "decode.tokens_per_second_per_request": "tokens/s each",
}
_LAST = ("kv.bytes_per_request_per_gpu", "decode.tokens_per_second_per_request", "capacity.max_concurrency")
"""Figures that a narrow terminal leaves out."""


def bar(value: float | None, most: float, unicode: bool) -> str:
    """A bar of up to `_CELLS` characters; anything above zero is seen."""
    if not value or most <= 0:
        return ""
    if not unicode:
        return "#" * max(1, round(value / most * _CELLS))
    whole, rest = divmod(max(1, round(value / most * _CELLS * 8)), 8)
    return BLOCKS[-1] * whole + (BLOCKS[rest - 1] if rest else "")


def compare_report(
    payload: dict[str, Any],
    title: str,
    *,
    unicode: bool = True,
    bars: bool = True,
    request: str = "prompt and output tokens",
) -> Document:
    """A row a variant (the object that ``compare --json`` prints).

    Args:
        bars: put a bar beside the bytes.
        request: how long one request is.
    """
    rows, axes = payload["rows"], list(payload["axes"])
    figures = [n for n in payload["figures"] if any(r[n] is not None for r in rows)]
    barred = [n for n in figures if n in _BARRED]
    columns = [Column(heading(n), right=all(not isinstance(r[n], str) for r in rows)) for n in axes]
    for name in barred:
        columns += [Column(_BARRED[name], right=True), *([Column("")] if bars else [])]
    columns.append(Column("ratio", right=True))
    others = [n for n in figures if n not in _BARRED]
    columns += [Column(_HEADS.get(n) or heading(n), right=True, optional=n in _LAST) for n in others]
    refused = any(r["refused"] for r in rows)
    most = {n: max(r[n] or 0 for r in rows) for n in barred}
    lines = []
    for row in rows:
        line = [shown(n, row[n]) for n in axes]
        for name in barred:
            line += [shown(name, row[name]), *([bar(row[name], most[name], unicode)] if bars else [])]
        line.append("-" if row["ratio"] is None else f"{row['ratio']:.3g} x")
        line += [shown(n, row[n]) for n in others]
        lines.append([*line, row["refused"] or ""] if refused else line)
    if refused:
        columns.append(Column("refused", wrap=True))
    note = f"per request, requests at once: of {request}; at full length: of max_model_len; "
    note += "cache bytes over all layers, unsharded; ratio: those of a request to the first row's"
    return [Title(title), Grid(columns, lines, note=note)]
