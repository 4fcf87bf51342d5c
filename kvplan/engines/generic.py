"""Arithmetic alone: no engine's paging, no engine's overhead. The yardstick the others are held against."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from kvplan.cache.bytes import KvFormats, bytes_per_token, longest_sequence, prefix_bytes, sequence_bytes
from kvplan.engines.base import Engine, Pool, Settings, Stage
from kvplan.spec.formats import get_format

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec


def plain_formats(model: ModelSpec, settings: Settings) -> KvFormats:
    """K and V in the chosen format, the index key like K, states in the model's dtype."""
    name = settings.kv_cache_dtype
    if name == "auto":
        declared = model.checkpoint.kv_cache_format if model.checkpoint else None
        name = declared or model.dtype
    key, _, value = name.partition(",")
    k = get_format(key, use="cache", where="--kv-cache-dtype")
    v = get_format(value or key, use="cache", where="--kv-cache-dtype")
    dtype_bytes = get_format(model.dtype).block_bytes
    ssm = settings.mamba_ssm_cache_dtype
    recurrent = dtype_bytes if ssm == "auto" else get_format(ssm, where="--mamba-ssm-cache-dtype").block_bytes
    return KvFormats(k, v, k, dtype_bytes, recurrent)


def balanced_split(num_layers: int, stages: int) -> list[int]:
    """Layers per stage, the remainder one each to the stages before the last, counted backwards.

    Source: vLLM 0.33.0 ``vllm/distributed/utils.py``, ``get_pp_indices``.
    """
    base, rest = divmod(num_layers, stages)
    counts = [base] * stages
    for i in range(rest):
        counts[-(i + 2)] += 1
    return counts


class Generic(Engine):
    """The formula and nothing else: all memory that the weights leave is cache, rounded nowhere."""

    name = "generic"
    version = "1"
    summary = "arithmetic alone: no paging, no activations, no overhead"
    smaller_kv_formats = ("fp8", "nvfp4")
    settings = frozenset({"gpu_memory_utilization", "mamba_ssm_cache_dtype"})

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        return {"gpu_memory_utilization": (1.0, "generic: all of the device")}

    def split_layers(self, num_layers: int, settings: Settings) -> list[int]:
        return balanced_split(num_layers, settings.pipeline_parallel_size)

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        return plain_formats(model, settings)

    def budget_bytes(self, total_bytes: int, settings: Settings) -> int:
        return min(total_bytes, ceil(total_bytes * settings.gpu_memory_utilization))

    def request_bytes(self, stage: Stage, settings: Settings, tokens: int) -> int:
        formats = self.kv_formats(stage.spec, settings)
        return int(sequence_bytes(stage.spec, tokens, formats, dcp=settings.decode_context_parallel_size))

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> Pool:
        dcp, longest = settings.decode_context_parallel_size, settings.max_model_len
        tokens: list[int | None] = []
        singles: list[int] = []
        concurrency: list[float] = []
        for stage, have in zip(stages, kv_bytes, strict=True):
            formats = self.kv_formats(stage.spec, settings)
            single = longest_sequence(stage.spec, have, formats, dcp=dcp)
            singles.append(longest if single is None else single)
            slope = bytes_per_token(stage.spec, formats, dcp=dcp)
            plain = slope and sequence_bytes(stage.spec, longest, formats) == slope * dcp * longest
            tokens.append(have // slope if plain else None)
            need = self.request_bytes(stage, settings, longest)
            concurrency.append(have / need if need else float(settings.concurrency_per_replica))
        known = [t for t in tokens if t is not None]
        kv_tokens = min(known) if len(known) == len(tokens) else None
        least = max(0.0, min(concurrency))
        return Pool(None, None, kv_tokens, None, least, min(singles), least >= 1, tuple(max(0, b) for b in kv_bytes))

    def requests_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        counts = []
        for stage, have in zip(stages, kv_bytes, strict=True):
            need = self.request_bytes(stage, settings, tokens)
            counts.append(max(0, have) // need if need else settings.concurrency_per_replica)
        return min(counts)

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> bool:
        running, dcp = settings.concurrency_per_replica, settings.decode_context_parallel_size
        for stage, have in zip(stages, kv_bytes, strict=True):
            need = running * self.request_bytes(stage, settings, settings.request_tokens)
            shared = self.shared_prefix_tokens(stage.spec, settings)
            if shared:
                formats = self.kv_formats(stage.spec, settings)
                need -= (running - 1) * prefix_bytes(stage.spec, shared, formats, dcp=dcp)
            if need > have:
                return False
        return True

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> int:
        return min(settings.shared_prefix_tokens, settings.prompt_tokens)
