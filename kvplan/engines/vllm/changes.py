"""What changed in vLLM from release to release: the rules of the conversion and of the budget in one list."""

from __future__ import annotations

from kvplan.engines.base import Change
from kvplan.engines.vllm import budget_versions as budget
from kvplan.engines.vllm import runner
from kvplan.engines.vllm.versions import CHANGES, Version

_WORKER = "vllm/v1/worker/gpu_worker.py"
_CONFIG = "vllm/config/vllm.py"

BUDGET: tuple[tuple[Version, str, str], ...] = (
    (budget.SNAPSHOT_FIRST, "usage is compared with a snapshot that the CUDA context is in", _WORKER),
    (budget.SNAPSHOT_AFTER_NCCL, "that snapshot is taken after the communicators are made", _WORKER),
    (budget.DEEP_GEMM, "DeepGEMM runs fp8 experts by default", "vllm/envs.py"),
    (budget.GRAPH_MODES, "graphs of whole decode steps besides the piecewise ones", "vllm/config/compilation.py"),
    (budget.FINE_GRAPH_SIZES, "graphs up to 256 by 8, above by 16 (before: by 8 throughout)", _CONFIG),
    (budget.EXPERT_WORKSPACE_KEPT, "the experts' workspace outlives the profile", "vllm/v1/worker/workspace.py"),
    (budget.COLD_COMPILE, "a start without a compile cache peaks at a copy of the embedding", "public logs"),
    (budget.GRAPHS_CHARGED, "the estimate of CUDA graphs comes off the budget", _WORKER),
    (runner.V2_FOR_DENSE, "the V2 runner is the default for dense models without states", _CONFIG),
    (budget.GRAPHS_CHARGED_ROCM, "graphs are estimated on AMD devices too", _WORKER),
    (budget.CONSUMED_FROM_DEVICE, "what is gone from the device counts (before: torch's own peak)", _WORKER),
    (budget.GRAPHS_CHARGED_V2, "the V2 runner estimates its graphs too", "vllm/v1/worker/gpu/model_runner.py"),
    (runner.V2_FOR_ALL, "the V2 runner is the default for every model", _CONFIG),
    (runner.EAGLE3_STAGES_IN_V2, "EAGLE-3 with pipeline stages runs under the V2 runner", _CONFIG),
    ((0, 31, 0), "draft models run under the V2 runner", _CONFIG),
    ((0, 32, 0), "n-gram drafts run under the V2 runner, still without scheduling ahead", _CONFIG),
    (runner.ASYNC_BY_RUNNER, "the V2 runner schedules ahead beside every method of drafting", _CONFIG),
    (budget.FRAGMENTS_RELEASED, "large freed blocks go back to the device before it is measured", _WORKER),
)
"""(release, what, source), of the terms that `kvplan.engines.vllm.budget` derives."""


def all_changes() -> list[Change]:
    """Every change, oldest first."""
    found = [(change.since, change.what, change.source) for change in CHANGES.values()]
    return [Change(".".join(map(str, since)), what, source) for since, what, source in sorted((*found, *BUDGET))]
