"""vLLM: paged blocks out of a share of the device, by version."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from kvplan.engines.base import Engine, Pool, Settings, Speculation, Stage, Term
from kvplan.engines.generic import balanced_split
from kvplan.engines.vllm import budget, choices, layout, speculation
from kvplan.engines.vllm.layout import Layout
from kvplan.engines.vllm.requests import group_blocks
from kvplan.engines.vllm.specs import WHOLE
from kvplan.engines.vllm.versions import LATEST, RELEASES, Rules, nearest, parse

if TYPE_CHECKING:
    from kvplan.cache.bytes import KvFormats
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

NULL_BLOCKS = 1
"""Block 0 is never handed out (``vllm/v1/core/block_pool.py``)."""


class Vllm(Engine):
    """vLLM with its V1 engine. The utilisation is a share of the whole device, weights included."""

    name = "vllm"
    version = LATEST
    summary = "paged blocks of 16 tokens; a share of the whole device, profiled at start"
    highest_utilization = 0.95
    smaller_kv_formats = ("fp8",)
    settings = frozenset(
        {
            "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "block_size", "num_gpu_blocks_override",
            "enforce_eager", "enable_prefix_caching", "force_prefix_caching", "mamba_ssm_cache_dtype",
            "mamba_cache_dtype", "mamba_cache_mode", "mamba_block_size", "allow_long_max_model_len",
            "disable_hybrid_kv_cache_manager", "speculative_config", "attention_backend", "gdn_prefill_backend",
        }
        | budget.SETTINGS
    )  # fmt: skip

    def __init__(self, version: str | None = None) -> None:
        if version:
            self.version, warning = nearest(version)
            self.warnings = (warning,) if warning else ()
        self.rules = Rules(self.version)
        if version and parse(version) < parse(RELEASES[0]):
            self.version = ".".join(map(str, parse(version)))  # the budget knows older releases than the paging does
        self._laid_out: tuple[ModelSpec, tuple[Any, ...], Layout] | None = None

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        return choices.defaults(model, gpu, given, self.rules)

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        return choices.check(model, settings, gpu, self.rules)

    def speculation(self, settings: Settings) -> Speculation | None:
        return speculation.of(settings)

    def own_draft_layers(self, model: ModelSpec) -> tuple[str, ...]:
        return speculation.own_draft_layers(model)

    def split_layers(self, num_layers: int, settings: Settings) -> list[int]:
        return balanced_split(num_layers, settings.pipeline_parallel_size)

    def vocab_rows(self, vocab_size: int, tp: int) -> int:
        """The vocabulary is padded to a multiple of 64, then divided."""
        return -(-(-(-vocab_size // 64) * 64) // tp)

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        return choices.kv_formats(model, settings, self.rules)

    def budget_bytes(self, total_bytes: int, settings: Settings) -> int:
        return min(total_bytes, ceil(total_bytes * settings.gpu_memory_utilization))

    def terms(self, stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> list[Term]:
        return budget.terms(stage, model, settings, gpu)

    def layout(self, stage: Stage, settings: Settings) -> Layout:
        """The cache of a deployment, laid out for the whole model.

        Raises:
            UnsupportedError: what no memory makes legal.
        """
        whole, key = stage.whole or stage.spec, layout.inputs_of(settings)
        last = self._laid_out
        if last is None or last[0] is not whole or last[1] != key:
            found = layout.build(whole, settings, self.rules, self.kv_formats(whole, settings))
            self._laid_out = last = (whole, key, found)
        return last[2]

    def request_bytes(self, stage: Stage, settings: Settings, tokens: int) -> int:
        laid = self.layout(stage, settings)
        return laid.blocks(tokens) * laid.block_bytes(stage)

    def start_bytes(self, stage: Stage, settings: Settings) -> int:
        """The longest request, and the null block since 0.29.0."""
        laid = self.layout(stage, settings)
        return (laid.blocks(settings.max_model_len) + self._margin()) * laid.block_bytes(stage)

    def _margin(self) -> int:
        return NULL_BLOCKS if self.rules.has("null_block_in_check") else 0

    def _num_blocks(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> int:
        """Blocks that every rank can hold: the smallest stage decides for all."""
        if settings.num_gpu_blocks_override:
            return settings.num_gpu_blocks_override
        counts = []
        for stage, have in zip(stages, kv_bytes, strict=True):
            size = self.layout(stage, settings).block_bytes(stage)
            if size:
                counts.append(max(0, have) // size)
        return min(counts, default=0)

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> Pool:
        laid, blocks = self.layout(stages[0], settings), self._num_blocks(stages, settings, kv_bytes)
        length = settings.max_model_len
        per_request = laid.blocks(length)
        concurrency = blocks / per_request if per_request else float(settings.concurrency_per_replica)
        usable = blocks - self._margin()
        longest = laid.longest(usable) if usable > 0 else 0
        refusal, allowed = self._state_limit(laid, settings, blocks)
        return Pool(
            block_size=laid.block_size,
            num_blocks=blocks,
            kv_tokens=_held_tokens(laid, blocks),
            engine_reported_tokens=self._printed_tokens(laid, blocks, concurrency, length),
            max_concurrency=concurrency,
            max_single_request_tokens=length if longest is None else longest,
            starts=per_request <= usable and not refusal,
            used_bytes=tuple(blocks * laid.block_bytes(stage) for stage in stages),
            max_num_seqs_allowed=allowed,
            refusal=refusal if per_request <= usable else "",
        )

    def _printed_tokens(self, laid: Layout, blocks: int, concurrency: float, length: int) -> int:
        """The "GPU KV cache size" line.

        Up to 0.20.0 the blocks dealt evenly over the groups, times the smallest block, times the ranks
        that share tokens; since then the concurrency times the maximum length. Source:
        ``_report_kv_cache_config`` and ``get_kv_cache_capacity``.
        """
        if self.rules.has("tokens_from_concurrency"):
            return int(concurrency * length)
        smallest = min((g.first.block_size for g in laid.groups), default=0)
        return blocks // max(1, len(laid.groups)) * smallest * laid.limits.dcp

    def _state_limit(self, laid: Layout, settings: Settings, blocks: int) -> tuple[str, int | None]:
        """(why vLLM does not start, the largest max_num_seqs it takes): every sequence needs a state's block.

        Source: vLLM 0.18.0 and later ``vllm/config/compilation.py``, ``resolve_cudagraph_mode_and_sizes``.
        """
        if not laid.has_states or settings.enforce_eager or not self.rules.has("state_blocks_cap_seqs"):
            return "", None
        seqs = settings.max_num_seqs
        if seqs is None or seqs <= blocks:
            return "", blocks
        return (
            f"max_num_seqs {seqs:,} is over the {blocks:,} blocks that hold states, "
            "and vLLM captures graphs for all sequences"
        ), blocks

    def requests_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        per_request = self.layout(stages[0], settings).blocks(tokens)
        usable = self._num_blocks(stages, settings, kv_bytes) - NULL_BLOCKS
        return max(0, usable) // per_request if per_request else settings.concurrency_per_replica

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> bool:
        laid, running = self.layout(stages[0], settings), settings.concurrency_per_replica
        need = running * laid.blocks(settings.request_tokens)
        shared = self._shared_tokens(laid, settings)
        for group in laid.groups if shared else ():
            if group.first.family in WHOLE:
                need -= (running - 1) * group_blocks(group, shared, laid.limits)
        return need <= self._num_blocks(stages, settings, kv_bytes) - NULL_BLOCKS

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> int:
        """Whole blocks of every group, and never the prompt's last token (its logits are needed)."""
        laid = layout.build(model, settings, self.rules, self.kv_formats(model, settings))
        return self._shared_tokens(laid, settings)

    def _shared_tokens(self, laid: Layout, settings: Settings) -> int:
        if not settings.enable_prefix_caching or not settings.shared_prefix_tokens:
            return 0
        span = laid.prefix_span()
        return min(settings.shared_prefix_tokens, settings.prompt_tokens - 1) // span * span if span else 0


def _held_tokens(laid: Layout, blocks: int) -> int | None:
    """Tokens of one sequence that the pool holds, where one group holds every token."""
    if len(laid.groups) != 1 or laid.groups[0].first.family not in WHOLE:
        return None
    return blocks * laid.groups[0].first.block_size * laid.limits.dcp
