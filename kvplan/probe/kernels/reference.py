"""Decode attention in torch operators: the float64 truth, the path without Triton, and SDPA on contiguous caches."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvplan.probe.kernels.store import HeadShape, PagedKv, gather, some_heads

_CHUNK_ELEMENTS = 1 << 18
"""Of K that are widened at once on a CPU, where whole pages allow: with V 2 MiB, as a core's own cache holds."""
_TRUTH_ELEMENTS = 1 << 19
"""Of K that the float64 truth holds at once on a CPU, where a single head allows: with V 8 MiB."""


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

    Scores of a whole sequence at once, unlike the paths that are held against it; on a CPU a few KV heads at a time,
    so that it takes little memory whatever the model.

    Args:
        q: [batch, query heads, d]; table: [batch, pages]; lens: [batch].
    """
    shape, rows = pool.shape, []
    for index, length in enumerate(lens.tolist()):
        step = shape.kv_heads
        if q.device.type == "cpu":
            step = max(1, min(step, _TRUTH_ELEMENTS // (table.shape[1] * pool.page * shape.head_dim)))
        found = []
        for first in range(0, shape.kv_heads, step):
            last = min(first + step, shape.kv_heads)
            k, v = gather(some_heads(pool, first, last), table[index], torch.float64)
            some = q[index, first * shape.group : last * shape.group].double()
            found.append(attend(some, k[:, :length], v[:, :length], shape.scale))
        rows.append(torch.cat(found))
    return torch.stack(rows)


def truth_bytes(shape: HeadShape, tokens: int) -> int:
    """What `truth` holds at once on a CPU: K and V of some heads in float64, and scores of theirs three times."""
    heads = max(1, min(shape.kv_heads, _TRUTH_ELEMENTS // (tokens * shape.head_dim)))
    widths = shape.head_dim + (0 if shape.latent else shape.head_dim_v)
    return heads * tokens * 8 * (widths + shape.head_dim // 2 + 3 * shape.group)


def worst_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative error of any one sequence (first dimension), in the Euclidean norm; NaN where one is.

    A norm over the whole batch would hide a wrong long sequence behind a short one: its output is small.
    """
    difference = (out.double() - expected.double()).flatten(1).norm(dim=1)
    return float((difference / expected.double().flatten(1).norm(dim=1)).max())


def paged_operators(q: torch.Tensor, pool: PagedKv, table: torch.Tensor, lens: torch.Tensor, out: torch.Tensor) -> None:
    """Gather, widen, attend: several passes over memory, correct for every shape and format; writes `out`.

    On a CPU a few pages at a time, which stay in its cache and take little memory; elsewhere all at once, which a
    graph can record.
    """
    if q.device.type == "cpu":
        _by_chunks(q, pool, table, lens.tolist(), out)
        return
    # scores in bf16 would be off by more than the kernels' tolerance, and a scaled integer has more digits than bf16
    k, v = gather(pool, table, torch.float32)
    heads, tokens = k.shape[1], k.shape[2]
    beyond = torch.arange(tokens, device=q.device)[None, :] >= lens[:, None]
    grouped = q.float().unflatten(1, (heads, -1))
    scores = (grouped @ k.transpose(-1, -2)) * pool.shape.scale
    scores = scores.masked_fill(beyond[:, None, None, :], float("-inf"))
    out.copy_((torch.softmax(scores, -1) @ v).flatten(1, 2))


def _by_chunks(q: torch.Tensor, pool: PagedKv, table: torch.Tensor, lens: list[int], out: torch.Tensor) -> None:
    """Sequences in groups whose pages make a chunk; a longer one chunk by chunk, its softmax brought up to date.

    Source of the running maximum and sum: arXiv 1805.02867, algorithm 3.
    """
    shape, pages = pool.shape, table.shape[1]
    most = max(1, _CHUNK_ELEMENTS // (shape.kv_heads * pool.page * shape.head_dim))
    several, wide = max(1, most // pages), min(most, pages)
    scaled = q.float().mul_(shape.scale).unflatten(1, (shape.kv_heads, -1))
    for first in range(0, len(lens), several):
        rows = slice(first, min(first + several, len(lens)))
        best = total = summed = None
        for start in range(0, -(-max(lens[rows]) // pool.page), wide):
            k, v = gather(pool, table[rows, start : start + wide], torch.float32)
            scores = scaled[rows] @ k.transpose(-1, -2)
            for row, length in enumerate(lens[rows]):
                scores[row, ..., max(0, length - start * pool.page) :] = float("-inf")
            top = scores.amax(-1, keepdim=True)
            if best is None or total is None or summed is None:
                weights = scores.sub_(top).exp_()
                best, total, summed = top, weights.sum(-1, keepdim=True), weights @ v
                continue
            now = torch.maximum(best, top)
            weights, before = scores.sub_(now).exp_(), (best - now).exp_()
            best = now
            total = total.mul_(before).add_(weights.sum(-1, keepdim=True))
            summed = summed.mul_(before).add_(weights @ v)
        if summed is not None and total is not None:
            out[rows] = summed.div_(total).flatten(1, 2).to(out.dtype)


def contiguous_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: HeadShape) -> torch.Tensor:
    """torch's own attention on contiguous caches [batch, kv heads, tokens, d]; no block table, one length for all."""
    grouped = shape.group > 1
    out = F.scaled_dot_product_attention(q.unsqueeze(2), k, v, scale=shape.scale, enable_gqa=grouped)
    return out.squeeze(2)
