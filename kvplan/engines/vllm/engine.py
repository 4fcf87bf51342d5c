"""vLLM: paged blocks out of a share of the device, by version."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from kvplan.engines.base import ARRAY_SETTINGS, PLAIN_KINDS, Engine, Pool, Settings, Speculation, Stage, Term
from kvplan.engines.common import balanced_split
from kvplan.engines.vllm import budget, choices, layout, speculation
from kvplan.engines.vllm.flags import SERVED
from kvplan.engines.vllm.layout import Layout
from kvplan.engines.vllm.requests import group_blocks, shared_blocks
from kvplan.engines.vllm.specs import WHOLE, CacheLayer
from kvplan.engines.vllm.states import STATE_KINDS
from kvplan.engines.vllm.versions import BUDGET_FROM, LATEST, RELEASES, Rules, nearest, parse
from kvplan.spec.arrays import (
    Number,
    ceiling,
    choose,
    filled,
    is_array,
    larger,
    least,
    quotient,
    ratio,
    smaller,
    whole,
)

if TYPE_CHECKING:
    from kvplan.cache.bytes import KvFormats
    from kvplan.engines.base import Change
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

NULL_BLOCKS = 1
"""Block 0 is never handed out (``vllm/v1/core/block_pool.py``)."""


class Vllm(Engine):
    """vLLM with its V1 engine. The utilisation is a share of the whole device, weights included."""

    name = "vllm"
    version = LATEST
    versions = RELEASES
    summary = "paged blocks of 16 tokens; a share of the whole device, profiled at start"
    runs_on = frozenset({"nvidia", "amd", "intel", "google", "aws", "huawei"})
    least_capability = 7.0  # vLLM docs, getting_started/installation; from 0.21 on they promise 7.5 and above
    alike_by_generation = True
    unpacks_fp8: ClassVar = {"weights": 7.5, "cache": 8.0}
    """Marlin multiplies fp8 weights from 7.5 on, FlashInfer reads fp8 caches of K and V from 8.0 on; Triton's kernels,
    all that is left for latent rows there, refuse them below 8.9. Source: vLLM 0.33.0
    ``vllm/model_executor/kernels/linear/scaled_mm/marlin.py``, ``vllm/v1/attention/backends/`` (``flashinfer.py``,
    ``triton_attn.py``, ``mla/triton_mla.py``)."""
    policies = (
        ("budget", "total x gpu_memory_utilization, less weights, the peak of a trial run, and graphs since 0.20"),
        ("cache", "one pool of blocks of one size for all layers, in groups; the fewest blocks of any rank count"),
        ("windows", "a group of their own: window and tokens in flight, in blocks"),
        ("states", "a block each, one to three per request; attention blocks grow until a page covers a state"),
        ("start", "refused where a request of max_model_len does not hold, or max_num_seqs is over the state blocks"),
    )
    highest_utilization = 0.95
    pages_cover_states = True
    known_kinds = PLAIN_KINDS | STATE_KINDS | {"cross", "mla", "compressed"}
    smaller_kv_formats = ("fp8",)
    array_settings = ARRAY_SETTINGS
    settings = frozenset(
        {
            "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "block_size", "num_gpu_blocks_override",
            "enforce_eager", "enable_prefix_caching", "force_prefix_caching", "mamba_ssm_cache_dtype",
            "mamba_cache_dtype", "mamba_cache_mode", "mamba_block_size", "allow_long_max_model_len",
            "disable_hybrid_kv_cache_manager", "speculative_config", "attention_backend", "gdn_prefill_backend",
        }
        | budget.SETTINGS
        | frozenset(option.setting for option in SERVED)
    )  # fmt: skip

    def __init__(self, version: str | None = None) -> None:
        if version:
            self.version, warning = nearest(version)
            self.warnings = (warning,) if warning else ()
        self.rules = Rules(self.version)
        if version and BUDGET_FROM <= parse(version) < parse(RELEASES[0]):
            self.version = ".".join(map(str, parse(version)))  # the budget knows older releases than the paging does
            self.warnings = (f"the cache of vLLM {self.version} is laid out by the rules of {self.rules.name}",)
        self._laid_out: tuple[ModelSpec, tuple[Any, ...], Layout] | None = None

    def changes(self) -> list[Change]:
        from kvplan.engines.vllm.changes import all_changes

        return all_changes()

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        return choices.defaults(model, gpu, given, self.rules, self.default_context(model))

    def served_dtype(self, model: ModelSpec, settings: Settings) -> str:
        """Float32 where neither the device's nor the model's 16 bits will do."""
        if choices.runs_in_float32(model, settings):
            return "fp32"
        return super().served_dtype(model, settings)

    def longest_context(self, model: ModelSpec) -> int | None:
        if not model.rope:
            return model.stated_positions or model.max_position_embeddings
        from kvplan.engines.vllm.lengths import longest

        return longest(model, self.rules.name)

    def default_context(self, model: ModelSpec) -> int | None:
        if not model.rope:
            return self.longest_context(model)
        from kvplan.engines.vllm.lengths import default

        return default(model, self.rules.name)

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        return choices.check(model, settings, gpu, self.rules, self.longest_context(model))

    def speculation(self, settings: Settings) -> Speculation | None:
        return speculation.of(settings)

    def own_draft_layers(self, model: ModelSpec) -> tuple[str, ...]:
        return speculation.own_draft_layers(model)

    def sharing_layouts(self, settings: Settings, ranks: int) -> list[tuple[str, dict[str, Any]]]:
        tp, dp = settings.tensor_parallel_size // ranks, settings.data_parallel_size * ranks
        flags = f"--tensor-parallel-size {tp} --data-parallel-size {dp} --enable-expert-parallel"
        replicas = {"tensor_parallel_size": tp, "data_parallel_size": dp, "enable_expert_parallel": True}
        context = {"decode_context_parallel_size": ranks}
        return [(flags, replicas), (f"--decode-context-parallel-size {ranks}", context)]

    def split_layers(self, num_layers: int, settings: Settings) -> list[int]:
        return balanced_split(num_layers, settings.pipeline_parallel_size)

    def expert_tensor_ranks(self, settings: Settings) -> int:
        """Experts are cut over the replicas too: ``FusedMoEParallelConfig.make`` flattens dp into tp.

        Source: vLLM 0.33.0 ``vllm/model_executor/layers/fused_moe/config.py``.
        """
        return settings.tensor_parallel_size * settings.data_parallel_size

    def vocab_rows(self, vocab_size: int, tp: int) -> int:
        """The vocabulary is padded to a multiple of 64, then divided."""
        return -(-(-(-vocab_size // 64) * 64) // tp)

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        return choices.kv_formats(model, settings, self.rules)

    def budget_bytes(self, total_bytes: int, settings: Settings) -> Number:
        return smaller(total_bytes, ceiling(total_bytes * settings.gpu_memory_utilization))

    def terms(self, stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> list[Term]:
        return budget.terms(stage, model, settings, gpu, self.layout(stage, settings).block_size)

    def layout(self, stage: Stage, settings: Settings) -> Layout:
        """The cache of a deployment, laid out for the whole model.

        Raises:
            UnsupportedError: what no memory makes legal.
        """
        settings = _of_one_length(settings)
        model, key = stage.whole or stage.spec, layout.inputs_of(settings)
        last = self._laid_out
        if last is None or last[0] is not model or last[1] != key:
            found = layout.build(model, settings, self.rules, self.kv_formats(model, settings))
            self._laid_out = last = (model, key, found)
        return last[2]

    def length_key(self, stages: tuple[Stage, ...], settings: Settings) -> Hashable:
        """The layout, in which the length is no more than the block of states outside prefix caching."""
        laid = self.layout(stages[0], settings)
        groups = tuple((g.members, tuple(map(_without_length, g.layers)), g.mixed) for g in laid.groups)
        return laid.block_size, groups, laid.limits, laid.has_states

    def request_bytes(self, stage: Stage, settings: Settings, tokens: Number) -> Number:
        laid = self.layout(stage, settings)
        return laid.blocks(tokens) * laid.block_bytes(stage)

    def start_bytes(self, stage: Stage, settings: Settings) -> Number:
        """The longest request, and the null block since 0.29.0."""
        laid = self.layout(stage, settings)
        return (self._checked_need(laid, settings.max_model_len) + self._margin()) * self._checked_bytes(laid, stage)

    def _checked_need(self, laid: Layout, tokens: Number) -> Number:
        """Blocks of one request as the check at start counts them: from 0.14 to 0.18 the first group's alone."""
        if self.rules.has("check_by_first_group") and not self.rules.has("check_by_all_groups") and laid.groups:
            return group_blocks(laid.groups[0], tokens, laid.limits)
        return laid.blocks(tokens)

    def _margin(self) -> int:
        return NULL_BLOCKS if self.rules.has("null_block_in_check") else 0

    def _checked_bytes(self, laid: Layout, stage: Stage) -> int:
        return laid.block_bytes(stage) if self.rules.has("check_by_blocks") else laid.checked_bytes(stage)

    def _checked_blocks(
        self, laid: Layout, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[Number, ...], blocks: Number
    ) -> Number:
        """Blocks that the check at start finds; `blocks` where it weighs them as the pool does."""
        sizes = [(laid.block_bytes(stage), self._checked_bytes(laid, stage)) for stage in stages]
        override = settings.num_gpu_blocks_override
        if override and not self.rules.has("override_in_check"):
            override = None
        elif all(size == checked for size, checked in sizes):
            return blocks
        have = [override * size for size, _ in sizes] if override else [larger(0, n) for n in kv_bytes]
        return least(n // checked for n, (_, checked) in zip(have, sizes, strict=True) if checked)

    def _num_blocks(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[Number, ...]) -> Number:
        """Blocks that every rank can hold: the smallest stage decides for all."""
        if settings.num_gpu_blocks_override:
            return settings.num_gpu_blocks_override
        counts = []
        for stage, have in zip(stages, kv_bytes, strict=True):
            size = self.layout(stage, settings).block_bytes(stage)
            if size:
                counts.append(larger(0, have) // size)
        return least(counts) if counts else 0

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[Number, ...]) -> Pool:
        laid, blocks = self.layout(stages[0], settings), self._num_blocks(stages, settings, kv_bytes)
        length = settings.max_model_len
        per_request = laid.blocks(length)
        printed = per_request if self.rules.has("concurrency_by_blocks") else laid.printed_blocks(length, stages[0])
        concurrency = ratio(blocks, printed, settings.concurrency_per_replica * 1.0)
        usable = self._checked_blocks(laid, stages, settings, kv_bytes, blocks) - self._margin()
        longest = choose(usable > 0, laid.longest(usable), 0)
        within, refusal, allowed = self._state_limit(laid, settings, blocks)
        holds = self._checked_need(laid, length) <= usable
        if holds is False and settings.num_gpu_blocks_override and self.rules.has("override_in_check"):
            refusal = (
                f"one request of {length:,} tokens needs {per_request + self._margin():,} blocks, "
                f"and num_gpu_blocks_override leaves {blocks:,}"
            )
        elif holds is not True:
            refusal = ""
        return Pool(
            block_size=laid.block_size,
            num_blocks=blocks,
            kv_tokens=_held_tokens(laid, blocks),
            engine_reported_tokens=self._printed_tokens(laid, blocks, concurrency, length),
            max_concurrency=concurrency,
            max_single_request_tokens=filled(longest, length),
            starts=holds & within,
            used_bytes=tuple(blocks * laid.own_bytes(stage) for stage in stages),
            max_num_seqs_allowed=allowed,
            refusal=refusal,
        )

    def _printed_tokens(self, laid: Layout, blocks: Number, concurrency: Number, length: Number) -> Number:
        """The "GPU KV cache size" line.

        Up to 0.20.0 the blocks dealt evenly over the groups, times the smallest block, times the ranks
        that share tokens; since then the concurrency times the maximum length. Source:
        ``_report_kv_cache_config`` and ``get_kv_cache_capacity``.
        """
        if self.rules.has("tokens_from_concurrency"):
            return whole(concurrency * length)
        one_block = laid.limits.mamba_mode == "none"  # then a state's block stands for a whole request
        sizes = [length if one_block and g.first.family == "mamba" else g.first.block_size for g in laid.groups]
        smallest = least(sizes) if sizes else 0
        return blocks // max(1, len(laid.groups)) * smallest * laid.limits.dcp

    def _state_limit(self, laid: Layout, settings: Settings, blocks: Number) -> tuple[Any, str, Number]:
        """(whether max_num_seqs is legal, why not, the largest legal one): every sequence needs a state's block.

        Source: vLLM 0.18.0 and later ``vllm/config/compilation.py``, ``resolve_cudagraph_mode_and_sizes``.
        """
        if not laid.has_states or settings.enforce_eager or not self.rules.has("state_blocks_cap_seqs"):
            return True, "", None
        seqs = settings.max_num_seqs
        within = seqs is None or seqs <= blocks
        if within is not False:
            return within, "", blocks
        why = (
            f"max_num_seqs {seqs:,} is over the {blocks:,} blocks that hold states, "
            "and vLLM captures graphs for all sequences"
        )
        return False, why, blocks

    def requests_at(
        self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[Number, ...], tokens: Number
    ) -> Number:
        per_request = self.layout(stages[0], settings).blocks(tokens)
        usable = self._num_blocks(stages, settings, kv_bytes) - NULL_BLOCKS
        return quotient(larger(0, usable), per_request, settings.concurrency_per_replica)

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[Number, ...]) -> Any:
        laid, running = self.layout(stages[0], settings), settings.concurrency_per_replica
        need = running * laid.blocks(settings.request_tokens)
        shared = self._shared_tokens(laid, settings)
        for group in laid.groups if is_array(shared) or shared else ():
            need = need - (running - 1) * shared_blocks(group, shared, settings.request_tokens, laid.limits)
        return need <= self._num_blocks(stages, settings, kv_bytes) - NULL_BLOCKS

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> Number:
        """Whole blocks of every group, and never the prompt's last token (its logits are needed)."""
        laid = layout.build(model, _of_one_length(settings), self.rules, self.kv_formats(model, settings))
        return self._shared_tokens(laid, settings)

    def _shared_tokens(self, laid: Layout, settings: Settings) -> Number:
        shared = settings.shared_prefix_tokens
        if not settings.enable_prefix_caching or not (is_array(shared) or shared):
            return 0
        span = laid.prefix_span()
        return smaller(shared, settings.prompt_tokens - 1) // span * span if span else 0


def _of_one_length(settings: Settings) -> Settings:
    """The settings with one of the lengths in an array: lengths of one `Vllm.length_key` share a layout."""
    lengths: Any = settings.max_model_len
    return replace(settings, max_model_len=int(lengths.flat[0])) if is_array(lengths) else settings


def _without_length(cache: CacheLayer) -> CacheLayer:
    """The cache without the tokens that a state stands for: it fills a page, however many they are."""
    return cache._replace(block_size=0) if cache.family == "mamba" else cache


def _held_tokens(laid: Layout, blocks: Number) -> Number:
    """Tokens of one sequence that the pool holds, where one group holds every token."""
    if len(laid.groups) != 1 or laid.groups[0].first.family not in WHOLE:
        return None
    return blocks * laid.groups[0].first.block_size * laid.limits.dcp
