"""What sparse attention reserves while vLLM profiles: gathered rows, gathered index keys, index logits.

Source: vLLM 0.14.0 to 0.33.0 ``vllm/model_executor/layers/sparse_attn_indexer.py`` (before 0.19
``vllm/model_executor/models/deepseek_v2.py``), ``vllm/v1/attention/backends/mla/indexer.py``
(``get_max_prefill_buffer_size``), ``flashmla_sparse.py`` (``get_prefill_workspace_size``),
``vllm/v1/attention/ops/rocm_aiter_mla_sparse.py``, ``vllm/models/deepseek_v4/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.engines.base import Term
from kvplan.engines.vllm import budget_versions
from kvplan.spec.formats import get_format
from kvplan.units import MIB

if TYPE_CHECKING:
    from kvplan.engines.base import Settings, Stage
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import ModelSpec

GATHERED_KEYS, GATHERED_ROWS = 40, 5
"""Index keys and latent rows that a prefill may gather at once, in multiples of ``max_model_len``."""
KEY_SCALE_BYTES = 4
LOGITS_BYTES = 512 * MIB
"""``VLLM_SPARSE_INDEXER_MAX_LOGITS_MB``: index logits of one chunk, which the profile allocates and frees."""
LOGITS_PROFILED: budget_versions.Version = (0, 19, 0)
DECODE_LOGITS_ON_ROCM: budget_versions.Version = (0, 23, 0)
"""From here AMD devices reserve fp32 logits of every batched token over the whole context."""
V4_REQUESTS = 4
"""Requests whose compressed entries DeepSeek-V4 gathers at once (``PREFILL_CHUNK_SIZE``)."""


class Sparse(NamedTuple):
    """Bytes that sparse attention takes in the profile."""

    workspace: int
    """In the grow-only workspace that it shares with the experts' kernels."""
    transient: int
    """Beside it, freed before the next layer."""


def sparse_workspace(stage: Stage, settings: Settings, gpu: GpuSpec) -> Sparse:
    """The largest layer's reservation; zeros where no layer keeps index keys or compressed entries."""
    version = budget_versions.version_of(settings)
    if version < budget_versions.EXPERT_WORKSPACE_KEPT:
        return Sparse(0, 0)
    most, indexed = 0, False
    for name in stage.spec.layer_counts:
        for mixer in stage.spec.blocks[name].mixers:
            keys = [s for s in mixer.streams() if s.role == "index"]
            if mixer.kind not in ("mla", "compressed") or not (keys or mixer.kind == "compressed"):
                continue
            most = max(most, _gathered(mixer, settings))
            for key in keys:
                indexed = True
                context = settings.max_model_len // key.ratio
                entry = key.head_dim + KEY_SCALE_BYTES
                most = max(most, GATHERED_KEYS * settings.max_model_len // key.ratio * entry)
                if gpu.vendor == "amd" and version >= DECODE_LOGITS_ON_ROCM:
                    most = max(most, 4 * (settings.max_num_batched_tokens or 0) * context)
    return Sparse(most, LOGITS_BYTES if indexed and version >= LOGITS_PROFILED else 0)


_SIXTEEN_BITS = ("compressor", "indexer_compressor", "indexer_weights")
"""Weights of DeepSeek-V4 that are held in 16 bits whatever the checkpoint's format (``quant_config=None``)."""
_HIDDEN_ALWAYS_UNTIL: budget_versions.Version = (0, 27, 0)
"""Before, DeepSeek-V4 keeps the residual streams of every batched token for a draft, with or without one."""


def loaded_term(stage: Stage, model: ModelSpec, settings: Settings, drafts: bool) -> Term | None:
    """What sparse attention holds besides its weights once a model is loaded; None: nothing.

    Source: vLLM 0.14.0 to 0.33.0 ``vllm/model_executor/models/deepseek_v2.py`` (``topk_indices_buffer``),
    0.20.0 to 0.33.0 ``vllm/models/deepseek_v4/compressor.py`` and ``nvidia/model.py`` (``_mtp_hidden_buffer``).
    """
    batched, what, size = settings.max_num_batched_tokens or 0, [], 0
    mixers = [(n, m) for name, n in stage.spec.layer_counts.items() for m in stage.spec.blocks[name].mixers]
    topk = max((getattr(m, "index_topk", None) or 0 for _, m in mixers), default=0)
    if topk:
        size += 4 * batched * topk
        what.append(f"4 B x {batched:,} tokens x {topk:,} chosen entries")
    if any(m.kind == "compressed" for _, m in mixers):
        streams = next((t.shape[0] for t in model.tensors if t.name == "hyper_head"), 1)
        if stage.last and (drafts or budget_versions.version_of(settings) < _HIDDEN_ALWAYS_UNTIL):
            size += 2 * batched * streams * model.hidden_size
            what.append(f"2 B x {batched:,} tokens x {streams} residual streams of {model.hidden_size:,}")
        wide = sum(n * t.elements for n, m in mixers for t in m.tensors(model.hidden_size) if t.name in _SIXTEEN_BITS)
        stored = get_format(_attention_format(model, settings))
        more = max(0, 2 * wide - wide * stored.block_bytes // stored.block_elements)
        if more:
            size += more
            what.append(f"compressors in 16 bits: {wide:,} weights")
    if not size:
        return None
    return Term("sparse attention", "weights", size, size * 9 // 10, size * 11 // 10, "modelled", "; ".join(what))


def _attention_format(model: ModelSpec, settings: Settings) -> str:
    if settings.weights != "auto":
        return get_format(settings.weights, use="weights").name
    stored = model.checkpoint
    if stored is None or "attention" not in (*stored.roles, *stored.overrides):
        return model.dtype
    return get_format(stored.overrides.get("attention", stored.format), use="weights").name


def _gathered(mixer: CacheKind, settings: Settings) -> int:
    """Rows brought back to bf16 before a prefill attends to them."""
    streams = mixer.streams()
    if mixer.kind == "compressed":
        ratio = max(s.ratio for s in streams)
        entries = -(-settings.max_model_len // ratio) if ratio > 1 else 0
        rows = entries + (streams[0].window or 0) + (settings.max_num_batched_tokens or 0)
        return 2 * V4_REQUESTS * rows * streams[0].head_dim
    if settings.kv_cache_dtype in ("auto", "bf16", "fp16"):
        return 0
    width = sum(s.head_dim for s in streams if s.role != "index")
    return 2 * GATHERED_ROWS * settings.max_model_len * width
