"""Launches of the Triton kernels: which one serves a format, with what tile, warps, stages and splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kvplan.probe.kernels.store import PagedKv

_LOG2E = 1.4426950408889634
_TYPES = {"bf16": 0, "fp16": 0, "fp8_e4m3": 1, "int8_per_token_head": 2}


class Config(NamedTuple):
    """One way to run a kernel."""

    columns: bool
    """Tokens as rows and heads as columns."""
    tile: int
    """Tokens per step of the loop."""
    warps: int
    stages: int
    per_sm: int
    """Programs per multiprocessor that the number of splits aims at."""
    scale_v: bool = False
    """int4: scales go to V instead of the weights."""
    block: int = 16
    """Latent: query heads per program."""
    early: bool = False
    """Tokens as rows: programs start while the kernel before ends, where `starts_early`."""

    @property
    def name(self) -> str:
        """As it is printed."""
        way = "tokens x heads" if self.columns else "heads x tokens"
        start = ", early start" if self.early else ""
        return f"{way}, tile {self.tile}, {self.warps} warps, {self.stages} stages{start}"


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels (``TRITON_INTERPRET=1``)."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def starts_early(q: torch.Tensor) -> bool:
    """Whether kernels on the device of `q` can start while the one before ends (CUDA, compute capability 9 on)."""
    if q.device.type != "cuda" or torch.version.hip is not None or interpreted():
        return False
    return bool(torch.cuda.get_device_capability(q.device) >= (9, 0))


def splits_for(programs: int, tiles: int, slots: int) -> int:
    """Splits of each context, so that `programs` times them come near `slots` and no split is empty."""
    wanted = max(1, min(tiles, slots // max(programs, 1)))
    each = -(-tiles // wanted)
    return -(-tiles // each)


def prepare(
    q: torch.Tensor, pool: PagedKv, lens: torch.Tensor, out: torch.Tensor, config: Config, *, longest: int, slots: int,
) -> Callable[[torch.Tensor], None]:  # fmt: skip
    """A function of the block table [batch, pages] that writes `out`; buffers for splits are allocated here.

    Args:
        q: [batch, query heads, d]; lens: [batch] int32; out: [batch, query heads, d_v].
        longest: tokens of the longest sequence, by which splits are chosen.
        slots: programs that should run at once.
    """
    import triton

    from kvplan.probe.kernels import triton_common, triton_decode, triton_grouped, triton_latent

    shape, batch = pool.shape, q.shape[0]
    blocks = -(-shape.query_heads // config.block) if shape.latent else shape.kv_heads
    splits = splits_for(batch * blocks, -(-longest // config.tile), slots)
    rows = batch * shape.query_heads
    part = lse = out
    if splits > 1:
        part = torch.empty((rows, splits, shape.head_dim_v), dtype=torch.float32, device=q.device)
        lse = torch.empty((rows, splits), dtype=torch.float32, device=q.device)
    native = q.device.type == "cuda" and torch.version.hip is None and not interpreted()
    meta: dict[str, Any] = dict(
        GROUP=shape.group, PAGE=pool.page, BN=config.tile, SPLIT=splits > 1, ASM=native, num_warps=config.warps,
        num_stages=config.stages,
    )  # fmt: skip
    grid, scale = (batch * blocks * splits,), shape.scale * _LOG2E
    dims = dict(D=shape.head_dim, D_PAD=_pad(shape.head_dim), DV=shape.head_dim_v, DV_PAD=_pad(shape.head_dim_v))
    k_scale = pool.k if pool.k_scale is None else pool.k_scale
    v_scale = k_scale if pool.v_scale is None else pool.v_scale
    start = _start(config, q)
    pad = max(8 if config.columns else 16, _pad(shape.group))

    def run(table: torch.Tensor) -> None:
        if shape.latent and pool.format == "int4_g32":
            triton_latent.latent_grouped[grid](
                q, pool.k, k_scale, table, lens, out, part, lse, scale, table.stride(0), splits,
                GROUP_PAD=config.block, LORA=shape.head_dim_v, **meta,
            )  # fmt: skip
        elif shape.latent:
            triton_latent.latent[grid](
                q, pool.k, k_scale, table, lens, out, part, lse, scale, 1.0, table.stride(0), splits,
                FORMAT=_TYPES[pool.format], GROUP_PAD=config.block, LORA=shape.head_dim_v,
                ROPE=shape.head_dim - shape.head_dim_v, ROPE_PAD=max(16, _pad(shape.head_dim - shape.head_dim_v)),
                **meta,
            )  # fmt: skip
        elif pool.format == "int4_g32":
            triton_grouped.grouped[grid](
                q, pool.k, pool.v, k_scale, v_scale, table, lens, out, part, lse, scale, table.stride(0), splits,
                HEADS=shape.kv_heads, GROUP_PAD=pad, D=shape.head_dim, COLUMNS=config.columns,
                SCALE_V=config.scale_v, **meta,
            )  # fmt: skip
        else:
            kernel = triton_decode.tokens_as_rows if config.columns else triton_decode.heads_as_rows
            kernel[grid](
                q, pool.k, pool.v, k_scale, v_scale, table, lens, out, part, lse, scale, 1.0, table.stride(0), splits,
                FORMAT=_TYPES[pool.format], TRANSPOSED=pool.transposed, HEADS=shape.kv_heads, GROUP_PAD=pad, **dims,
                **meta, **start,
            )  # fmt: skip
        if splits > 1:
            lanes = triton.next_power_of_2(splits)
            width = max(16, min(128, 4096 // lanes))
            triton_common.reduce_splits[(rows, -(-shape.head_dim_v // width))](
                part, lse, out, splits, SPLITS_PAD=lanes, DV=shape.head_dim_v, DIMS=width, num_warps=4
            )

    return run


def _start(config: Config, q: torch.Tensor) -> dict[str, bool]:
    """How the kernel by columns starts; other kernels take no such argument."""
    if not config.columns:
        return {}
    if not (config.early and starts_early(q)):
        return dict(EARLY=False)
    return dict(EARLY=True, launch_pdl=True)  # unknown to older Triton, and only there where the kernel waits


def _pad(size: int) -> int:
    """The next power of two."""
    return 1 << max(0, size - 1).bit_length()
