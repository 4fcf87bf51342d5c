"""ExLlamaV3 1.6: one pool of pages of 256 tokens, laid out whole at load; rings and states per slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.cache.bytes import KvFormats
from kvplan.cache.sharding import shard_model
from kvplan.engines.base import PLAIN_KINDS, Allocation, CachePool, Pool, Settings, Stage, Term
from kvplan.engines.common import (
    context_term,
    even_layers,
    forward_term,
    layers_over,
    maybe_number,
    no_context_parallel,
)
from kvplan.engines.rows import Rows, architecture_key, cache_rows
from kvplan.engines.versions import VersionedEngine
from kvplan.errors import InputError, UnsupportedError
from kvplan.spec.formats import Format, get_format

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

PAGE = 256
"""Tokens per page (exllamav3 1.6.5 ``exllamav3/constants.py``, ``PAGE_SIZE``)."""
SLOTS = 16
"""Sequences for which rings and states are laid out (``Cache(max_batch_size=16)``)."""
RING_MARGIN = 512
"""Tokens that a ring holds besides its window: two pages."""
RINGS = frozenset({"gemma4", "gptoss", "afmoe", "laguna", "step3p5", "step35", "mimov2", "mimov2flash"})
"""Architectures whose windowed layers keep a ring per slot; elsewhere windows are paged at full length.
Source: exllamav3 ``exllamav3/architecture/*.py``, those that build ``SlidingAttention``."""
GROUP = 32
"""Elements that share a scale of 16 bits (``exllamav3/cache/quant.py``)."""
HALF = 2


class ExLlamaV3(VersionedEngine):
    """The pool is shared by all jobs: its size is a total of tokens, not a length."""

    name = "exllamav3"
    version = "1.6.5"
    versions = ("1.6.5",)
    summary = "a fixed pool of pages of 256 tokens; K and V of 2 to 8 bits; rings and states per slot"
    runs_on = only_on = frozenset({"nvidia"})
    least_capability = 8.0  # its kernels copy asynchronously (cp.async), which began with Ampere
    policies = (
        ("budget", "none: a pool of --cache-tokens for all jobs together, laid out at load"),
        ("cache", "pages of 256 tokens"),
        ("windows", "a ring per slot in fp16, for listed architectures; else paged at full length"),
        ("states", "per slot, 16 of them"),
    )
    smaller_kv_formats = ("exl3_8", "exl3_6", "exl3_4")
    smaller_weights = ()
    """EXL3 files have any number of bits, and no format of the catalog."""
    fills_budget = False
    splits_tensors = False
    known_kinds = PLAIN_KINDS | {"mla", "gated_delta_net", "kda", "mamba2", "short_conv"}
    settings = frozenset({"cache_bits", "cache_tokens", "max_num_seqs"})

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        found: dict[str, tuple[Any, str]] = {
            "max_num_seqs": (SLOTS, "exllamav3 1.6.5 cache/cache.py, max_batch_size"),
            "block_size": (PAGE, "exllamav3: pages"),
        }
        if given.get("gpus") and not given.get("pipeline_parallel_size"):
            found["pipeline_parallel_size"] = layers_over(given)
        length = given.get("max_model_len") or model.max_position_embeddings
        if length and length > 0 and "kv_cache_memory_bytes" not in given:
            found["cache_tokens"] = (-(-length // PAGE) * PAGE, "max_model_len in whole pages")
        return found

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        no_context_parallel(settings)
        self.cache_bits(settings)
        self._refuse_unmodelled(model)
        tokens = self._tokens(settings)
        if tokens is not None and -(-settings.max_model_len // PAGE) * PAGE > tokens:
            raise UnsupportedError(
                f"a cache of {tokens:,} tokens never holds a request of {settings.max_model_len:,}",
                where="--cache-tokens",
                hint=f"type --cache-tokens {-(-settings.max_model_len // PAGE) * PAGE}, or a smaller --max-model-len",
            )
        warnings: list[str] = []
        rows = cache_rows(model)
        if self.cache_bits(settings) and any((r.k % GROUP or r.v % GROUP) for r in rows if r.kind != "mla"):
            raise UnsupportedError(
                f"K and V of {model.id} do not divide into groups of {GROUP}",
                where="--cache-bits",
                hint="leave --cache-bits out",
            )
        if architecture_key(model) not in RINGS and any(r.window for r in rows):
            warnings.append(f"exllamav3 pages the windowed layers of {model.id} at full length")
        return warnings

    @staticmethod
    def _refuse_unmodelled(model: ModelSpec) -> None:
        if any(r.index_key for r in cache_rows(model)):
            raise UnsupportedError(
                f"{model.id}: sparse-attention index caches of exllamav3 are not modelled",
                where="--engine exllamav3",
                hint="type --engine generic",
            )

    @staticmethod
    def _tokens(settings: Settings) -> int | None:
        """``--cache-tokens``; None: as many as the memory gives.

        Raises:
            InputError, UnsupportedError: not a number, or not whole pages.
        """
        tokens = maybe_number(settings, "cache_tokens")
        if tokens is None:
            return None
        if tokens % PAGE:
            near = max(PAGE, round(tokens / PAGE) * PAGE)
            raise UnsupportedError(
                f"the cache is a multiple of {PAGE} tokens, not {tokens:,}",
                where="--cache-tokens",
                hint=f"type --cache-tokens {near}",
            )
        return tokens

    @staticmethod
    def cache_bits(settings: Settings) -> tuple[int, int] | None:
        """(K bits, V bits); None: 16 bits.

        Raises:
            InputError, UnsupportedError: unreadable, or not 2 to 8.
        """
        text, flag = str(settings.extra.get("cache_bits", "")).strip().lower(), "--cache-bits"
        if not text and settings.kv_cache_dtype != "auto":
            flag = "--kv-cache-dtype"
            names = [get_format(n, use="cache", where=flag).name for n in settings.kv_cache_dtype.split(",")]
            if names[0] == "fp16" and names[-1] == "fp16":
                return None
            if any(not n.startswith("exl3_") for n in names):
                raise UnsupportedError(
                    f"exllamav3 stores fp16 or 2 to 8 bits, not {settings.kv_cache_dtype}",
                    where=flag,
                    hint="type --cache-bits 8",
                )
            text = ",".join(n.removeprefix("exl3_") for n in names)
        if text in ("", "16", "fp16", "16,16"):
            return None
        parts = text.split(",")
        if len(parts) > 2 or not all(p.strip().isdigit() and len(p.strip()) < 4 for p in parts):
            raise InputError("K or K,V in bits", where=flag, hint="type --cache-bits 8 or --cache-bits 8,4")
        k, v = int(parts[0]), int(parts[-1])
        for bits in (k, v):
            if not 2 <= bits <= 8:
                raise UnsupportedError(
                    f"a quantised cache has 2 to 8 bits, not {bits}",
                    where=flag,
                    hint=f"type --cache-bits {min(8, max(2, bits))}, or leave it out for fp16",
                )
        return k, v

    def length_flag(self, settings: Settings, length: int) -> tuple[str, str, dict[str, Any]]:
        """The pool follows the length, unless it was typed."""
        if "cache_tokens" in settings.defaults or "cache_tokens" not in settings.extra:
            return super().length_flag(settings, length)
        tokens = -(-length // PAGE) * PAGE
        return "--max-model-len", f"{length} --cache-tokens {tokens}", {"max_model_len": length, "cache_tokens": tokens}

    def smaller_caches(self, settings: Settings) -> list[tuple[str, str, dict[str, Any]]]:
        bits = [name.removeprefix("exl3_") for name in self.smaller_kv_formats]
        return [("--cache-bits", b, {"cache_bits": b}) for b in bits]

    def split_layers(self, num_layers: int, settings: Settings) -> list[int]:
        return even_layers(num_layers, settings.pipeline_parallel_size)

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        bits, half = self.cache_bits(settings), get_format("fp16")
        if bits is None:
            return KvFormats(half, half, half, HALF, 4, frozenset())
        k, v = get_format(f"exl3_{bits[0]}"), get_format(f"exl3_{bits[1]}")
        latent = next((m for _, m in model.mixers() if m.kind == "mla"), None)
        if latent is not None:
            rank, rope = latent.kv_lora_rank, latent.qk_rope_head_dim  # type: ignore[attr-defined]
            size = stored(rank, bits[0]) + rope * HALF
            k = Format(
                name=f"exl3_{bits[0]}_mla",
                block_elements=rank + rope,
                block_bytes=size,
                use="cache",
                source="exllamav3 1.6.5 cache/mla.py: the rotary key stays in 16 bits",
            )
        return KvFormats(k, v, half, HALF, 4, frozenset())

    def budget_bytes(self, total_bytes: int, settings: Settings) -> int:
        return total_bytes

    def terms(self, stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> list[Term]:
        """Activations of a chunk of 2,048 tokens, and the CUDA context."""
        return [forward_term(stage, model, 2048, settings.max_num_seqs or SLOTS, "one chunk"), context_term()]

    def paged(self, spec: ModelSpec) -> list[Rows]:
        """Layers whose K and V lie in pages."""
        rings = architecture_key(spec) in RINGS
        return [r for r in cache_rows(spec) if (r.k or r.v) and not (rings and r.window)]

    def token_bytes(self, spec: ModelSpec, settings: Settings) -> int:
        """Bytes of one token over all paged layers of a rank."""
        bits = self.cache_bits(settings)
        return sum(r.layers * sum(row_bytes(r, bits)) for r in self.paged(spec))

    def slot_pools(self, spec: ModelSpec, settings: Settings) -> list[CachePool]:
        """Rings and states, laid out for every slot."""
        slots, found = settings.max_num_seqs or SLOTS, []
        if architecture_key(spec) in RINGS:
            for row in (r for r in cache_rows(spec) if r.window):
                cells = slots * -(-((row.window or 0) + RING_MARGIN) // PAGE) * PAGE
                half = row.layers * cells * row.k * HALF
                found.append(CachePool("sliding", cells, None, 2 * half, half, half))
        for row in (r for r in cache_rows(spec) if r.has_state):
            conv = row.layers * slots * row.conv_channels * (row.conv_columns + 1) * HALF
            recurrent = row.layers * slots * row.recurrent * 4
            found.append(CachePool("recurrent", None, None, conv + recurrent, conv, recurrent))
        return found

    def _fitting(self, spec: ModelSpec, settings: Settings, have: int) -> int:
        """Tokens in whole pages that `have` bytes hold beside rings and states."""
        rest = have - sum(p.bytes for p in self.slot_pools(spec, settings))
        size = self.token_bytes(spec, settings)
        if not size:
            return settings.max_model_len if rest >= 0 else 0
        return max(0, rest) // (size * PAGE) * PAGE

    def _bytes(self, spec: ModelSpec, settings: Settings, tokens: int) -> int:
        return tokens * self.token_bytes(spec, settings) + sum(p.bytes for p in self.slot_pools(spec, settings))

    def _pool_tokens(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> int:
        tokens = self._tokens(settings)
        if tokens is not None:
            return tokens
        return min(self._fitting(s.spec, settings, have) for s, have in zip(stages, kv_bytes, strict=True))

    def request_bytes(self, stage: Stage, settings: Settings, tokens: int) -> int:
        slots = sum(p.bytes for p in self.slot_pools(stage.spec, settings)) // (settings.max_num_seqs or SLOTS)
        return -(-tokens // PAGE) * PAGE * self.token_bytes(stage.spec, settings) + slots

    def start_bytes(self, stage: Stage, settings: Settings) -> int:
        """The whole pool, which is laid out at load."""
        tokens = self._tokens(settings) or -(-settings.max_model_len // PAGE) * PAGE
        return self._bytes(stage.spec, settings, tokens)

    def start_words(self, settings: Settings) -> str:
        tokens = self._tokens(settings) or -(-settings.max_model_len // PAGE) * PAGE
        return f"the cache of {tokens:,} tokens (and what {settings.max_num_seqs or SLOTS:,} slots keep) needs"

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> Pool:
        tokens = self._pool_tokens(stages, settings, kv_bytes)
        used = tuple(self._bytes(s.spec, settings, tokens) for s in stages)
        lies = all(u <= have for u, have in zip(used, kv_bytes, strict=True))
        per_request = -(-settings.max_model_len // PAGE)
        concurrency = tokens // PAGE / per_request if lies else 0.0
        return Pool(
            block_size=PAGE,
            num_blocks=tokens // PAGE,
            kv_tokens=tokens if lies else 0,
            engine_reported_tokens=tokens,
            max_concurrency=concurrency,
            max_single_request_tokens=tokens,
            starts=lies and concurrency >= 1,
            used_bytes=used,
        )

    def requests_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        pool = self._pool_tokens(stages, settings, kv_bytes)
        if any(self._bytes(s.spec, settings, pool) > have for s, have in zip(stages, kv_bytes, strict=True)):
            return 0
        pages = pool // PAGE
        return min(settings.max_num_seqs or SLOTS, pages // -(-tokens // PAGE))

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> bool:
        running, pages = settings.concurrency_per_replica, self._pool_tokens(stages, settings, kv_bytes) // PAGE
        shared = self.shared_prefix_tokens(stages[0].spec, settings) // PAGE
        if running > (settings.max_num_seqs or SLOTS):
            return False  # the others wait for a slot
        return running * -(-settings.request_tokens // PAGE) - (running - 1) * shared <= pages

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> int:
        """Whole pages, which jobs share by reference; none where a layer keeps its state or ring per slot."""
        if self.slot_pools(model, settings):
            return 0
        return min(settings.shared_prefix_tokens, settings.prompt_tokens - 1) // PAGE * PAGE

    def allocation(self, model: ModelSpec, settings: Settings) -> Allocation | None:
        spec = shard_model(model, tp=settings.tensor_parallel_size)
        bits, tokens = self.cache_bits(settings), self._tokens(settings)
        if tokens is None and settings.kv_cache_memory_bytes is not None:
            tokens = self._fitting(spec, settings, settings.kv_cache_memory_bytes)
        if tokens is None:
            tokens = -(-settings.max_model_len // PAGE) * PAGE
        rows = self.paged(spec)
        k = sum(r.layers * row_bytes(r, bits)[0] for r in rows) * tokens
        v = sum(r.layers * row_bytes(r, bits)[1] for r in rows) * tokens
        pools = [CachePool("full", tokens, tokens // PAGE, k + v, k, v)] if rows else []
        pools += self.slot_pools(spec, settings)
        total = sum(p.bytes for p in pools)
        rebuilt = max((2 * r.k * HALF * tokens for r in rows if r.kind != "mla"), default=0) if bits else 0
        return Allocation.of(pools, peak_bytes=total + rebuilt if rebuilt else None)


def stored(elements: int, bits: int) -> int:
    """Bytes of `elements` of `bits` each with a scale of 16 bits per 32 of them."""
    return elements // GROUP * (4 * bits + 2)


def row_bytes(row: Rows, bits: tuple[int, int] | None) -> tuple[int, int]:
    """(K, V) bytes of one token in one paged layer. V is as wide as K; a rotary key stays in 16 bits.

    Source: exllamav3 ``exllamav3/cache/fp16.py``, ``CacheLayer_fp16``: one shape, KV heads x head size, for both.
    """
    if row.kind == "mla":
        return (stored(row.k, bits[0]) if bits else row.k * HALF), row.v * HALF
    if bits is None:
        return row.k * HALF, row.k * HALF
    return stored(row.k, bits[0]), stored(row.k, bits[1])
