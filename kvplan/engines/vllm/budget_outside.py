"""What vLLM's budget pays for outside torch: CUDA graphs, communication, cuBLAS, contexts.

The only figures here that were fitted rather than derived are the constants below; all hold for
every model. ``docs/accuracy.md`` says which logs they come from and how they do on the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.engines.base import Term
from kvplan.engines.vllm import budget_versions
from kvplan.engines.vllm.budget_activation import major
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from kvplan.engines.base import Settings, Stage
    from kvplan.spec.gpu import GpuSpec


GRAPH_BASE_BYTES = 80 * MIB
"""Of the first capture: the pool's first segments. From logs with few graphs (3 + 2: 0.09 GiB, 5: 0.13, 7: 0.17)."""
GRAPH_BYTES_PER_LAYER = 205 * 1024
"""Per layer and captured graph: kernel nodes and what the pool keeps. Median of six logs (142 to 280 KiB)."""

NCCL_BYTES = 1326 * MIB
"""Two communicators over NVLink, measured on two H200 (840 and 486 MiB), multicast off."""


HIP_GRAPHS = 6
"""Upper bound of the estimate on AMD devices, in multiples: 0.71 GiB (gfx1151) to 3.9 GiB (MI300X) were captured."""
PEER_BYTES = 235 * MIB
"""More per communicator and doubling of the ranks on NVLink: 1.84 GiB on four H100 against 1.38 on two H200 with
two communicators each (0.10.2)."""


class Level(NamedTuple):
    """Bytes outside torch that a deployment of one kind shows in logs."""

    typical: int
    low: int
    high: int


def _mib(typical: int, low: int, high: int) -> Level:
    return Level(typical * MIB, low * MIB, high * MIB)


BEFORE_SNAPSHOTS = _mib(660, 500, 900)
"""CUDA context (619 MiB measured) and cuBLAS handle (66): charged while there was no snapshot (0.8)."""
ALONE_OLD = _mib(20, 10, 150)
"""One GPU before compute capability 9.0: 0.02 to 0.03 GiB in the logs of 0.10 to 0.15."""
ALONE_NEW = _mib(133, 50, 250)
"""One GPU from 9.0 on: 0.13 GiB in the logs of 0.11."""
ALONE_LATER = _mib(150, 0, 320)
"""One GPU from 0.17 on: 0.13 to 0.16 GiB printed by 0.29 and 0.31, 0.0 to 0.22 left over in logs of 0.19 to 0.24."""
ALONE_SM12 = _mib(430, 200, 650)
"""One GPU of compute capability 12: 0.42 to 0.5 GiB in logs of 0.28 to 0.30."""
ALONE_AMD = _mib(594, 0, 2300)
"""One AMD GPU: what two logs call consumed, less weights and tables: 0.58 GiB (gfx1151, 0.27), 2.18 (MI300X, 0.29)."""
TOGETHER_OLD = _mib(143, 60, 500)
"""Several GPUs before 9.0 or without NVLink, snapshot before NCCL (up to 0.10): 0.14 GiB (over two nodes, which are
not modelled, 1.0)."""
TOGETHER_NVLINK_OLD = Level(NCCL_BYTES + 80 * MIB, 900 * MIB, NCCL_BYTES + 600 * MIB)
"""The same on NVLink from 9.0 on: 1.38 GiB printed by 0.10.2 on two H200."""
TOGETHER = _mib(553, 250, 1100)
"""Several GPUs from 0.11 on: one communicator still opens late; 0.54 and 0.55 GiB."""


