"""``kvplan formats``: how numbers are stored, in a cache and in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from kvplan.cli import output
from kvplan.cli.app import SETTINGS, Verb
from kvplan.errors import InputError, printable
from kvplan.spec.format_table import GGUF_FILES
from kvplan.spec.formats import Format, format_names, get_format

if TYPE_CHECKING:
    from kvplan.render.grid import Document

app = typer.Typer(**SETTINGS)

HEAD_DIM, HEADS = 128, 8
"""The shape at which bits per element are quoted: what scales and rounding add depends on it."""
_MATRIX = 4096
"""The same for weights: a square matrix of this size."""
_USES = ("cache", "weights")


@app.command(cls=Verb)
def formats(
    ctx: typer.Context,
    name: str | None = typer.Argument(None, metavar="[NAME]", help="only formats with this in their name or an alias"),
    use: str | None = typer.Option(None, "--use", metavar="USE", help="only formats for: cache or weights"),
) -> None:
    """The storage formats that --kv-cache-dtype and --weights take, with their aliases.

    Bits per element include scales: for a cache, of K and V at 8 heads of 128 elements; for weights, of
    a 4,096 x 4,096 matrix.
    """
    if use is not None and use not in _USES:
        raise InputError(f"{printable(use)!r} is neither cache nor weights", where="--use", hint="--use cache")
    rows = [get_format(known) for known in format_names(use)]
    if name is not None:
        key = name.lower()
        rows = [row for row in rows if any(key in known for known in (row.name, *row.aliases))] or [
            get_format(name, use=use)
        ]
    output.of(ctx).emit(
        lambda: _document(rows), {"schema": "kvplan.formats/1", "formats": [_payload(row) for row in rows]}
    )


def bits_per_element(fmt: Format) -> float:
    """Bits of one element at the quoted shape, scales included."""
    if fmt.use == "weights":
        return 8 * fmt.tensor_bytes(_MATRIX * _MATRIX, _MATRIX) / _MATRIX**2
    if HEAD_DIM * HEADS % fmt.block_elements:  # a whole row of one layout, never cut to heads
        return 8 * fmt.block_bytes / fmt.block_elements
    return fmt.mean_bits(HEADS, HEAD_DIM)


def _payload(fmt: Format) -> dict[str, Any]:
    return {
        "name": fmt.name,
        "aliases": list(fmt.aliases),
        "use": fmt.use,
        "bits_per_element": round(bits_per_element(fmt), 6),
        "block_elements": fmt.block_elements,
        "block_bytes": fmt.block_bytes,
        "v_block_elements": fmt.v_block[0] if fmt.v_block else None,
        "v_block_bytes": fmt.v_block[1] if fmt.v_block else None,
        "scale": fmt.scale,
        "scale_bytes": fmt.scale_bytes,
        "v_scale_bytes": fmt.v_scale_bytes,
        "tile": list(fmt.tile) if fmt.tile else None,
        "tile_bytes": fmt.tile_bytes,
        "row_scale_bytes": fmt.row_scale_bytes,
        "residual_tokens": fmt.residual_tokens,
        "mix": fmt.mix,
        "source": fmt.source,
    }


def _document(rows: list[Format]) -> Document:
    from kvplan.render.grid import Column, Grid

    columns = (
        Column("name"),
        Column("bits", right=True),
        Column("block"),
        Column("scales"),
        Column("use"),
        Column("aliases", wrap=True, optional=True),
        Column("source", wrap=True, optional=True),
    )
    cells = [
        (row.name, _bits(row), _block(row), _scales(row), row.use, ", ".join(row.aliases), row.source) for row in rows
    ]
    note = f"bits of one element, scales included: cache at head size {HEAD_DIM}, weights of {_MATRIX:,} x {_MATRIX:,}"
    if any(row.name in GGUF_FILES for row in rows):
        note += "; of a mix of types, its main one"
    return [Grid(columns, cells, note=note)]


def _bits(fmt: Format) -> str:
    return f"{bits_per_element(fmt):.3f}".rstrip("0").rstrip(".")


def _block(fmt: Format) -> str:
    if fmt.v_block:
        return f"K {fmt.block_elements} in {fmt.block_bytes} B, V {fmt.v_block[0]} in {fmt.v_block[1]} B"
    return f"{fmt.block_elements:,} in {fmt.block_bytes:,} B"


def _scales(fmt: Format) -> str:
    """Where scales live that are not inside the block."""
    found = {"token": "token", "token_head": "token, head", "tensor": "tensor"}.get(fmt.scale, "")
    if fmt.tile:
        found = f"{fmt.tile[0]} x {fmt.tile[1]}" if fmt.tile[0] < 1 << 40 else "row, column"
    elif fmt.row_scale_bytes:
        found = "row"
    if fmt.name in GGUF_FILES:
        found = "mix"
    return found or ("block" if fmt.block_elements > 1 else "none")
