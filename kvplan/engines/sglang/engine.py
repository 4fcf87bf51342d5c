"""SGLang 0.5.23, and back to 0.4.9: tokens out of a static share of the device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.cache.bytes import KvFormats
from kvplan.cache.sharding import shard_model
from kvplan.engines.base import PLAIN_KINDS, Allocation, CachePool, Change, Pool, Settings, Stage, Term
from kvplan.engines.common import (
    balanced_split,
    checked,
    index_format,
    maybe_number,
    nearest_of,
    no_context_parallel,
    plain_formats,
    positive,
    vision_parameters,
    whole_number,
)
from kvplan.engines.common import share as as_share
from kvplan.engines.rows import architecture_key
from kvplan.engines.sglang import budget, fraction, requests
from kvplan.engines.sglang.flags_by_version import cache_type, check_length
from kvplan.engines.sglang.models import has_window_pool, held_window
from kvplan.engines.sglang.pools import PADDING_SLOT_SINCE, Cell, Pools, cell, held_bytes, least_bytes, pools_of
from kvplan.engines.versions import VersionedEngine
from kvplan.errors import UnsupportedError
from kvplan.spec.formats import element_bytes, get_format
from kvplan.units import MIB

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

RATIO, STATE_RATIO = 0.8, 0.9
FRACTION_INPUTS = ("chunked_prefill_size", "max_running_requests", "attn_dp_size")


class Sglang(VersionedEngine):
    """The share is of free memory before the weights are loaded; weights and all pools come out of it."""

    name = "sglang"
    version = "0.5.23"
    versions = ("0.4.9", "0.5.2", "0.5.6", "0.5.12", "0.5.14", "0.5.17", "0.5.20", "0.5.23")
    summary = "pages of one token out of a static share; own pools for windows and states"
    runs_on = frozenset({"nvidia", "amd", "intel", "google", "huawei"})
    least_capability = 7.5  # 0.4.9 to 0.5.23 srt/model_executor: "SGLang only supports sm75 and above."
    policies = (
        ("budget", "free memory before loading x mem_fraction_static, less weights; activations and graphs outside"),
        ("cache", "tokens in pages of one; the fewest tokens of any stage count"),
        ("windows", "a pool of 0.8 tokens for each full one, for listed architectures; else held at full length"),
        ("states", "slots out of a share of their own (0.9 bytes for each of the cache), three or more per request"),
        ("running", "without the radix tree the running requests asked for set state slots and the windowed pool"),
        ("start", "any pool that is not empty; a request longer than the pool is refused when it comes"),
    )
    smaller_kv_formats = ("fp8_e4m3",)
    sequences_flag = "--max-running-requests"
    known_kinds = PLAIN_KINDS | {
        "mla", "gated_delta_net", "kda", "mamba1", "mamba2", "lightning", "short_conv", "rwkv", "rg_lru",
    }  # fmt: skip
    sequence_needs = "every running request needs slots for its states"
    settings = frozenset(
        {
            "mem_fraction_static", "page_size", "chunked_prefill_size", "swa_full_tokens_ratio",
            "mamba_full_memory_ratio", "max_running_requests", "max_total_tokens", "max_mamba_cache_size",
            "attn_dp_size", "mamba_ssm_cache_dtype", "disable_radix_cache", "disable_overlap_schedule",
            "mamba_radix_cache_strategy", "allow_long_max_model_len",
        }
    )  # fmt: skip

    def __init__(self, version: str | None = None) -> None:
        super().__init__(version)
        self._model: ModelSpec | None = None
        """The whole model, which DP attention divides otherwise than the ranks of a stage are divided."""

    def changes(self) -> list[Change]:
        memory, pools = "srt/server_args.py", "srt/mem_cache/kv_cache_configurator.py"
        hook = "srt/arg_groups/memory_hook.py"
        capped = "without the radix tree running requests set the windowed pool (before: the ratio)"
        graphs = "the share leaves room for prefill graphs, 1.5 GiB of them with latent attention"
        cards = "cards of 20 to 35 GiB: chunks of 4,096 (before: 2,048), larger graphs"
        return [
            Change(fraction.FORMULA_SINCE, "the default share by a formula (before: by class of card)", memory),
            Change(fraction.PREFILL_GRAPHS_SINCE, graphs, memory),
            Change(requests.REQUEST_CAP_SINCE, capped, "srt/model_executor/pool_configurator.py"),
            Change(
                requests.TRACKING_SINCE, "states are tracked while decoding: five slots a request, not three", memory
            ),
            Change(PADDING_SLOT_SINCE, "the state slot for dummy writes is charged to the pools", pools),
            Change(fraction.LARGE_SMALL_CARDS_SINCE, cards, hook),
            Change(fraction.RUNNING_LIMITS_GRAPHS_SINCE, "fewer running requests: smaller decode graphs", hook),
        ]

    def longest_context(self, model: ModelSpec) -> int | None:
        from kvplan.engines.model_changes import factor_context

        return factor_context(model)

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        self._model = model
        source = f"SGLang {self.version} srt/server_args.py"
        found: dict[str, tuple[Any, str]] = {"page_size": (1, source)}
        if (length := self.longest_context(model)) and length != model.max_position_embeddings:
            found["max_model_len"] = (length, f"SGLang {self.version} srt/configs/model_config.py, get_context_length")
        if any(m.states() for _, m in model.mixers()):
            found["mamba_full_memory_ratio"] = (STATE_RATIO, source)
        if self._window_pool(model):
            found["swa_full_tokens_ratio"] = (RATIO, source)
        if gpu is None and given.get("disable_radix_cache"):
            chunk = fraction.chunk_default(requests.ASSUMED_MIB, self.version)
            found["chunked_prefill_size"] = (chunk, f"{source}, as on a card of {requests.ASSUMED_MIB:,} MiB")
        if gpu is not None:
            mib = (gpu.nvml_total_bytes or gpu.device_bytes) // MIB
            asked = {n: checked(given[n], n) for n in FRACTION_INPUTS if given.get(n) is not None}
            chunk = asked.get("chunked_prefill_size") or fraction.chunk_default(mib, self.version)
            found["chunked_prefill_size"] = (chunk, f"{source}, on a card of {mib:,} MiB")
            reserved = fraction.reserved_mib(
                mib,
                version=self.version,
                tp=given.get("tensor_parallel_size", 1),
                pp=given.get("pipeline_parallel_size", 1),
                chunk=chunk,
                running=asked.get("max_running_requests"),
                attn_dp=asked.get("attn_dp_size", 1),
                latent=any(m.kind == "mla" for _, m in model.mixers()),
            )
            share, why = fraction.static_fraction(mib, reserved), f"{reserved:,.0f} of {mib:,} MiB are reserved"
            if encoder := vision_parameters(model):
                factor = fraction.encoder_factor(encoder, self.version)
                share, why = round(share * factor, 4), f"{why}, times {factor:.4f} for the encoder"
            found["mem_fraction_static"] = (share, f"{why} ({source})")
        return found

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        no_context_parallel(settings)
        part = settings.extra.get("mem_fraction_static")
        if "mem_fraction_static" in settings.defaults and part is not None and part <= 0:
            raise UnsupportedError(
                f"SGLang keeps more back for activations and graphs than this device has: its share would be {part}",
                where="--gpu", hint="a larger one, or type --mem-fraction-static SHARE",
            )  # fmt: skip
        if not any(m.streams() for _, m in model.mixers()):
            raise UnsupportedError(
                f"SGLang's pool is one of tokens, and no layer of {model.id} caches any: not modelled",
                where="--engine sglang", hint="type --engine vllm",
            )  # fmt: skip
        self._numbers(settings, model)
        maybe_number(settings, "max_running_requests")
        requests.check_strategy(settings, architecture_key(model), self.version)
        tp, dp = settings.tensor_parallel_size, whole_number(settings, "attn_dp_size", 1)
        if tp % dp:
            raise UnsupportedError(
                f"DP attention of {dp} does not divide tensor parallel size {tp}", where="--attn-dp-size",
                hint=f"type --attn-dp-size {nearest_of(dp, [n for n in range(1, tp + 1) if tp % n == 0])}",
            )  # fmt: skip
        cache_type(settings.kv_cache_dtype, model, settings.weights, self.version)
        page, chunk = whole_number(settings, "page_size", 1), settings.extra.get("chunked_prefill_size")
        if chunk and chunk % page:
            raise UnsupportedError(
                f"chunked_prefill_size {chunk:,} is not a multiple of page_size {page}", where="--page-size",
                hint="type --page-size 64",
            )  # fmt: skip
        warnings = check_length(settings, self.longest_context(model), self.version)
        if not self._window_pool(model) and any(s.window for _, m in model.mixers() for s in m.streams()):
            warnings.append(f"SGLang {self.version} holds the windowed layers of {model.id} at full length")
        if vision_parameters(model) and "mem_fraction_static" in settings.defaults:
            warnings.append("the smaller share of multimodal models is reckoned from the parameters of their encoder")
        return warnings

    def typed(self, settings: Settings, pool: Pool) -> Settings:
        """Bytes of cache are tokens there, and slots where states are kept."""
        if settings.kv_cache_memory_bytes is None:
            return settings
        extra = {**settings.extra, "max_total_tokens": pool.kv_tokens}
        if pool.state_slots:
            extra["max_mamba_cache_size"] = pool.state_slots * whole_number(settings, "attn_dp_size", 1)
        return replace(settings, kv_cache_memory_bytes=None, extra=extra)

    def _window_pool(self, model: ModelSpec) -> bool:
        return has_window_pool(architecture_key(model), self.version) and any(
            s.window for _, m in model.mixers() for s in m.streams()
        )

    def sharing_layouts(self, settings: Settings, ranks: int) -> list[tuple[str, dict[str, Any]]]:
        return [(f"--attn-dp-size {ranks}", {"extra": {**settings.extra, "attn_dp_size": ranks}})]

    def split_layers(self, num_layers: int, settings: Settings) -> list[int]:
        return balanced_split(num_layers, settings.pipeline_parallel_size)

    def vocab_rows(self, vocab_size: int, tp: int) -> int:
        """The vocabulary is padded to a multiple of 64, then divided."""
        return -(-(-(-vocab_size // 64) * 64) // tp)

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        """K and V as asked for; the rows of sparse attention, and states in float32 beside bf16 convolutions."""
        plain = plain_formats(model, settings)
        index = index_format("SGLang 0.5.23 DSATokenToKVPool")
        k, v = plain.k, plain.v
        sparse = any(m.kind == "mla" and any(s.role == "index" for s in m.streams()) for _, m in model.mixers())
        if sparse and k.name == "fp8_e4m3":
            k = v = get_format("fp8_ds_mla")
        asked = settings.mamba_ssm_cache_dtype
        name = (model.recurrent_dtype or "fp32") if asked == "auto" else asked
        recurrent = element_bytes(name, "--mamba-ssm-cache-dtype")
        return KvFormats(k, v, index if sparse else k, 2, recurrent)

    def budget_bytes(self, total_bytes: int, settings: Settings) -> int:
        """The static share of the device; what other terms take off free memory is charged at that share."""
        part = settings.extra.get("mem_fraction_static")
        return total_bytes if part is None else int(total_bytes * as_share(part, "mem_fraction_static"))

    def terms(self, stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> list[Term]:
        """What is gone before SGLang looks at free memory, at the static share; attention weights of DP attention."""
        part = as_share(settings.extra.get("mem_fraction_static", 1.0), "mem_fraction_static")
        dp = whole_number(settings, "attn_dp_size", 1)
        context, *others = budget.terms(stage, model, settings, gpu, version=self.version, dp=dp)
        middle, low, high = (int(part * size) for size in context[2:5])
        return [context._replace(bytes=middle, low_bytes=low, high_bytes=high), *others]

    def _rank_model(self, stage: Stage, settings: Settings) -> ModelSpec:
        """The stage's layers as one rank attends to them: divided over the attention group only."""
        dp = whole_number(settings, "attn_dp_size", 1)
        if dp == 1 or self._model is None:
            return stage.spec
        return shard_model(
            replace(self._model, layers=stage.spec.layers, draft_layers=()), tp=settings.tensor_parallel_size // dp
        )

    def _cell(self, spec: ModelSpec, settings: Settings) -> Cell:
        each = requests.slots_per_request(settings, architecture_key(spec), self.version)
        return cell(spec, self.kv_formats(spec, settings), window_pool=self._window_pool(spec), slots=each)

    def _numbers(self, settings: Settings, model: ModelSpec) -> dict[str, Any]:
        """The settings that decide the pools of `model`, or of a stage of it.

        Raises:
            InputError, UnsupportedError: one that cannot be read, or that SGLang refuses.
        """
        limit, key = settings.extra.get("max_total_tokens"), architecture_key(model)
        pooled = self._window_pool(model)
        windows = [held_window(key, s.window) for _, m in model.mixers() for s in m.streams() if s.window and pooled]
        return {
            "version": self.version,
            "page": whole_number(settings, "page_size", 1),
            "ratio": as_share(settings.extra.get("swa_full_tokens_ratio", RATIO), "swa_full_tokens_ratio"),
            "state_ratio": positive(
                settings.extra.get("mamba_full_memory_ratio", STATE_RATIO), "mamba_full_memory_ratio"
            ),
            "slots": requests.state_slots(settings, key, self.version),
            "window_tokens": requests.window_tokens(settings, max(windows), key, self.version) if windows else None,
            "limit": None if limit is None else whole_number(settings, "max_total_tokens", 1),
        }

    def _pools(
        self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]
    ) -> tuple[Pools, list[Cell]]:
        """The pools of the rank with the fewest tokens, which all stages lay out."""
        ranks = [self._rank_model(stage, settings) for stage in stages]
        cells = [self._cell(spec, settings) for spec in ranks]
        found = [
            pools_of(have, one, **self._numbers(settings, spec))
            for have, one, spec in zip(kv_bytes, cells, ranks, strict=True)
        ]
        # a stage without any growing layer sets no limit
        least = min(
            (p for p, one in zip(found, cells, strict=True) if one.full or one.windowed),
            key=lambda p: p.tokens,
            default=found[0],
        )
        return least._replace(slots=min(p.slots for p in found)), cells

    def _running(self, pools: Pools, cells: list[Cell], settings: Settings) -> int:
        """``max_running_requests`` of one DP rank."""
        dp = whole_number(settings, "attn_dp_size", 1)
        asked = maybe_number(settings, "max_running_requests")
        most = max(1, asked // dp) if asked else min(4096, max(2048, int(pools.tokens / settings.max_model_len * 512)))
        most = min(most, pools.tokens // 2)
        each = max(c.slots for c in cells)
        return min(most, pools.slots // each) if each else most

    def request_bytes(self, stage: Stage, settings: Settings, tokens: int) -> int:
        one, page = self._cell(self._rank_model(stage, settings), settings), whole_number(settings, "page_size", 1)
        held = -(-tokens // page) * page
        windowed = min(held, -(-(one.window + page) // page) * page) * one.windowed
        return held * one.full + windowed + one.slots * one.state

    def start_bytes(self, stage: Stage, settings: Settings) -> int:
        """SGLang starts with any pool that is not empty; a windowed pool must hold more than the window."""
        one = self._cell(self._rank_model(stage, settings), settings)
        return least_bytes(one, **{**self._numbers(settings, stage.spec), "limit": None})

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> Pool:
        pools, cells = self._pools(stages, settings, kv_bytes)
        page, dp = whole_number(settings, "page_size", 1), whole_number(settings, "attn_dp_size", 1)
        running, each = self._running(pools, cells, settings), max(c.slots for c in cells)
        window = max(c.window for c in cells)
        refusal = ""
        if pools.empty:
            lower = " or lower --max-running-requests" if pools.window_tokens > 0 else ""
            refusal = f"no memory is left for the cache: raise --mem-fraction-static{lower}"
        elif any(c.windowed for c in cells) and pools.window_tokens <= window + page:
            least = window + page
            refusal = f"{pools.window_tokens:,} tokens for windowed layers, and one request needs more than {least:,}"
        elif running <= 0:
            more = "--mem-fraction-static or --mamba-full-memory-ratio"
            if "max_mamba_cache_size" in settings.extra:
                more = f"--max-mamba-cache-size to {each * dp}"
            refusal = f"{pools.slots:,} state slots hold no request, which takes {each}: raise {more}"
        single = self._single(pools, cells, page)
        return Pool(
            block_size=page,
            num_blocks=pools.tokens // page,
            kv_tokens=pools.tokens,
            engine_reported_tokens=pools.tokens,
            max_concurrency=dp * self._concurrent(pools, cells, settings, settings.max_model_len),
            max_single_request_tokens=single,
            starts=not refusal,
            used_bytes=tuple(held_bytes(pools, c, page) for c in cells),
            max_num_seqs_allowed=pools.slots // each * dp if each else None,
            refusal=refusal,
            state_slots=pools.slots if any(c.state for c in cells) else 0,
        )

    @staticmethod
    def _single(pools: Pools, cells: list[Cell], page: int) -> int:
        """The longest request: all tokens; windowed layers let go of what is behind the window."""
        return max(0, pools.tokens - page) if any(c.full for c in cells) else pools.tokens

    def _concurrent(self, pools: Pools, cells: list[Cell], settings: Settings, tokens: int) -> float:
        """Requests of `tokens` tokens that one DP rank holds at once, as a fraction."""
        page = whole_number(settings, "page_size", 1)
        held = -(-tokens // page) * page
        counts = [pools.tokens / held]
        if window := max(c.window for c in cells):
            windows = pools.window_tokens / min(held, -(-(window + page) // page) * page)
            counts = [*counts, windows] if any(c.full for c in cells) else [windows]
        each = max(c.slots for c in cells)
        if each:
            counts.append(pools.slots / each)
        return min(counts)

    def requests_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        pools, cells = self._pools(stages, settings, kv_bytes)
        each = min(int(self._concurrent(pools, cells, settings, tokens)), max(0, self._running(pools, cells, settings)))
        return each * whole_number(settings, "attn_dp_size", 1)

    def held_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        pools, cells = self._pools(stages, settings, kv_bytes)
        return int(self._concurrent(pools, cells, settings, tokens)) * whole_number(settings, "attn_dp_size", 1)

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> bool:
        pools, cells = self._pools(stages, settings, kv_bytes)
        running = -(-settings.concurrency_per_replica // whole_number(settings, "attn_dp_size", 1))
        if any(c.windowed or c.state for c in cells):
            return running <= self._concurrent(pools, cells, settings, settings.request_tokens)
        page = whole_number(settings, "page_size", 1)
        need = running * (-(-settings.request_tokens // page) * page)
        return need - (running - 1) * self.shared_prefix_tokens(stages[0].spec, settings) <= pools.tokens

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> int:
        """Whole pages (of one token by default) of the radix tree; the prompt's last token is computed again."""
        if not requests.keeps_prefixes(settings, architecture_key(model), self.version):
            return 0
        page = whole_number(settings, "page_size", 1)
        return min(settings.shared_prefix_tokens, settings.prompt_tokens - 1) // page * page

    def allocation(self, model: ModelSpec, settings: Settings) -> Allocation | None:
        """The pools of a rank where their size is given (--max-total-tokens or --kv-cache-memory-bytes)."""
        limit, have = settings.extra.get("max_total_tokens"), settings.kv_cache_memory_bytes
        if limit is None and have is None:
            return None
        tp = settings.tensor_parallel_size // whole_number(settings, "attn_dp_size", 1)
        one, page = self._cell(shard_model(model, tp=tp), settings), whole_number(settings, "page_size", 1)
        numbers = self._numbers(settings, model)
        if have is None:
            slots, tokens = numbers["slots"] or 0, whole_number(settings, "max_total_tokens", 1) + page
            have = one.tokens_bytes(tokens, numbers["ratio"], numbers["window_tokens"]) + (slots + 1) * one.state
            numbers["slots"] = slots
        pools = pools_of(have, one, **numbers)
        found = []
        for kind, tokens, k, v in (
            ("full", pools.tokens, one.full_k, one.full_v),
            ("sliding", pools.window_tokens, one.window_k, one.window_v),
        ):
            cells = tokens + page
            if k or v:
                found.append(CachePool(kind, cells, cells // page, cells * (k + v), cells * k, cells * v))
        slots, state = pools.slots + pools.padding_slots, one.state
        if state:
            found.append(CachePool("recurrent", slots, None, slots * state, slots * one.conv, slots * one.recurrent))
        return Allocation.of(found)
