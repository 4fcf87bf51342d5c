"""Engines that give every sequence its own tensors: nothing is paged, nothing is shared.

What such an engine holds depends on the batch, on the prompt (which comes in at once or in chunks)
and on what is written after it; the most that exists at once is more than what stays.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvplan.cache.sharding import shard_model
from kvplan.engines.base import Allocation, Pool, Settings, Stage
from kvplan.engines.common import even_layers
from kvplan.engines.versions import VersionedEngine
from kvplan.spec.arrays import most

if TYPE_CHECKING:
    from kvplan.engines.base import CachePool
    from kvplan.spec.model import ModelSpec


class SequenceEngine(VersionedEngine):
    """Subclasses say which pools a batch holds, and the peak while it grows."""

    step = 1
    """Tokens by which a cache grows."""

    def pools(self, spec: ModelSpec, settings: Settings, batch: int, prompt: int, tokens: int) -> tuple[CachePool, ...]:
        """What `batch` sequences hold once `tokens` are cached of each, `prompt` of which came as the prompt."""
        raise NotImplementedError

    def peak_bytes(self, spec: ModelSpec, settings: Settings, batch: int, prompt: int, tokens: int) -> int:
        """The most bytes of cache that exist at once on the way there."""
        raise NotImplementedError

    def held_bytes(self, spec: ModelSpec, settings: Settings, tokens: int) -> int:
        """What one sequence of `tokens` holds, at most, however it was divided into prompt and output."""
        return sum(p.bytes for p in self.pools(spec, settings, 1, tokens, tokens))

    def worst_bytes(self, spec: ModelSpec, settings: Settings, tokens: int) -> int:
        """The peak of one sequence of `tokens`, nearly all of which came as the prompt."""
        return self.peak_bytes(spec, settings, 1, max(1, tokens - 1), tokens)

    def split_layers(self, num_layers: int, settings: Settings) -> list[int]:
        """Whole layers, the first stages one more where they do not divide."""
        return even_layers(num_layers, settings.pipeline_parallel_size)

    def budget_bytes(self, total_bytes: int, settings: Settings) -> int:
        return total_bytes

    def request_bytes(self, stage: Stage, settings: Settings, tokens: int) -> int:
        return self.held_bytes(stage.spec, settings, tokens)

    def start_bytes(self, stage: Stage, settings: Settings) -> int:
        return self.worst_bytes(stage.spec, settings, settings.max_model_len)

    def start_words(self, settings: Settings) -> str:
        return f"one request of {settings.max_model_len:,} tokens, at its peak, needs"

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> Pool:
        longest = settings.max_model_len
        singles, tokens, concurrency = [], [], []
        for stage, have in zip(stages, kv_bytes, strict=True):
            singles.append(most(partial(self.worst_bytes, stage.spec, settings), have))
            tokens.append(most(partial(self.held_bytes, stage.spec, settings), have))
            need = self.worst_bytes(stage.spec, settings, longest)
            concurrency.append(have / need if need else float(settings.concurrency_per_replica))
        single = [n for n in singles if n is not None]
        held = [n for n in tokens if n is not None]
        least = max(0.0, min(concurrency))
        return Pool(
            block_size=self.step if self.step > 1 else None, num_blocks=None, kv_tokens=min(held) if held else None,
            engine_reported_tokens=None, max_concurrency=least,
            max_single_request_tokens=min(single) if single else longest, starts=least >= 1,
            used_bytes=tuple(max(0, b) for b in kv_bytes),
        )  # fmt: skip

    def requests_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        counts = []
        for stage, have in zip(stages, kv_bytes, strict=True):
            need = self.worst_bytes(stage.spec, settings, tokens)
            counts.append(max(0, have) // need if need else settings.concurrency_per_replica)
        return min(counts)

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> bool:
        batch, prompt, tokens = settings.concurrency_per_replica, settings.prompt_tokens, settings.request_tokens
        return all(
            self.peak_bytes(stage.spec, settings, batch, prompt, tokens) <= have
            for stage, have in zip(stages, kv_bytes, strict=True)
        )

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> int:
        """Every sequence keeps its own copy."""
        return 0

    def allocation(self, model: ModelSpec, settings: Settings) -> Allocation | None:
        """What the workload's batch holds on a tensor-parallel rank, all pipeline stages together."""
        spec = shard_model(model, tp=settings.tensor_parallel_size)
        batch, prompt, tokens = settings.concurrency_per_replica, settings.prompt_tokens, settings.request_tokens
        pools = self.pools(spec, settings, batch, prompt, tokens)
        peak = self.peak_bytes(spec, settings, batch, prompt, tokens)
        return Allocation.of(pools, peak_bytes=peak)
