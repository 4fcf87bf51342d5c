"""Arithmetic alone: no engine's paging, no engine's overhead. The yardstick the others are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.cache.bytes import KvFormats, bytes_per_token, longest_sequence, prefix_bytes, sequence_bytes
from kvplan.engines.base import ARRAY_SETTINGS, Engine, Pool, Settings, Stage
from kvplan.errors import UnsupportedError
from kvplan.spec.arrays import Number, ceiling, choose, filled, is_array, larger, least, quotient, ratio, smaller
from kvplan.spec.formats import element_bytes, get_format

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
    recurrent = dtype_bytes if ssm == "auto" else element_bytes(ssm, "--mamba-ssm-cache-dtype")
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


def check_context_parallel(model: ModelSpec, settings: Settings) -> None:
    """DCP splits tokens over the copies that tensor parallelism makes of a KV head; latent rows have tp copies.

    Source: vLLM 0.33.0 ``vllm/config/model.py``, ``verify_with_parallel_config``.

    Raises:
        UnsupportedError: a layer whose heads have fewer copies than ranks would share its tokens.
    """
    dcp, tp = settings.decode_context_parallel_size, settings.tensor_parallel_size
    where = "--decode-context-parallel-size"
    for _, mixer in model.mixers() if dcp > 1 else ():
        stream = next((s for s in mixer.streams() if s.role != "index" and s.window is None), None)
        if stream is None or stream.name == "latent" or stream.fixed_entries is not None:
            continue
        copies = tp // stream.heads if tp > stream.heads else 1
        if dcp > copies:
            raise UnsupportedError(
                f"decode context parallelism of {dcp} needs {dcp} copies of each KV head; tensor parallel size {tp} "
                f"over {stream.heads} KV heads makes {copies}",
                where=where,
                hint=f"type {where} {copies} or a larger --tensor-parallel-size",
            )


class Generic(Engine):
    """The formula and nothing else: all memory that the weights leave is cache, rounded nowhere."""

    name = "generic"
    version = "1"
    summary = "arithmetic alone: no paging, no activations, no overhead"
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
