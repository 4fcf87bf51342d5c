"""Compute buffers: what the largest graph needs besides weights and caches. Modelled, with bounds.

::

    mask    = ubatch x cells x (2 with flash attention, else 4) bytes, for each kind of cache
    scores  = 8 x ubatch x cells of an indexer (x its heads beside grouped attention, where that is sparse)
    flash:    work x ubatch + mask + scores
    no flash: 4 x query heads x cells x ubatch + mask + 22 x hidden x ubatch, not below the other
              (compressed attention: the scores of its window and entries beside the other)
    outputs:  4 x outputs x (vocabulary + 2 x hidden), where that is more

`work` is the widest moment of a layer in bytes a token, from its shape. Structure: graphs of
libllama 0.5.0 (``src/llama-graph.cpp``, ``src/models/*.cpp``); the factors 24, 22, 16, 12, 8 and 4 were read
off its own printed reservations (CPU backend) of plain, grouped, MoE and latent models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.engines.base import Term
from kvplan.engines.llama_cpp.geometry import Geometry, pad
from kvplan.units import MIB

if TYPE_CHECKING:
    from kvplan.engines.llama_cpp.architectures import Facts
    from kvplan.spec.kind import CacheKind, LayerPart
    from kvplan.spec.model import ModelSpec

SOURCE = "llama.cpp graph reservation, modelled from the shape (libllama 0.5.0)"
LOW, HIGH = 0.8, 1.35
"""Bounds of the modelled figure."""
CONTEXT_BYTES, CONTEXT_LOW, CONTEXT_HIGH = 320 * MIB, 150 * MIB, 700 * MIB
"""CUDA context, kernels and cuBLAS workspace of one process on one GPU."""


def work_bytes(model: ModelSpec) -> int:
    """The widest moment of any layer, in bytes per token of the micro-batch."""
    hidden = model.hidden_size
    widest = 0
    for name in model.layer_counts:
        block = model.blocks[name]
        ffn = sum(_ffn_bytes(part, hidden) for part in block.ffns)
        widest = max(widest, ffn, *(_mixer_bytes(m, hidden) for m in block.mixers), 0)
    return widest


def _ffn_bytes(part: LayerPart, hidden: int) -> int:
    """Gate, up and their product beside the residual; of experts also all their outputs before they are summed."""
    kind: Any = part
    wide = kind.intermediate_size
    if kind.kind == "dense":
        return int(16 * wide + 4 * hidden if kind.gated else 8 * wide)
    used = kind.experts_per_token
    return int(max(12 * used * wide + 12 * hidden, 4 * used * wide + 8 * used * hidden + 12 * hidden))


def _mixer_bytes(mixer: CacheKind, hidden: int) -> int:
    """float32 intermediates of a mixer: projections in and out, and what is kept between them."""
    kind: Any = mixer
    if mixer.kind == "mla":
        return int(4 * kind.query_heads * (2 * kind.row_dim + kind.kv_lora_rank))
    if mixer.kind == "compressed":
        return int(4 * kind.query_heads * 3 * kind.head_dim)
    if hasattr(mixer, "query_heads"):
        return int(4 * (2 * kind.query_heads + kind.kv_heads) * (kind.head_dim + kind.dim_v) + 4 * hidden)
    states = mixer.states()
    wide = [s.channels for s in states if s.name == "conv"] or [s.channels for s in states]
    return 24 * sum(wide) + 4 * hidden if wide else 0


def compute_bytes(model: ModelSpec, facts: Facts, shape: Geometry) -> int:
    """The compute buffer of one device."""
    windows = _windows(model, facts)
    cells = [shape.cells(w) if r == 1 else pad(-(-shape.n_ctx_seq // r)) for w, r in windows]
    heads = max((getattr(m, "query_heads", 0) for _, m in model.mixers()), default=0)
    mask = shape.ubatch * sum(cells) * (2 if shape.flash else 4)
    total = work_bytes(model) * shape.ubatch + mask + _index_bytes(model, shape)
    if not shape.flash and any(r > 1 for _, r in windows):
        # rows of the window and compressed ones are scored together, beside everything else
        by_ratio = [(r, c) for c, (_, r) in zip(cells, windows, strict=True)]
        near, far = max(c for r, c in by_ratio if r == 1), max(c for r, c in by_ratio if r > 1)
        total += 4 * heads * (near + far) * shape.ubatch
    elif not shape.flash and cells:
        total = max(total, 4 * heads * max(cells) * shape.ubatch + mask + 22 * model.hidden_size * shape.ubatch)
    return max(total, 4 * shape.outputs * (model.vocab_size + 2 * model.hidden_size))


def _index_bytes(model: ModelSpec, shape: Geometry) -> int:
    """Scores of an indexer over all its cells, and their order.

    Grouped attention is dense where sequences share a stream and without flash attention
    (``src/models/minimax-m3.cpp``).
    """
    widest = 0
    dense = not shape.flash or (shape.unified and shape.slots > 1)
    for _, mixer in model.mixers():
        kind: Any = mixer
        if getattr(kind, "index_head_dim", None) and not (dense and mixer.kind == "full"):
            cells = shape.n_ctx_seq // (kind.ratio if mixer.kind == "compressed" else 1)
            heads = (kind.index_heads or 1) if mixer.kind == "full" else 1
            widest = max(widest, 8 * shape.ubatch * cells * heads)
    return widest


def _windows(model: ModelSpec, facts: Facts) -> list[tuple[int | None, int]]:
    """(window, ratio) of every kind of cache that has a mask of its own."""
    from kvplan.engines.llama_cpp.caches import rows

    found = {(r.window, r.ratio) for _, mixer in model.mixers() for r in rows(model, facts, mixer)}
    return sorted(found, key=str)


def compute_term(model: ModelSpec, facts: Facts, shape: Geometry, devices: int) -> Term:
    """The compute buffer of one GPU; several GPUs keep up to four copies of the graph's inputs."""
    size = compute_bytes(model, facts, shape)
    copies = 0 if devices == 1 else 3 * shape.ubatch * (2 if shape.flash else 4) * shape.n_ctx_seq
    return Term("compute buffer", "activation", size, int(size * LOW), int(size * HIGH) + copies, "modelled", SOURCE)


def context_term() -> Term:
    """What the driver and the kernels take before anything is loaded."""
    source = "llama.cpp on CUDA: what a start of 0.3 GiB beside its own buffers showed"
    return Term("driver context", "runtime", CONTEXT_BYTES, CONTEXT_LOW, CONTEXT_HIGH, "modelled", source)
