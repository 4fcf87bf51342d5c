"""Storage formats applied to numbers: round trips, and the error that theory expects of each on normal data."""

from __future__ import annotations

from math import erf, inf, sqrt
from typing import TYPE_CHECKING, Any

from kvplan.probe import extras

if TYPE_CHECKING:
    from kvplan.spec.formats import Format

_FLOATS = {"bf16": (7, -126), "fp16": (10, -14), "fp8_e4m3": (3, -6), "fp8_e5m2": (2, -14), "fp32": (23, -126)}
"""Bits of the mantissa and exponent of the smallest normal number. Source: IEEE 754; arXiv 2209.05433, table 1."""
_TORCH = {
    "bf16": "bfloat16", "fp16": "float16", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "fp32": "float32",
}  # fmt: skip


def integer_grid(fmt: Format, heads: int, head_dim: int) -> tuple[int, int] | None:
    """(bits, elements that share a scale) of a symmetric integer format; None: another kind of format."""
    name = fmt.name
    if name.startswith(("int8_per_token", "int4_per_token")):
        bits = 8 * fmt.block_bytes // fmt.block_elements
        return bits, head_dim if fmt.scale == "token_head" else heads * head_dim
    if name in ("q8_0", "q4_0") or (name.startswith(("int8_g", "int4_g")) and "_zp" not in name):
        return 8 * (fmt.block_bytes - 2) // fmt.block_elements, fmt.block_elements
    return None


def round_trip(fmt: Format, rows: Any) -> Any:
    """`rows` as they come back out of a cache in this format; None where the format is not modelled here.

    Args:
        rows: ``[..., heads, head_dim]`` in float64 or float32.
    """
    torch = extras.torch()
    if fmt.name in _TORCH:
        return rows.to(getattr(torch, _TORCH[fmt.name])).to(rows.dtype)
    grid = integer_grid(fmt, rows.shape[-2], rows.shape[-1])
    if grid is None:
        return None
    bits, group = grid
    most = 2 ** (bits - 1) - 1
    flat = rows.flatten(-2)
    if flat.shape[-1] % group:
        return None
    grouped = flat.unflatten(-1, (-1, group))
    scale = grouped.abs().amax(-1, keepdim=True) / most
    scale = scale.to(torch.float32 if fmt.scale_bytes == 4 else torch.float16).to(rows.dtype).clamp_min(1e-12)
    return ((grouped / scale).round().clamp(-most, most) * scale).flatten(-2).unflatten(-1, rows.shape[-2:])


def expected_error(fmt: Format, heads: int, head_dim: int) -> float | None:
    """Root mean square error of stored standard normal numbers, over their own root mean square (1).

    Rounding to a grid of step s errs by ``s / sqrt(12)``. Floats: the step is ``2^(e - mantissa)`` in the binade of
    e, weighted by how much of a normal distribution lies there. Integers: the step is the largest of a group over
    ``2^(bits - 1) - 1``, whose mean square follows from the distribution of the largest of n numbers.
    """
    if fmt.name in _FLOATS:
        return _float_error(*_FLOATS[fmt.name])
    grid = integer_grid(fmt, heads, head_dim)
    if grid is None:
        return None
    bits, group = grid
    return sqrt(_mean_square_of_largest(group) / 12) / float(2 ** (bits - 1) - 1)


def _below(x: float) -> float:
    """Share of a standard normal distribution within x of 0."""
    return erf(x / sqrt(2)) if x < inf else 1.0


def _float_error(mantissa: int, smallest: int) -> float:
    total = 0.0
    for exponent in range(smallest, 4):
        low = 0.0 if exponent == smallest else 2.0**exponent  # subnormal numbers keep the smallest step
        share = _below(2.0 ** (exponent + 1)) - _below(low)
        total += share * (2.0 ** (exponent - mantissa)) ** 2 / 12
    return sqrt(total)


def _mean_square_of_largest(count: int) -> float:
    """Mean square of the largest of `count` absolute normal numbers: the integral of ``2 x (1 - P(all < x))``."""
    step = 0.001
    return sum(2 * x * (1 - _below(x) ** count) * step for x in ((i + 0.5) * step for i in range(9000)))
