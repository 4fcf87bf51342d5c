"""Weights as vLLM holds them against the checkpoint's bytes: padding of 4-bit experts, rotary tables, LoRA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.base import Term
from kvplan.engines.vllm import budget_activation as activation
from kvplan.engines.vllm import budget_versions
from kvplan.engines.vllm.layers import V4_ROPE
from kvplan.spec.formats import get_format

if TYPE_CHECKING:
    from kvplan.engines.base import Settings, Stage
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec


_V4_TABLE = (
    f"tables of {V4_ROPE} rotary elements in fp32, one for compressed layers and one for the others "
    "(vllm/models/deepseek_v4/common/rope.py)"
)


def rope_term(stage: Stage, model: ModelSpec, settings: Settings) -> Term:
    """Cosine and sine tables: positions x rotary width x 2 bytes, one table for each distinct width.

    Models that rotate windowed layers at another base hold a second table of the same width, which the upper
    bound covers.
    Source: vLLM ``vllm/model_executor/layers/rotary_embedding/base.py``.
    """
    compressed = {len(m.streams()) > 1 for n in stage.spec.layer_counts for m in stage.spec.blocks[n].mixers
                  if m.kind == "compressed"}  # fmt: skip
    positions = model.max_position_embeddings or settings.max_model_len
    if compressed:
        size = 4 * positions * V4_ROPE * len(compressed)
        return Term("rotary tables", "weights", size, size, size, "exact", f"{len(compressed)} {_V4_TABLE}")
    rotated: set[int] = set()
    windows: set[bool] = set()
    for name in stage.spec.layer_counts:
        for mixer in stage.spec.blocks[name].mixers:
            if mixer.states():
                continue
            windows |= {s.window is not None for s in mixer.streams()}
            rotated.add(getattr(mixer, "qk_rope_head_dim", None) or getattr(mixer, "head_dim", 0) or 0)
    learned = bool(model.position_embeddings)
    share = (model.rope or {}).get("partial_rotary_factor")
    factor = share if isinstance(share, int | float) and 0 < share <= 1 else 1
    width = 0 if learned else int(sum(rotated) * factor)
    size = 2 * positions * width
    source = f"2 B x {positions:,} positions x {width} rotary elements"
    return Term("rotary tables", "weights", size, size // 2, size * max(1, len(windows)), "modelled", source)


def expert_format(model: ModelSpec, settings: Settings) -> str:
    """Name of the format the routed experts are stored in."""
    if settings.weights != "auto":
        return get_format(settings.weights, use="weights").name
    stored = model.checkpoint
    if stored is None:
        return model.dtype
    named = stored.overrides.get("routed_experts", stored.format if "routed_experts" in stored.roles else model.dtype)
    return get_format(named, use="weights").name


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


_CDNA4 = "gfx950"
"""The AMD devices whose AITER kernels multiply MXFP4 experts; the others run Triton's."""


def mxfp4_backend(gpu: GpuSpec) -> str:
    """Which kernel runs MXFP4 experts by default: it decides the padding.

    Triton on compute capability 9.0, FlashInfer on 10.x, AITER or Triton on AMD devices, Marlin elsewhere.
    Source: vLLM ``vllm/model_executor/layers/quantization/mxfp4.py``, ``get_mxfp4_backend``; from 0.19
    ``vllm/model_executor/layers/fused_moe/oracle/mxfp4.py``.
    """
    if gpu.vendor == "amd":
        return "aiter" if gpu.compute_capability == _CDNA4 else "rocm"
    generation = activation.major(gpu)
    return "triton" if generation == 9 else "flashinfer" if generation == 10 else "marlin"


def mxfp4_bytes(backend: str, wide: int, hidden: int, version: budget_versions.Version = (0, 33, 0)) -> int:
    """Bytes of one gated expert's three matrices as `backend` pads them, scales (one byte per 32) included.

    Marlin rounds the width on this rank up to 128 and the hidden size to 256; FlashInfer both to 256;
    Triton on Hopper pads the 4-bit values along one side to 256, not their scales. On AMD devices both go to 256,
    but to 128 from 0.14 until 0.19 where the device is not CDNA 4, and from 0.28 where it is.
    """
    if backend == "triton":
        return 3 * wide * _up(hidden, 256) // 2 + 3 * wide * hidden // 32
    if backend in ("aiter", "rocm"):
        narrow = version >= (0, 28, 0) if backend == "aiter" else (0, 14, 0) <= version < (0, 19, 0)
        step = 128 if narrow else 256
        return 3 * _up(wide, step) * _up(hidden, step) * 17 // 32
    wide = _up(wide, 128 if backend == "marlin" else 256)
    return 3 * wide * _up(hidden, 256) * 17 // 32


def padding_term(stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> Term | None:
    """What MXFP4 experts grow by when they are loaded; None: the experts are in another format."""
    if expert_format(model, settings) != "mxfp4":
        return None
    backend, version = mxfp4_backend(gpu), budget_versions.version_of(settings)
    others = ("aiter", "rocm") if gpu.vendor == "amd" else ("triton", "marlin", "flashinfer")
    sums = dict.fromkeys(others, 0)
    for name, layers in stage.spec.layer_counts.items():
        for ffn in stage.spec.blocks[name].ffns:
            if not getattr(ffn, "experts", None):
                continue
            wide: int = ffn.intermediate_size  # type: ignore[attr-defined]
            hidden: int = ffn.expert_hidden_size or model.hidden_size  # type: ignore[attr-defined]
            count: int = layers * ffn.experts  # type: ignore[attr-defined]
            plain = 3 * wide * hidden * 17 // 32
            biases = 2 * (2 * wide + hidden) if getattr(ffn, "bias", False) else 0
            for kernel in sums:
                grown = mxfp4_bytes(kernel, wide, hidden, version) - plain + (biases if kernel == "triton" else 0)
                sums[kernel] += count * grown
    size = sums[backend]
    source = f"{backend} kernel of this device: widths rounded up when the experts are loaded"
    return Term("padding of 4-bit experts", "weights", size, min(sums.values()), max(sums.values()), "modelled", source)


def lora_term(stage: Stage, model: ModelSpec, settings: Settings) -> Term | None:
    """Adapter buffers, there from the start: per slot, rank x (in + out) of every linear layer; None: off.

    Source: vLLM ``vllm/lora/layers/`` (``create_lora_weights``).
    """
    if not settings.extra.get("enable_lora"):
        return None
    slots, rank = int(settings.extra.get("max_loras", 1)), int(settings.extra.get("max_lora_rank", 16))
    elements = 0
    for name, layers in stage.spec.layer_counts.items():
        for role, shape, times in ((t.role, t.shape, t[3]) for t in stage.spec.block_tensors(name)):
            if role in ("attention", "dense_ffn", "shared_experts") and len(shape) == 2:
                elements += layers * times * (shape[0] + shape[1])
    size = 2 * slots * rank * elements
    source = f"{slots} slots of rank {rank} on every linear layer"
    return Term("LoRA buffers", "weights", size, size, size * 5 // 4, "modelled", source)


def encoder_left_out(stage: Stage, model: ModelSpec, settings: Settings) -> Term | None:
    """``--language-model-only`` loads no encoder: its weights come off; None where nothing does."""
    if not settings.extra.get("language_model_only") or not stage.first or not model.towers:
        return None
    parameters = sum(t.parameters for t in model.towers)
    size = -(-parameters // settings.tensor_parallel_size) * get_format(model.dtype).block_bytes
    return Term("encoder not loaded", "weights", -size, -size, -size, "exact", "--language-model-only")
