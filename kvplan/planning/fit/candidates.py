"""What is tried: which engines run on a device, which formats it has units for, and which layouts divide a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cache.sharding import legal_sizes
from kvplan.engines import DEFAULT_ENGINE, distinct, get_engine
from kvplan.spec.ffn import MoeFfn
from kvplan.spec.formats import get_format

if TYPE_CHECKING:
    from kvplan.engines.base import Engine
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

USUAL = {"apple": "mlx"}
"""vendor -> the engine that is tried if none is asked for; the default engine elsewhere."""
SIZES = (1, 2, 4, 8)
"""Tensor parallel sizes and pipeline stages that are tried, as far as they divide the model."""
REPLICAS = (2, 4, 8, 16)
"""Data-parallel replicas that share the experts."""
MOST_RANKS = 64
"""Of one copy of the model."""


class Layout(NamedTuple):
    """How the GPUs of one copy of the model share it."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    expert_parallel: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp

    def settings(self) -> dict[str, Any]:
        """What differs from one GPU, as `plan_deployment` takes it."""
        sizes = {
            "tensor_parallel_size": self.tp, "pipeline_parallel_size": self.pp, "data_parallel_size": self.dp,
            "decode_context_parallel_size": self.dcp,
        }  # fmt: skip
        found: dict[str, Any] = {name: size for name, size in sizes.items() if size > 1}
        return found | ({"enable_expert_parallel": True} if self.expert_parallel else {})


_PINNED = {
    "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp",
    "decode_context_parallel_size": "dcp", "enable_expert_parallel": "expert_parallel",
}  # fmt: skip


def layouts(model: ModelSpec, engine: Engine, pinned: Mapping[str, Any]) -> list[Layout]:
    """The layouts that are tried, smallest first.

    Replicas of a dense model are copies, which `search` counts by itself; data parallelism is tried where replicas
    share experts.

    Args:
        pinned: settings, of which layout sizes stay as they are.
    """
    asked = {field: pinned[name] for name, field in _PINNED.items() if name in pinned}
    legal = [size for size in legal_sizes(model, max(SIZES)) if size in SIZES] if engine.splits_tensors else [1]
    tensor = [asked["tp"]] if "tp" in asked else legal
    stages = [asked["pp"]] if "pp" in asked else [pp for pp in SIZES if pp <= model.num_layers]
    found = dict.fromkeys(
        layout._replace(**asked)
        for tp in tensor
        for pp in stages
        if "pp" in asked or tp * pp <= max(SIZES) or tp == max(tensor)  # stages within a node, or of whole nodes
        for layout in _shared(model, engine, tp, pp, tp in (1, max(tensor)), asked)
    )
    return sorted((each for each in found if each.world <= MOST_RANKS or asked), key=lambda each: (each.world, each))


def _shared(
    model: ModelSpec, engine: Engine, tp: int, pp: int, outer: bool, asked: Mapping[str, Any]
) -> Iterator[Layout]:
    """Layouts of `tp` x `pp`: as they are, ranks that share tokens, replicas that share experts (GPUs or nodes)."""
    yield Layout(tp, pp)
    if not engine.splits_tensors or (pp > 1 and "pp" not in asked):
        return
    copies = tp // max(1, _heads(model))
    if copies > 1:  # what is asked for takes its place, and is one of them then
        yield Layout(tp, pp, dcp=copies)
    if has_experts(model) and "dp" not in asked and outer:
        for dp in REPLICAS:
            yield Layout(tp, pp, dp, expert_parallel=True)


def _heads(model: ModelSpec) -> int:
    """KV heads that ranks can share, in the layers that have most; latent rows are one."""
    return max((s.heads for _, m in model.mixers() for s in m.streams()), default=1)


def has_experts(model: ModelSpec) -> bool:
    """Whether any layer routes tokens."""
    return any(isinstance(ffn, MoeFfn) for name in model.layer_counts for ffn in model.blocks[name].ffns)


def engines_for(gpu: GpuSpec, asked: Sequence[str]) -> list[str]:
    """The engines that are tried on a device, with their versions as asked."""
    if not asked:
        return [USUAL.get(gpu.vendor, DEFAULT_ENGINE)]
    return [name for name in asked if runs_on(name, gpu)]


@lru_cache(maxsize=64)
def _engine(name: str) -> Engine:
    """An engine of which no version is asked; it is loaded once."""
    return get_engine(name.partition("@")[0])


def runs_on(engine: str, gpu: GpuSpec) -> bool:
    """Whether an engine has a backend for a device."""
    return _engine(engine).takes(gpu)


def serving() -> tuple[str, ...]:
    """All engines that run on some vendor's devices, so not plain arithmetic."""
    return tuple(name for name in distinct() if _engine(name).runs_on is not None)


def weight_formats(model: ModelSpec, engine: Engine, asked: Sequence[str]) -> list[str]:
    """``auto``, and the formats that the engine's advice would try where they are smaller; or those asked for."""
    if asked:
        return list(asked)
    own = model.checkpoint.format if model.checkpoint is not None else model.dtype
    most = get_format(own, use="weights").mean_bits(32, 128)
    smaller = [n for n in engine.smaller_weights if get_format(n, use="weights").mean_bits(32, 128) < 0.9 * most]
    return ["auto", *smaller]


def cache_formats(engine: Engine, asked: Sequence[str]) -> list[str]:
    """``auto``, and the mildest smaller format that the engine has; or those asked for."""
    return list(asked) or ["auto", *engine.smaller_kv_formats[:1]]


def lacks(engine: str, gpu: GpuSpec, name: str, *, cache: bool = False, latent: bool = False) -> str:
    """Why a format that nobody asked for is not tried on a device; empty: it is.

    Args:
        cache: it is a format of the cache, not of weights.
        latent: the cache is of latent rows.
    """
    if name == "auto" or gpu.vendor == "apple":
        return ""
    fmt = get_format(name, use="cache" if cache else "weights")
    capability = float(gpu.compute_capability or 0) if gpu.vendor == "nvidia" else 0.0
    if fmt.units == "fp8" and not gpu.fp8_flops:
        least = _engine(engine).unpacks_fp8.get("latent" if latent and cache else "cache" if cache else "weights")
        return "" if least is not None and capability >= least else "no fp8 units"
    weight_only = not cache and fmt.units == "16" and fmt.mean_bits(32, 128) < 8
    if weight_only and 0 < capability < 7.5:
        return "no kernels for 4-bit weights"  # vLLM's AWQ begins with Turing (docs: supported hardware)
    return ""
