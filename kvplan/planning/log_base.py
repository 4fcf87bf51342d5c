"""A plan that starts from what a log measured: the bytes that an engine left for the cache, and its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.log_table import LOCAL
from kvplan.errors import InputError
from kvplan.planning.log_case import NAME_THE_MODEL, Deployment, deployment, weights_open
from kvplan.planning.planner import plan_deployment
from kvplan.planning.settings import SERVICE
from kvplan.units import GIB, gib

if TYPE_CHECKING:
    from kvplan.planning.plan import Plan
    from kvplan.sources.logs import Log
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

FREE = SERVICE | frozenset(
    {
        "concurrency", "prompt_tokens", "output_tokens", "shared_prefix_tokens", "max_model_len", "block_size",
        "kv_cache_dtype", "num_gpu_blocks_override", "enable_prefix_caching", "force_prefix_caching", "gpus",
        "mamba_ssm_cache_dtype", "mamba_cache_dtype", "mamba_cache_mode", "disable_hybrid_kv_cache_manager",
        "page_size",
        "swa_full_tokens_ratio", "mamba_full_memory_ratio", "tokens_per_block", "calibration", "data_parallel_size",
    }
)  # fmt: skip
"""Settings that change what the bytes hold, not how many there are."""


class Base(NamedTuple):
    """What a plan takes from a log."""

    found: Deployment
    """With the measured bytes among its settings."""
    bounds: tuple[int, int] | None
    """Low and high of the bytes where a change moved them; None: they are as measured."""
    measured_bytes: int | None
    """Per GPU, as printed; None where the engine takes no budget."""
    line: int | None


def measured_base(
    log: Log, *, name: str, model: ModelSpec | None, gpu: GpuSpec | None, engine: str | None, given: dict[str, Any]
) -> Base:
    """The deployment of a log with the user's changes, and the bytes it measured as its budget.

    Where a change moves the budget (another layout, batch or share of the device), the measured bytes move by what the
    model says of both deployments: what it gets wrong for the one it mostly gets wrong for the other.

    Raises:
        InputError: the log names no model that is known, or prints no bytes of the cache.
    """
    found = deployment(log, name=name, model=model, gpu=gpu, engine=engine, given=given)
    if found.model is None:
        raise InputError(
            next(text for text in found.warnings if NAME_THE_MODEL in text).partition(";")[0],
            where="--from-log",
            hint="name the model: kvplan plan MODEL --from-log FILE",
        )
    if log.engine in LOCAL:
        if weights_open(log, found.model, found.settings):
            raise InputError(
                f"does not say how {found.model.id} is stored (no file type line), and its weights decide what is left",
                where=name,
                hint="add --weights q4_k_m (its quantization), or plan the .gguf file with --from-log",
            )
        return Base(found, None, None, None)
    kv = log.figure("kv")
    if kv is None or kv.value <= 0:
        raise InputError(
            "does not say how many bytes were left for the cache", where=name, hint="the log of a start that worked"
        )
    if "kv_cache_memory_bytes" in given:
        return Base(found, None, int(kv.value), kv.line)
    before = deployment(log, name=name, model=found.model, gpu=found.gpu, engine=None, given={})
    moved, note, band = _moved(before, found, given, _others(log, before, int(kv.value)))
    size = int(kv.value) + moved
    if size <= 0:
        raise InputError(
            f"of the {gib(kv.value)} that were left, {gib(-moved)} go to what was changed", where="--from-log",
            hint="change less, or plan without the log",
        )  # fmt: skip
    basis = "modelled" if moved else "measured"
    bounds = (int(kv.value) + band[0], int(kv.value) + band[1]) if moved else None
    source = f"{basis}: {name}, line {kv.line}: {gib(kv.value)} per GPU{note}"
    settings = {**found.settings, "kv_cache_memory_bytes": size}
    origins = {**found.origins, "kv_cache_memory_bytes": source}
    warnings = list(found.warnings)
    if found.gpu is None and (changed := sorted(set(given) - FREE)):
        warnings.append(f"without --gpu the measured bytes do not follow what was changed ({', '.join(changed)})")
    return Base(found._replace(settings=settings, origins=origins, warnings=warnings), bounds, int(kv.value), kv.line)


def _others(log: Log, before: Deployment, kv_bytes: int) -> int | None:
    """Bytes of the logged budget that were neither weights nor cache: all that a smaller batch can free.

    None where neither the log nor the modelled deployment says.
    """
    budget, weights = log.figure("budget"), log.figure("weights")
    if before.gpu is None:
        return None
    assert before.model is not None  # the caller looked
    plan: Plan = plan_deployment(before.model, before.gpu, before.engine, before.settings)
    row = min(plan.memory or (), key=lambda r: r.kv_bytes)
    spent = int(weights.value) if weights else row.weights_bytes
    return max(0, (int(budget.value) if budget else row.budget_bytes) - spent - kv_bytes)


_SAME_REST = frozenset({"max_num_seqs", "max_num_batched_tokens", "enforce_eager", "max_cudagraph_capture_size"}) | FREE
"""Changes that leave weights and budget alone: they free at most what was neither weights nor cache."""


def _moved(
    before: Deployment, after: Deployment, given: dict[str, Any], others: int | None
) -> tuple[int, str, tuple[int, int]]:
    """(bytes by which the budget moves from one deployment to the other as modelled, how to say it, its bounds).

    The model errs for both deployments alike, so a bound of the move is what it moves by with every term at one and
    the same bound.
    """
    if after.gpu is None or (not set(given) - FREE and before.engine == after.engine):
        return 0, "", (0, 0)
    shifts = [b - a for a, b in zip(_available(before), _available(after), strict=True)]
    moved, band = shifts[0], (min(shifts), max(shifts))
    said = f" ({band[0] / GIB:+.2f} to {band[1] / GIB:+.2f})"
    if others is not None and moved > others and set(given) <= _SAME_REST:
        moved, band = others, (min(others, band[0]), others)
        return moved, f", moved by {moved / GIB:+.2f} GiB: all that the log leaves beside weights and cache", band
    note = f", moved by {moved / GIB:+.2f} GiB{said} as modelled for what was changed" if moved else ""
    return moved, note, band


def _available(found: Deployment) -> tuple[int, int, int]:
    """What the modelled budget leaves on the tightest rank: as planned, with all terms low, with all terms high."""
    assert found.model is not None  # the caller looked
    plan: Plan = plan_deployment(found.model, found.gpu, found.engine, found.settings)
    row = min(plan.memory or (), key=lambda r: r.budget_bytes - sum(t.bytes for t in r.terms))
    budget = row.budget_bytes
    return (
        budget - sum(t.bytes for t in row.terms),
        budget - sum(t.low_bytes for t in row.terms),
        budget - sum(t.high_bytes for t in row.terms),
    )
