"""What SGLang spends on other things than weights of the checkpoint and cache, inside its static share.

The rest, activations and graphs, lies outside the share and takes nothing from the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.base import Settings, Stage, Term
from kvplan.engines.common import attention_weights_term
from kvplan.engines.versions import at_least
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

QUICK_REDUCE_SINCE = "0.5.2"
QUICK_REDUCE_RANKS = (2, 4, 8)
QUICK_REDUCE_BYTES = 2 * 2 * GIB
"""Two stages of the largest message, 2 GiB, on AMD devices: SGLang's image sets ROCM_QUICK_REDUCE_QUANTIZATION
(``docker/rocm.Dockerfile``), with which ``quick_all_reduce.py`` allocates it (``sgl-kernel``,
``csrc/allreduce/quick_all_reduce_base.h`` and ``quick_all_reduce.h``)."""
EXPERT_INDICES_SINCE = "0.5.12"
"""Of the releases read the first whose ROCm path runs 4-bit experts; 0.5.6 has the Marlin kernels alone."""


def terms(stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec, *, version: str, dp: int) -> list[Term]:
    """Every term of one rank, in bytes that are gone from the device."""
    found = [context_term(settings, gpu, version)]
    indices = expert_indices(stage, model, gpu, version)
    found += [indices] if indices is not None else []
    if dp > 1:
        found.append(attention_weights_term(stage, model, dp))
    return found


def context_term(settings: Settings, gpu: GpuSpec, version: str) -> Term:
    """What the device misses before the weights are loaded: context, communicators and their buffers."""
    tp = settings.tensor_parallel_size
    many = tp * settings.pipeline_parallel_size > 1
    low, middle, high = (GIB // 2, 1200 * MIB, 2560 * MIB) if many else (256 * MIB, 512 * MIB, GIB)
    source = "free memory before loading is the device less these; not fitted"
    if gpu.vendor == "amd" and tp in QUICK_REDUCE_RANKS and at_least(version, QUICK_REDUCE_SINCE):
        middle, high = middle + QUICK_REDUCE_BYTES, high + QUICK_REDUCE_BYTES
        source += "; 4 GiB of them for quick all-reduce, which SGLang's ROCm image turns on"
    return Term("context, communication", "runtime", middle, low, high, "modelled", source)


def expert_indices(stage: Stage, model: ModelSpec, gpu: GpuSpec, version: str) -> Term | None:
    """Group indices and their order, int32 for every input of every 4-bit expert, which the ROCm path never frees.

    Source: SGLang 0.5.12 ``compressed_tensors_wNa16_moe.py``: ``CompressedTensorsWNA16MoE`` replaces them by empty
    tensors after loading, ``CompressedTensorsWNA16TritonMoE``, which runs on ROCm, does not. Checkpoints of other
    4-bit methods do not have them, and no format here tells those apart: the lower bound is 0.
    """
    stored = model.checkpoint
    if stored is None or gpu.vendor != "amd" or not at_least(version, EXPERT_INDICES_SINCE):
        return None
    if not stored.overrides.get("routed_experts", stored.format).startswith("int4_g"):
        return None
    size = 0
    for name, layers in stage.spec.layer_counts.items():
        for ffn in stage.spec.blocks[name].ffns:
            if experts := getattr(ffn, "experts", 0):
                inputs: int = (ffn.expert_hidden_size or model.hidden_size) + ffn.intermediate_size  # type: ignore[attr-defined]
                size += layers * experts * inputs * 2 * 4
    source = "int32 group indices and their order, kept beside the experts on ROCm; of compressed-tensors checkpoints"
    return Term("indices of 4-bit experts", "weights", size, 0, size, "modelled", source)
