"""Decode attention in torch operators: the float64 truth, the path without Triton, and SDPA on contiguous caches."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvplan.probe.kernels.store import HeadShape, PagedKv, gather


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Softmax attention of one new token in the dtype of its arguments.

    Args:
        q: [..., query heads, d]; k: [..., kv heads, tokens, d]; v: [..., kv heads, tokens, d_v].

    Returns:
        [..., query heads, d_v].
    """
    heads = k.shape[-3]
    grouped = q.unflatten(-2, (heads, -1))
    weights = torch.softmax(grouped @ k.transpose(-1, -2) * scale, -1)
    return (weights @ v).flatten(-3, -2)


def truth(q: torch.Tensor, pool: PagedKv, table: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """What every kernel should return, in float64 on the stored numbers: [batch, query heads, d_v].

    Args:
        q: [batch, query heads, d]; table: [batch, pages]; lens: [batch].
    """
    rows = []
    for index, length in enumerate(lens.tolist()):
        k, v = gather(pool, table[index], torch.float64)
        rows.append(attend(q[index].double(), k[:, :length], v[:, :length], pool.shape.scale))
    return torch.stack(rows)


def worst_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative error of any one sequence (first dimension), in the Euclidean norm; NaN where one is.

    A norm over the whole batch would hide a wrong long sequence behind a short one: its output is small.
    """
    difference = (out.double() - expected.double()).flatten(1).norm(dim=1)
    return float((difference / expected.double().flatten(1).norm(dim=1)).max())


def paged_operators(q: torch.Tensor, pool: PagedKv, table: torch.Tensor, lens: torch.Tensor, out: torch.Tensor) -> None:
    """Gather, widen, attend: several passes over memory, correct for every shape and format; writes `out`.

    On a CPU torch's fused attention does the last step; elsewhere plain products do, which a graph can record.
    """
    # scores in bf16 would be off by more than the kernels' tolerance, and a scaled integer has more digits than bf16
    work = q.dtype if q.device.type == "cpu" and pool.k_scale is None else torch.float32
    k, v = gather(pool, table, work)
    heads, tokens = k.shape[1], k.shape[2]
    beyond = torch.arange(tokens, device=q.device)[None, :] >= lens[:, None]
    if q.device.type == "cpu":
        mask = None if int(lens.min()) == tokens else ~beyond[:, None, None, :]
        found = F.scaled_dot_product_attention(
            q.to(work).unsqueeze(2), k, v, attn_mask=mask, scale=pool.shape.scale, enable_gqa=pool.shape.group > 1
        )
        out.copy_(found.squeeze(2))
        return
    grouped = q.to(work).unflatten(1, (heads, -1))
    scores = (grouped @ k.transpose(-1, -2)).float() * pool.shape.scale
    scores = scores.masked_fill(beyond[:, None, None, :], float("-inf"))
    out.copy_((torch.softmax(scores, -1).to(work) @ v).flatten(1, 2))


def contiguous_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: HeadShape) -> torch.Tensor:
    """torch's own attention on contiguous caches [batch, kv heads, tokens, d]; no block table, one length for all."""
    grouped = shape.group > 1
    out = F.scaled_dot_product_attention(q.unsqueeze(2), k, v, scale=shape.scale, enable_gqa=grouped)
    return out.squeeze(2)
