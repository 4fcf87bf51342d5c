"""Arithmetic alone: no engine's paging, no engine's overhead. The yardstick the others are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.cache.bytes import KvFormats, bytes_per_token, longest_sequence, prefix_bytes, sequence_bytes
from kvplan.engines.base import ARRAY_SETTINGS, Engine, Pool, Settings, Stage
from kvplan.engines.common import balanced_split, check_context_parallel, plain_formats
from kvplan.spec.arrays import Number, ceiling, choose, filled, is_array, larger, least, quotient, ratio, smaller

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec


class Generic(Engine):
    """The formula and nothing else: all memory that the weights leave is cache, rounded nowhere."""

    name = "generic"
    known_kinds = None
    version = "1"
    summary = "arithmetic alone: no paging, no activations, no overhead"
    alike_by_generation = True
    policies = (("budget", "all that the weights leave"), ("cache", "bytes of the tokens, rounded nowhere"))
    smaller_kv_formats = ("fp8", "nvfp4")
    array_settings = ARRAY_SETTINGS
    settings = frozenset({"gpu_memory_utilization", "mamba_ssm_cache_dtype"})

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        return {"gpu_memory_utilization": (1.0, "generic: all of the device")}

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        check_context_parallel(model, settings)
        return []

    def split_layers(self, num_layers: int, settings: Settings) -> list[int]:
        return balanced_split(num_layers, settings.pipeline_parallel_size)

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        return plain_formats(model, settings)

    def budget_bytes(self, total_bytes: int, settings: Settings) -> Number:
        return smaller(total_bytes, ceiling(total_bytes * settings.gpu_memory_utilization))

    def request_bytes(self, stage: Stage, settings: Settings, tokens: Number) -> Number:
        formats = self.kv_formats(stage.spec, settings)
        return sequence_bytes(stage.spec, tokens, formats, dcp=settings.decode_context_parallel_size)

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[Number, ...]) -> Pool:
        dcp, longest = settings.decode_context_parallel_size, settings.max_model_len
        tokens, singles, concurrency = [], [], []
        for stage, have in zip(stages, kv_bytes, strict=True):
            formats = self.kv_formats(stage.spec, settings)
            singles.append(filled(longest_sequence(stage.spec, have, formats, dcp=dcp), longest))
            slope = bytes_per_token(stage.spec, formats, dcp=dcp)
            plain = slope > 0 and sequence_bytes(stage.spec, longest, formats) == slope * dcp * longest
            tokens.append(choose(plain, have // slope if slope else None, None))
            need = self.request_bytes(stage, settings, longest)
            concurrency.append(ratio(have, need, settings.concurrency_per_replica * 1.0))
        kv_tokens = None if any(t is None for t in tokens) else least(tokens)
        requests = larger(0.0, least(concurrency))
        used = tuple(larger(0, b) for b in kv_bytes)
        return Pool(None, None, kv_tokens, None, requests, least(singles), requests >= 1, used)

    def requests_at(
        self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[Number, ...], tokens: Number
    ) -> Number:
        counts = []
        for stage, have in zip(stages, kv_bytes, strict=True):
            need = self.request_bytes(stage, settings, tokens)
            counts.append(quotient(larger(0, have), need, settings.concurrency_per_replica))
        return least(counts)

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[Number, ...]) -> Any:
        running, dcp = settings.concurrency_per_replica, settings.decode_context_parallel_size
        held = True
        for stage, have in zip(stages, kv_bytes, strict=True):
            need = running * self.request_bytes(stage, settings, settings.request_tokens)
            shared = self.shared_prefix_tokens(stage.spec, settings)
            if is_array(shared) or shared:
                formats = self.kv_formats(stage.spec, settings)
                need = need - (running - 1) * prefix_bytes(stage.spec, shared, formats, dcp=dcp)
            held = held & (need <= have)
        return held

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> Number:
        return smaller(settings.shared_prefix_tokens, settings.prompt_tokens)
