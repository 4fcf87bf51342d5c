"""Which release of vLLM profiles its memory how: sampler, runner, what is charged, what is kept.

Read in the wheels 0.8.5 to 0.33.0: ``vllm/v1/worker/gpu_worker.py`` (``determine_available_memory``),
``vllm/v1/worker/gpu_model_runner.py`` (V1 runner), ``vllm/v1/worker/gpu/`` (V2 runner),
``vllm/v1/sample/``, ``vllm/utils/mem_utils.py``. Which runner it is: `kvplan.engines.vllm.runner`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.engines.vllm.versions import Version as Version
from kvplan.engines.vllm.versions import parse

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.spec.gpu import GpuSpec

SNAPSHOT_FIRST: Version = (0, 9, 0)
"""From here on usage is compared with a snapshot that the CUDA context is in; before, all on the card counts."""
SNAPSHOT_AFTER_NCCL: Version = (0, 11, 0)
"""From here on the snapshot is taken after the communicators are made."""
GRAPHS_CHARGED: Version = (0, 20, 0)
"""``VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS`` is on from here (the log text says 0.21.0)."""
GRAPHS_CHARGED_V2: Version = (0, 29, 0)
"""The V2 runner estimates its graphs from here; before, its ``profile_cudagraph_memory`` returns 0."""
GRAPHS_CHARGED_ROCM: Version = (0, 26, 0)
"""The estimate runs on AMD devices from here."""
EXPERT_WORKSPACE_KEPT: Version = (0, 14, 0)
"""The expert kernels share one grow-only workspace that outlives the profile."""
CONSUMED_FROM_DEVICE: Version = (0, 27, 0)
"""From here what is gone from the device counts, torch's fragments included; before, torch's own peak."""
FRAGMENTS_RELEASED: Version = (0, 31, 0)
"""From here the profile runs under a split limit, so that large freed blocks go back to the device."""
COLD_COMPILE: Version = (0, 17, 0)
"""From here a start without a compile cache peaks at a copy of the embedding. Seen in logs of 0.28 (L4,
RTX 5090), 0.29 (the same start cold and warm) and 0.31 (A100); the allocation was not found in the source."""
DEEP_GEMM: Version = (0, 11, 0)
"""DeepGEMM runs fp8 experts by default from here (``VLLM_USE_DEEP_GEMM``)."""
GRAPH_MODES: Version = (0, 11, 0)
"""FULL graphs for decode besides the PIECEWISE ones."""
FINE_GRAPH_SIZES: Version = (0, 11, 1)
"""Up to 256 by 8 and above by 16 from here; before, by 8 throughout."""
DRAFTS_WIDEN_GRAPHS: Version = (0, 13, 0)
"""The ceiling counts the drafts of every sequence."""
SINGLE_GRAPHS: Version = (0, 17, 0)
"""``--performance-mode interactivity`` captures every size up to 32."""
STEP_GRAPHS: Version = (0, 20, 1)
"""The tokens of a step are captured as well, where the ceiling reaches them."""
WIDER_GRAPHS: Version = (0, 28, 0)
"""Up to 1,024 tokens on compute capability 10.x."""
DRAFT_GRAPHS: Version = (0, 29, 0)
"""Batches of sequences with all their drafts are captured beside the usual sizes."""
FULL_BATCH_GRAPHS: Version = (0, 31, 0)
"""The batch of all sequences is captured, without drafts too."""


class Sampler(NamedTuple):
    """What the profile's sampler holds at its peak."""

    path: str
    bytes_per_element: float
    """Per row and vocabulary element."""
    least_bytes_per_element: float
    """The same on the cheaper path where the version alone does not decide; else equal."""
    kept_rows: int
    """Rows of fp32 logits that stay allocated."""


SORT, SORT_FEW_ROWS, FEW_ROWS = 38.0, 50.4, 128
"""Logits in bf16 2, copy in fp32 4, sorted values 4, indices 8, scratch of the segmented sort 20 (32.4 under
`FEW_ROWS` rows). Measured on an H200 for six versions and three vocabularies."""
NO_SORT = 14.0
"""Logits 2, copy 4, masked logits 4, probabilities or noise 4: FlashInfer and Triton alike. Measured."""


def version_of(settings: Settings) -> Version:
    """The engine version as numbers."""
    return parse(settings.engine_version)


def sampler(settings: Settings, gpu: GpuSpec, which: int, rows: int) -> Sampler:
    """The sampler's path in the profile of this version."""
    version, multiprocessors = version_of(settings), gpu.sm_count or 128
    tp = settings.tensor_parallel_size
    if which == 2:
        if version >= (0, 33, 0):
            return Sampler("V2 runner, warm-up pass with top-k and top-p", NO_SORT, NO_SORT, 0)
        if version >= (0, 26, 0):
            gathered = 4.0 if tp > 1 else 2.0
            return Sampler("V2 runner, logits only", gathered, gathered, 0)
        return Sampler("V2 runner, fp32 copy", 6.0, 6.0, 0)
    sort = SORT if rows >= FEW_ROWS else SORT_FEW_ROWS
    if version <= (0, 11, 0):
        known = settings.extra.get("flashinfer_sampler")
        if known is True:
            return Sampler("FlashInfer", NO_SORT, NO_SORT, 0)
        return Sampler("sort", sort, sort if known is False else NO_SORT, 0)
    if version < (0, 17, 0):
        return Sampler("sort", sort, sort, 0)
    if rows < 8:
        return Sampler("sort of few rows", sort, NO_SORT if version >= (0, 21, 0) else sort, 0)
    path = "FlashInfer, Triton warmed" if version >= (0, 21, 0) and gpu.vendor == "nvidia" else "Triton"
    return Sampler(path, NO_SORT, NO_SORT, min(multiprocessors, rows))


def graphs_charged(settings: Settings, gpu: GpuSpec, which: int) -> bool:
    """Whether the estimate of graph memory is taken off the budget."""
    version = version_of(settings)
    if settings.enforce_eager or version < GRAPHS_CHARGED:
        return False
    if gpu.vendor != "nvidia" and version < GRAPHS_CHARGED_ROCM:
        return False
    return which == 1 or version >= GRAPHS_CHARGED_V2
