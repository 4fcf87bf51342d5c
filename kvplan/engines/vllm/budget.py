"""How many bytes of a GPU vLLM 0.33 spends on other things than the cache.

The terms follow from structure: what the profiling run allocates at its peak (sampler or forward
pass, whichever is larger), what the runner keeps, what graph capture is estimated at. All of them
are modelled and carry bounds; the rules were read in vLLM 0.33.0 ``vllm/v1/worker/gpu_worker.py``
(``determine_available_memory``), ``vllm/v1/worker/gpu/`` and ``vllm/v1/sample/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.base import Settings, Stage, Term
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

SAMPLER_BYTES = 14
"""Per row and vocabulary element at the sampler's peak: bf16 logits 2, fp32 copy 4, masked logits 4,
probabilities 4 (FlashInfer path)."""
KEPT_BYTES_QUARTERS = 17
"""Kept for ever per sequence and vocabulary element, in quarter bytes: int32 output counts and two bit masks."""


def activation_term(stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> Term:
    """The peak of the profiling run above the weights, with what the runner keeps."""
    batched, seqs = settings.max_num_batched_tokens or 0, settings.max_num_seqs or 0
    rows, hidden = min(batched, seqs), model.hidden_size
    forward = forward_bytes(stage, model, settings)
    sampler = kept = 0
    if stage.last:
        sampler = SAMPLER_BYTES * rows * model.vocab_size + 2 * hidden * (batched + 2 * rows)
        kept = KEPT_BYTES_QUARTERS * seqs * model.vocab_size // 4
    workspace = expert_workspace_bytes(stage, model, settings)
    cublas = (32 if _major(gpu) >= 9 else 8) * MIB
    peak = cublas + kept + workspace + max(sampler, forward)
    which = "sampler" if sampler > forward else "forward pass"
    low = cublas + workspace + max(forward, min(sampler, 2 * rows * model.vocab_size))
    high = peak + max(peak // 4, GIB // 4)
    source = (
        f"{which} at max_num_batched_tokens {batched:,}, max_num_seqs {seqs:,}, vocabulary {model.vocab_size:,}; "
        "V2 runner, FlashInfer sampler"
    )
    return Term("activation peak", "activation", peak, min(low, peak), high, "modelled", source)


def forward_bytes(stage: Stage, model: ModelSpec, settings: Settings) -> int:
    """Activations alive at the widest point of one layer for a full batch of tokens, 2 bytes each."""
    batched = settings.max_num_batched_tokens or 0
    widths = [0]
    for name in stage.spec.layer_counts:
        for ffn in stage.spec.blocks[name].ffns:
            wide = getattr(ffn, "shared_intermediate_size", None)
            widths.append(ffn.intermediate_size if wide is None else wide)  # type: ignore[attr-defined]
    streams = 3 if settings.enforce_eager else 4
    return 2 * batched * (3 * max(widths) + streams * model.hidden_size) + latent_prefill_bytes(stage, settings)


def latent_prefill_bytes(stage: Stage, settings: Settings) -> int:
    """K and V rebuilt from latent rows for the largest chunk of context that MLA prefill takes at once."""
    peak = 0
    for name in stage.spec.layer_counts:
        for mixer in stage.spec.blocks[name].mixers:
            if mixer.kind == "mla":
                seqs = settings.max_num_seqs or 0
                rows = min(max(8 * settings.max_model_len, 4 * seqs * settings.block_size), 65536)
                width = mixer.query_heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)  # type: ignore[attr-defined]
                peak = max(peak, 2 * rows * width)
    return peak


def expert_workspace_bytes(stage: Stage, model: ModelSpec, settings: Settings) -> int:
    """The two intermediate buffers of the fused expert kernel; one grow-only buffer, kept for ever."""
    peak = 0
    for name in stage.spec.layer_counts:
        for ffn in stage.spec.blocks[name].ffns:
            if getattr(ffn, "experts", None):
                wide: int = ffn.intermediate_size  # type: ignore[attr-defined]
                width: int = ffn.expert_hidden_size or model.hidden_size  # type: ignore[attr-defined]
                rows = (settings.max_num_batched_tokens or 0) * ffn.experts_per_token  # type: ignore[attr-defined]
                peak = max(peak, 2 * rows * (max(2 * wide, width) + max(wide, width)))
    return peak


def graph_term(settings: Settings, gpu: GpuSpec) -> Term:
    """The estimate of CUDA graph memory that vLLM takes off the budget before it sizes the cache."""
    if settings.enforce_eager:
        return Term("CUDA graphs", "cuda_graph", 0, 0, 0, "exact", "eager mode captures none")
    sizes = capture_sizes(settings.max_num_seqs or 0, 1024 if _major(gpu) == 10 else 512)
    estimate = GIB * min(2 * len(sizes), 45) // 100
    low, high = min(estimate, GIB // 10), max(estimate, 7 * GIB // 10)
    source = f"{len(sizes)} capture sizes; fitted to five logs, some models differ by a factor of 2"
    return Term("CUDA graphs", "cuda_graph", estimate, low, high, "modelled", source)


def capture_sizes(max_num_seqs: int, limit: int) -> list[int]:
    """Batch sizes whose graphs are captured: 1, 2, 4, by 8 up to 256, by 16 above.

    Source: vLLM 0.33.0 ``vllm/config/vllm.py``, ``_set_cudagraph_sizes``.
    """
    top = min(2 * max_num_seqs, limit)
    return [s for s in (1, 2, 4, *range(8, 257, 8), *range(272, limit + 1, 16)) if s <= top]


def runtime_term(settings: Settings, gpu: GpuSpec) -> Term:
    """Memory outside torch that appears after the snapshot: cuBLAS and communication buffers."""
    hundredths = 55 if settings.tensor_parallel_size > 1 else 13 if _major(gpu) >= 9 else 2
    estimate = hundredths * GIB // 100
    high = 140 * GIB // 100 if settings.tensor_parallel_size > 1 else GIB // 4
    low = 2 * GIB // 100
    return Term("outside torch", "runtime", estimate, low, high, "modelled", "logs of one and two H100 and A100; context and NCCL are in the withheld part")


def rope_term(model: ModelSpec, settings: Settings) -> Term:
    """Cosine and sine tables: 2 bytes per position and rotary element."""
    widths = set()
    for name in model.layer_counts:
        for mixer in model.blocks[name].mixers:
            widths.add(getattr(mixer, "qk_rope_head_dim", None) or getattr(mixer, "head_dim", 0))
    width = max(widths, default=0) if model.rope is not None or model.position_embeddings == 0 else 0
    size = 2 * (model.max_position_embeddings or settings.max_model_len) * width
    return Term("rotary tables", "weights", size, size // 2, 2 * size, "modelled", "2 B x positions x rotary width")


def _major(gpu: GpuSpec) -> int:
    """Major compute capability of an NVIDIA card; 0 for others."""
    text = gpu.compute_capability or ""
    head = text.partition(".")[0]
    return int(head) if head.isdigit() else 0