def outside_level(settings: Settings, gpu: GpuSpec) -> tuple[Level, str]:
    """(bytes outside torch, where the figure comes from)."""
    version, new = budget_versions.version_of(settings), major(gpu) >= 9
    together = settings.tensor_parallel_size > 1 or settings.pipeline_parallel_size > 1
    pairs = gpu.interconnect_bridge and settings.tensor_parallel_size > 2  # the others are reached over PCIe
    nvlink = gpu.interconnect == "nvlink" and not pairs
    if version < budget_versions.SNAPSHOT_FIRST:
        base = BEFORE_SNAPSHOTS
        more = NCCL_BYTES if together and nvlink and new else TOGETHER_OLD.typical if together else 0
        level = Level(base.typical + more, base.low + more // 2, base.high + more)
        return level, "context and NCCL count: no snapshot before vLLM 0.9"
    if not together:
        if gpu.vendor == "amd":
            return ALONE_AMD, "logs of vLLM 0.27 and 0.29 on two AMD devices"
        if major(gpu) == 12 and version >= budget_versions.SNAPSHOT_AFTER_NCCL:
            return ALONE_SM12, "logs of vLLM 0.28 to 0.30 on single RTX 5090"
        if version >= budget_versions.COLD_COMPILE:
            return ALONE_LATER, "logs of vLLM 0.19 to 0.31 on single GPUs"
        if new:
            return ALONE_NEW, "logs of vLLM 0.11 on single H100"
        return ALONE_OLD, "logs of vLLM 0.10 to 0.15 on single A100, A6000 and RTX 3090"
    doublings = max(0, settings.tensor_parallel_size.bit_length() - 2) if new and nvlink else 0
    if version < budget_versions.SNAPSHOT_AFTER_NCCL:
        if new and nvlink:
            why = "NCCL measured on two H200; the snapshot came before it until vLLM 0.11"
            return _more(TOGETHER_NVLINK_OLD, 2 * doublings * PEER_BYTES), why
        return TOGETHER_OLD, "logs of vLLM 0.10.1 on two A100"
    if gpu.vendor == "amd":
        level = Level(*(one + two for one, two in zip(TOGETHER, ALONE_AMD, strict=True)))
        return level, "logs of two AMD devices, and a communicator as on two H100"
    why = "logs of vLLM 0.11 on two H100: a communicator opens after the snapshot"
    return _more(TOGETHER, doublings * PEER_BYTES), why


def _more(level: Level, size: int) -> Level:
    """A level with more peers."""
    return Level(level.typical + size, level.low, level.high + 2 * size)


def outside_term(settings: Settings, gpu: GpuSpec) -> Term:
    """Memory outside torch that appears after the snapshot."""
    level, source = outside_level(settings, gpu)
    return Term("outside torch", "runtime", level.typical, level.low, level.high, "modelled", source)


def capture_sizes(settings: Settings, gpu: GpuSpec, drafts: int = 0) -> list[int]:
    """Batch sizes whose graphs are captured, in tokens.

    1, 2, 4, then by 8 up to 256 and by 16 above (by 8 throughout until 0.11.0), up to twice the most
    sequences, 512 at most (1,024 on compute capability 10.x), and never above the tokens of a step.
    ``--performance-mode interactivity``: 1 to 32 each. Later releases add the tokens of a step itself, and the
    batches that decode with all their drafts; an asked ceiling adds none of the latter.
    Source: vLLM ``vllm/config/vllm.py``, ``_set_cudagraph_sizes`` (0.11.0: ``vllm/config/__init__.py``).
    """
    release, seqs = budget_versions.version_of(settings), settings.max_num_seqs or 0
    asked = settings.extra.get("max_cudagraph_capture_size")
    each = 1 + (drafts if release >= budget_versions.DRAFTS_WIDEN_GRAPHS else 0)
    limit = 1024 if major(gpu) == 10 and release >= budget_versions.WIDER_GRAPHS else 512
    given = asked if isinstance(asked, int) and asked > 0 else None
    ceiling = given or min(2 * seqs * each, limit)
    tokens = settings.max_num_batched_tokens or ceiling
    top = max(1, min(ceiling, tokens))
    single = settings.extra.get("performance_mode") == "interactivity" and release >= budget_versions.SINGLE_GRAPHS
    found = _ladder(top, release, single)
    if release < budget_versions.FINE_GRAPH_SIZES:  # these are captured whatever the ceiling
        found |= {size for size in (1, 2, 4) if size <= tokens}
    if tokens <= ceiling and release >= budget_versions.STEP_GRAPHS:
        found.add(tokens)
    if not given and drafts and release >= budget_versions.DRAFT_GRAPHS:
        most = min(seqs, limit)
        found |= {n * each for n in (*_ladder(most, release), most) if n * each <= top}
    elif not given and release >= budget_versions.FULL_BATCH_GRAPHS and seqs <= top:
        found.add(seqs)
    return sorted(found)


def _ladder(top: int, release: budget_versions.Version, single: bool = False) -> set[int]:
    """1, 2, 4 (or each up to 32) and the steps above, up to `top`."""
    step = 16 if release >= budget_versions.FINE_GRAPH_SIZES else 8
    small = range(1, 33) if single else (1, 2, 4)
    return {size for size in (*small, *range(8, min(top + 1, 256), 8), *range(256, top + 1, step)) if size <= top}


def graph_count(settings: Settings, gpu: GpuSpec, drafts: int = 0) -> int:
    """Graphs captured: one a size, and one more for each size that a decode batch can have."""
    sizes = capture_sizes(settings, gpu, drafts)
    full = len([s for s in sizes if s <= (settings.max_num_seqs or 0) * (1 + drafts)])
    return len(sizes) + (full if budget_versions.version_of(settings) >= budget_versions.GRAPH_MODES else 0)


def graph_term(stage: Stage, settings: Settings, gpu: GpuSpec, runner: int, drafts: int) -> Term:
    """The estimate of CUDA graph memory that vLLM takes off the budget before it sizes the cache."""
    if settings.enforce_eager:
        return Term("CUDA graphs", "cuda_graph", 0, 0, 0, "exact", "eager mode captures none")
    count = graph_count(settings, gpu, drafts)
    size = GRAPH_BASE_BYTES + GRAPH_BYTES_PER_LAYER * stage.spec.num_layers * count
    if not budget_versions.graphs_charged(settings, gpu, runner):
        why = (
            f"not charged by {settings.engine_version} (V{runner} runner): "
            f"about {size / GIB:.2f} GiB come out of the share withheld"
        )
        return Term("CUDA graphs", "cuda_graph", 0, 0, 0, "exact", why)
    source = (
        f"{count} graphs of {stage.spec.num_layers} layers, V{runner} runner; fitted to six logs, "
        "whose estimates differ by a factor of 2"
    )
    low, high = size * 3 // 5, size * 8 // 5 + 64 * MIB
    if gpu.vendor == "amd":
        high = HIP_GRAPHS * size
    return Term("CUDA graphs", "cuda_graph", size, low, high, "modelled", source)
