"""The formula of a cache as a document."""

from __future__ import annotations

from typing import Any

from kvplan.render.grid import Column, Document, Grid, KeyValues, Notes, Part, Title
from kvplan.units import gib, human_bytes

Plain = dict[str, Any]


def explain_report(plain: Plain) -> Document:
    """The document of one explanation (the object that ``explain --json`` prints)."""
    formula = [("bytes per token", f"= {plain['formula']}"), ("", f"= {plain['worked']}")]
    parts: list[Part] = [
        Title(f"{plain['model']}: {human_bytes(plain['bytes_per_token'])} of KV cache per token"),
        KeyValues(formula, title="Formula"),
    ]
    if plain["streams"]:
        parts.append(_streams(plain))
    if plain["states"]:
        parts.append(_states(plain))
    parts.append(_totals(plain))
    parts.append(_comparisons(plain))
    if plain["no_cache"]:
        parts.append(_no_cache(plain["no_cache"]))
    sources = [t["source"] for t in (*plain["streams"], *plain["states"])]
    lines = [*dict.fromkeys(s for s in sources if s)]
    if plain["source"]:
        lines.append(f"shape of {plain['model']}: {plain['source']}")
    parts.append(Notes(lines, title="Sources"))
    return parts


def _product(factors: list[Plain]) -> tuple[str, str]:
    """The product in symbols and in numbers."""
    symbols = " x ".join(f["symbol"] for f in factors)
    numbers = " x ".join(f"{f['value']:,}" for f in factors)
    return symbols, numbers


def _streams(plain: Plain) -> Grid:
    rows = []
    for term in plain["streams"]:
        symbols, numbers = _product(term["factors"])
        if term["tokens_per_entry"] > 1:
            symbols, numbers = f"{symbols} / tokens per entry", f"{numbers} / {term['tokens_per_entry']}"
        limit = (
            "always"
            if term["until_tokens"] is None
            else "encoder only"
            if term["until_tokens"] == 0
            else f"to {term['until_tokens']:,} tokens"
        )
        rows.append((term["kind"], term["stream"], numbers, f"{term['bytes_per_token']:,}", limit, symbols))
    columns = [
        Column("kind"), Column("part"), Column("numbers", wrap=True), Column("B per token", right=True),
        Column("grows"), Column("symbols", wrap=True),
    ]  # fmt: skip
    total = f"sum: {plain['bytes_per_token']:,} B per token while the request is short"
    return Grid(columns, rows, title="Per token", note=total)


def _states(plain: Plain) -> Grid:
    rows = []
    for term in plain["states"]:
        symbols, numbers = _product(term["factors"])
        rows.append((term["kind"], term["state"], numbers, f"{term['bytes_per_sequence']:,}", symbols))
    columns = [
        Column("kind"),
        Column("state"),
        Column("numbers", wrap=True),
        Column("B per request", right=True),
        Column("symbols", wrap=True),
    ]
    return Grid(columns, rows, title="Fixed per request")


def _totals(plain: Plain) -> KeyValues:
    rows = [
        (
            f"request of {plain['max_model_len']:,} tokens",
            gib(plain["bytes_per_sequence"]),
            f"{plain['bytes_per_sequence']:,} B",
        )
    ]
    rows.append(("weights", gib(plain["weights_bytes"]), "unsharded"))
    if plain["exceeds_weights_at_tokens"]:
        rows.append(("cache outweighs them", f"from {plain['exceeds_weights_at_tokens']:,} tokens", "in the cache"))
    return KeyValues(rows, title="Together")


def _width(growth: str) -> str:
    return "with n tokens of width d" + (", windows of w" if " w " in growth else "")


def _no_cache(saved: Plain) -> Grid:
    """The generation with the cache and without, side by side."""
    cached, anew = saved["with_cache"], saved["without"]
    rows = [
        (name, f"{cached[key]:.3g}", f"{anew[key]:.3g}", f"{anew[key] / cached[key]:,.3g} x" if cached[key] else "-")
        for name, key in (
            ("FLOPs of matrices", "matrix_flops"), ("FLOPs of attention", "attention_flops"),
            ("bytes read or written", "bytes_read"),
        )
    ]  # fmt: skip
    rows.append((saved["growth_with"], _width(saved["growth_without"]), saved["growth_without"].partition(": ")[2], ""))
    columns = [
        Column(f"{saved['output_tokens']:,} steps after a prompt of {saved['prompt_tokens']:,}"),
        Column("with the cache", right=True),
        Column("without", right=True),
        Column("ratio", right=True),
    ]
    note = (
        f"batch 1; the prompt itself takes {saved['prefill_flops']:.3g} FLOPs either way, and with it the cache "
        f"saves {saved['flops_ratio']:,.3g} x the work for {human_bytes(saved['cache_bytes'])} at the end; "
        f"the last step alone {saved['last_step_flops_ratio']:,.4g} x"
    )
    return Grid(columns, rows, title="Without a cache", note=note)


def _comparisons(plain: Plain) -> Grid:
    rows = [
        (c["name"], f"{c['bytes_per_token']:,}", gib(c["bytes_per_sequence"])[:-4], f"{c['ratio']:.3g} x")
        for c in plain["comparisons"]
    ]
    columns = [
        Column("cache"),
        Column("B per token", right=True),
        Column("GiB per request", right=True),
        Column("ratio", right=True),
    ]
    return Grid(columns, rows, title=f"Compared, at {plain['max_model_len']:,} tokens")
