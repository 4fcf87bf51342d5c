"""TensorRT-LLM 1.3, PyTorch backend: blocks of 32 tokens out of what weights and activations leave."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cache.bytes import KvFormats, stream_rows
from kvplan.cache.sharding import shard_model
from kvplan.engines.base import PLAIN_KINDS, Allocation, CachePool, Pool, Settings, Stage, Term
from kvplan.engines.common import (
    attention_weights_term,
    even_layers,
    experts_term,
    forward_term,
    index_format,
    no_context_parallel,
    plain_formats,
    share,
    whole_number,
)
from kvplan.engines.versions import VersionedEngine
from kvplan.errors import UnsupportedError
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

SOURCE = "TensorRT-LLM 1.3 KvCacheConfig"


class WindowPool(NamedTuple):
    """The layers of one attention window: they have a pool of blocks to themselves."""

    window: int | None
    """None: everything is kept."""
    k_bytes: int
    v_bytes: int
    """Per token, over the layers of a rank."""

    @property
    def token_bytes(self) -> int:
        return self.k_bytes + self.v_bytes


class TensorRtLlm(VersionedEngine):
    """The fraction is of free memory after a run at ``max_num_tokens``, so weights and activations come off first."""

    name = "tensorrt-llm"
    version = "1.3"
    versions = ("1.3",)
    summary = "blocks of 32 tokens; a share of what a trial run leaves free; equal pools per window"
    runs_on = only_on = frozenset({"nvidia"})
    least_capability = 8.0  # TensorRT-LLM docs, support matrix: Ampere and newer
    policies = (
        ("budget", "what a trial run of max_num_tokens leaves of the device, x free_gpu_memory_fraction"),
        ("cache", "blocks of 32 tokens; the fewest of any rank count"),
        ("windows", "a pool for each window, bytes in equal shares"),
        ("start", "any pool that is not empty; max_seq_len shrinks to it with a warning"),
    )
    known_kinds = PLAIN_KINDS | {"mla"}
    smaller_kv_formats = ("fp8", "nvfp4")
    settings = frozenset(
        {
            "free_gpu_memory_fraction",
            "tokens_per_block",
            "max_num_seqs",
            "max_num_batched_tokens",
            "attn_dp_size",
            "max_total_tokens",
        }
    )

    def __init__(self, version: str | None = None) -> None:
        super().__init__(version)
        self._model: ModelSpec | None = None
        """The whole model, which attention DP does not divide."""

    def longest_context(self, model: ModelSpec) -> int | None:
        """What the file states, times the factor of rules other than those whose files count it already.

        Source: ``tensorrt_llm/_torch/models/modeling_utils.py``, ``infer_max_seq_len``.
        """
        length, rope = model.stated_positions or model.max_position_embeddings, model.rope
        if not length or not rope or rope.get("type") in ("su", "longrope", "llama3", "yarn"):
            return length
        return int(length * (rope.get("factor") or 1))

    def default_context(self, model: ModelSpec) -> int | None:
        return model.stated_positions or model.max_position_embeddings

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        self._model = model
        return {
            "free_gpu_memory_fraction": (0.9, SOURCE),
            "tokens_per_block": (32, SOURCE),
            "max_num_batched_tokens": (8192, "TensorRT-LLM 1.3 max_num_tokens"),
            "max_num_seqs": (2048, "TensorRT-LLM 1.3 max_batch_size"),
        }

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        no_context_parallel(settings)
        tp, dp = settings.tensor_parallel_size, whole_number(settings, "attn_dp_size", 1)
        if dp not in (1, tp):
            raise UnsupportedError(
                f"attention DP is over all {tp} tensor-parallel ranks",
                where="--attn-dp-size",
                hint=f"type --attn-dp-size {tp}",
            )
        per_block = whole_number(settings, "tokens_per_block", 32)
        if per_block & (per_block - 1):
            near = 1 << (per_block.bit_length() - 1)
            raise UnsupportedError(
                f"tokens_per_block is a power of two, not {per_block}",
                where="--tokens-per-block",
                hint=f"type --tokens-per-block {near}",
            )
        self._fraction(settings)
        self._check_cache(model, settings, gpu)
        warnings: list[str] = []
        if self._cut(model, settings):
            warnings.append(f"TensorRT-LLM lowers max_seq_len to the model's {self.longest_context(model):,} tokens")
        if any(s.role == "index" for _, m in model.mixers() for s in m.streams()):
            warnings.append(
                "the pool of sparse-attention index keys is taken to hold 132 B per token and layer; not verified"
            )
        return warnings

    @staticmethod
    def _check_cache(model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> None:
        """``auto``, fp8 from compute capability 8.9 on and nvfp4 from 10 on (``KvCacheConfig.dtype``).

        Raises:
            UnsupportedError: another format, or one that the device has no kernels for.
        """
        if settings.kv_cache_dtype == "auto":
            return
        formats = plain_formats(model, settings)
        name, where = formats.k.name, "--kv-cache-dtype"
        if formats.v.name != name:
            raise UnsupportedError("TensorRT-LLM stores K and V in one format", where=where, hint=f"type {where} fp8")
        if name not in ("fp8_e4m3", "nvfp4", model.dtype):
            raise UnsupportedError(
                f"TensorRT-LLM 1.3 has no cache in {name} (it has auto, fp8, nvfp4)", where=where,
                hint=f"type {where} {'auto' if name in ('bf16', 'fp16', 'fp32') else 'fp8'}",
            )  # fmt: skip
        need = {"fp8_e4m3": 8.9, "nvfp4": 10.0}.get(name, 0.0)
        have = gpu.compute_capability if gpu is not None and gpu.vendor == "nvidia" else None
        if have and float(have) < need:
            near = "fp8" if float(have) >= 8.9 else "auto"
            raise UnsupportedError(
                f"TensorRT-LLM keeps a cache in {name} on compute capability {need:g} and above, not {have}",
                where=where, hint=f"type {where} {near}",
            )  # fmt: skip

    def sharing_layouts(self, settings: Settings, ranks: int) -> list[tuple[str, dict[str, Any]]]:
        return [(f"--attn-dp-size {ranks}", {"extra": {**settings.extra, "attn_dp_size": ranks}})]

    def split_layers(self, num_layers: int, settings: Settings) -> list[int]:
        """The first ranks get one layer more (TensorRT-LLM ``tensorrt_llm/mapping.py``)."""
        return even_layers(num_layers, settings.pipeline_parallel_size)

    def vocab_rows(self, vocab_size: int, tp: int) -> int:
        return -(-vocab_size // tp)

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        plain = plain_formats(model, settings)
        return plain._replace(index_key=index_format("128 values in fp8 and one fp32 scale"))

    @staticmethod
    def _fraction(settings: Settings) -> float:
        return share(settings.extra.get("free_gpu_memory_fraction", 0.9), "free_gpu_memory_fraction")

    def budget_bytes(self, total_bytes: int, settings: Settings) -> int:
        return total_bytes

    def terms(self, stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> list[Term]:
        """The peak of the trial run, what lies outside torch, and the share of the rest that stays free."""
        batched, seqs = settings.max_num_batched_tokens or 8192, settings.max_num_seqs or 2048
        found = [forward_term(stage, model, batched, min(batched, seqs), "max_num_tokens")]
        experts = experts_term(stage, model, batched)
        found += [experts] if experts is not None else []
        many = settings.tensor_parallel_size * settings.pipeline_parallel_size > 1
        low, middle, high = (GIB, 2 * GIB, 4 * GIB) if many else (400 * MIB, GIB, 2 * GIB)
        found.append(
            Term(
                "outside torch",
                "runtime",
                middle,
                low,
                high,
                "modelled",
                "context, workspaces, communication; not fitted",
            )
        )
        dp = whole_number(settings, "attn_dp_size", 1)
        if dp > 1:
            found.append(attention_weights_term(stage, model, dp))
        if settings.kv_cache_memory_bytes is None:
            part = 1 - self._fraction(settings)
            spent, low, high = (stage.weights_bytes + sum(t[i] for t in found) for i in (2, 4, 3))  # type: ignore[misc]
            kept = [max(0, round((gpu.device_bytes - b) * part)) for b in (spent, low, high)]
            name = "left free by free_gpu_memory_fraction"
            found.append(
                Term(name, "runtime", kept[0], kept[1], kept[2], "modelled", f"{part:.2g} of what the others leave")
            )
        return found

    def window_pools(self, spec: ModelSpec, settings: Settings) -> list[WindowPool]:
        """Layers by window, in order of first appearance."""
        formats = self.kv_formats(spec, settings)
        found: dict[int | None, WindowPool] = {}
        for layers, mixer in spec.mixers():
            for stream, size, _ in stream_rows(mixer, formats):
                window = stream.window if stream.window and stream.window < settings.max_model_len else None
                have = found.get(window, WindowPool(window, 0, 0))
                k, v = (0, layers * size) if stream.role == "v" else (layers * size, 0)
                found[window] = WindowPool(window, have.k_bytes + k, have.v_bytes + v)
        return list(found.values())

    def _rank_model(self, stage: Stage, settings: Settings) -> ModelSpec:
        if whole_number(settings, "attn_dp_size", 1) == 1 or self._model is None:
            return stage.spec
        return replace(self._model, layers=stage.spec.layers, draft_layers=())

    def _blocks(self, spec: ModelSpec, settings: Settings, have: int) -> list[tuple[WindowPool, int]]:
        """(pool, blocks): bytes in equal shares, a pool each. ``max_tokens`` limits the bytes of all of them together.

        Source: ``tensorrt_llm/_torch/pyexecutor/_util.py``, ``configure_kv_cache_capacity``: max_tokens times the bytes
        of a token over all layers; ``resource_manager.py``, ``calculate_max_num_blocks_for_vswa``: ignored there.
        """
        pools, size = self.window_pools(spec, settings), whole_number(settings, "tokens_per_block", 32)
        if settings.extra.get("max_total_tokens") is not None:
            have = min(have, self._limit_bytes(pools, settings))
        share = max(0, have) // max(1, len(pools))
        return [(pool, share // pool.token_bytes // size) for pool in pools]

    @staticmethod
    def _limit_bytes(pools: list[WindowPool], settings: Settings) -> int:
        return sum(p.token_bytes for p in pools) * whole_number(settings, "max_total_tokens", 1)

    def _all_blocks(
        self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]
    ) -> list[tuple[WindowPool, int]]:
        """Every stage's pools; a window's blocks are the fewest that any rank has."""
        found = [
            self._blocks(self._rank_model(s, settings), settings, have)
            for s, have in zip(stages, kv_bytes, strict=True)
        ]
        least: dict[int | None, int] = {}
        for pool, blocks in (pair for stage in found for pair in stage):
            least[pool.window] = min(blocks, least.get(pool.window, blocks))
        return [(pool, least[pool.window]) for stage in found for pool, _ in stage]

    @staticmethod
    def _needed(pool: WindowPool, tokens: int, size: int) -> int:
        """Blocks of one request: all its tokens, or its window and a block more, since it may begin inside one."""
        whole = -(-tokens // size)
        return whole if pool.window is None else min(whole, -(-pool.window // size) + 1)

    def request_bytes(self, stage: Stage, settings: Settings, tokens: int) -> int:
        size = whole_number(settings, "tokens_per_block", 32)
        return sum(
            self._needed(p, tokens, size) * size * p.token_bytes
            for p in self.window_pools(self._rank_model(stage, settings), settings)
        )

    def start_bytes(self, stage: Stage, settings: Settings) -> int:
        """One block in every pool: longer requests than the pool holds shorten max_seq_len, with a warning."""
        pools, size = (
            self.window_pools(self._rank_model(stage, settings), settings),
            whole_number(settings, "tokens_per_block", 32),
        )
        return max((p.token_bytes for p in pools), default=0) * len(pools) * size

    def _cut(self, model: ModelSpec, settings: Settings) -> bool:
        """Whether max_seq_len is above the model's maximum, to which the engine lowers it with a warning.

        Source: ``tensorrt_llm/_torch/pyexecutor/model_engine.py``, ``_init_max_seq_len``.
        """
        return settings.max_model_len > (self.longest_context(model) or settings.max_model_len)

    def _concurrent(self, blocks: list[tuple[WindowPool, int]], size: int, tokens: int) -> float:
        return min((n / self._needed(p, tokens, size) for p, n in blocks), default=0.0)

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> Pool:
        size, dp = whole_number(settings, "tokens_per_block", 32), whole_number(settings, "attn_dp_size", 1)
        blocks = self._all_blocks(stages, settings, kv_bytes)
        full = [n for p, n in blocks if p.window is None]
        count = min(full or [n for _, n in blocks], default=0)
        used = []
        for stage in stages:
            mine = {p.window: p for p in self.window_pools(self._rank_model(stage, settings), settings)}
            least = {p.window: n for p, n in blocks}
            used.append(sum(least[w] * size * p.token_bytes for w, p in mine.items()))
        single, spec = count * size if full else settings.max_model_len, stages[0].spec
        at_once = dp * self._concurrent(blocks, size, settings.max_model_len)
        if self._cut(spec, settings):
            at_once, single = 0.0, min(single, self.longest_context(spec) or single)
        return Pool(
            block_size=size,
            num_blocks=count,
            kv_tokens=count * size,
            engine_reported_tokens=count * size,
            max_concurrency=at_once,
            max_single_request_tokens=single,
            starts=bool(blocks) and min(n for _, n in blocks) > 0,
            used_bytes=tuple(used),
        )

    def requests_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        held = self.held_at(stages, settings, kv_bytes, tokens)
        limit = settings.max_num_seqs
        return min(held, limit * whole_number(settings, "attn_dp_size", 1)) if limit else held

    def held_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        size, dp = whole_number(settings, "tokens_per_block", 32), whole_number(settings, "attn_dp_size", 1)
        if tokens > (self.longest_context(stages[0].spec) or tokens):
            return 0
        return dp * int(self._concurrent(self._all_blocks(stages, settings, kv_bytes), size, tokens))

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> bool:
        size, dp = whole_number(settings, "tokens_per_block", 32), whole_number(settings, "attn_dp_size", 1)
        running = -(-settings.concurrency_per_replica // dp)
        if settings.request_tokens > (self.longest_context(stages[0].spec) or settings.request_tokens):
            return False
        shared = self.shared_prefix_tokens(stages[0].spec, settings) // size
        for pool, blocks in self._all_blocks(stages, settings, kv_bytes):
            need = running * self._needed(pool, settings.request_tokens, size)
            if need - (running - 1) * (shared if pool.window is None else 0) > blocks:
                return False
        return True

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> int:
        """Whole blocks by reference (parts of a block are shared by copying them, which saves no memory)."""
        size = whole_number(settings, "tokens_per_block", 32)
        return min(settings.shared_prefix_tokens, settings.prompt_tokens - 1) // size * size

    def allocation(self, model: ModelSpec, settings: Settings) -> Allocation | None:
        """The pools of a rank where their bytes or tokens are given."""
        limit, have, size = (
            settings.extra.get("max_total_tokens"),
            settings.kv_cache_memory_bytes,
            whole_number(settings, "tokens_per_block", 32),
        )
        if limit is None and have is None:
            return None
        dp = whole_number(settings, "attn_dp_size", 1)
        spec = shard_model(model, tp=1 if dp > 1 else settings.tensor_parallel_size)
        pools = self.window_pools(spec, settings)
        if have is None:
            have = self._limit_bytes(pools, settings)
        found = []
        for pool, blocks in self._blocks(spec, settings, have):
            cells = blocks * size
            found.append(
                CachePool(
                    "full" if pool.window is None else "sliding",
                    cells,
                    blocks,
                    cells * pool.token_bytes,
                    cells * pool.k_bytes,
                    cells * pool.v_bytes,
                )
            )
        return Allocation.of(found)
