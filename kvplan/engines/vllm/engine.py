"""vLLM 0.33.0: current defaults, 16-token blocks, one cache group."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from kvplan.cache.bytes import KvFormats
from kvplan.engines.base import Engine, Pool, Settings, Stage, Term
from kvplan.engines.generic import balanced_split, plain_formats
from kvplan.engines.vllm import budget, pages
from kvplan.errors import UnsupportedError
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

CHECK_MARGIN_BLOCKS = 1
"""One null block is set aside in the check at start and never handed out (vLLM 0.29.0 and later)."""


class Vllm(Engine):
    """vLLM with its V1 engine. The utilisation is a share of the whole device, weights included."""

    name = "vllm"
    version = "0.33.0"
    summary = "paged blocks of 16 tokens; a share of the whole device, profiled at start"
    highest_utilization = 0.95
    smaller_kv_formats = ("fp8",)
    settings = frozenset(
        {
            "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "block_size", "num_gpu_blocks_override",
            "enforce_eager", "enable_prefix_caching", "mamba_ssm_cache_dtype", "allow_long_max_model_len",
        }
    )  # fmt: skip

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        found: dict[str, tuple[Any, str]] = {
            "gpu_memory_utilization": (0.92, "vLLM 0.33.0 vllm/config/cache.py"),
            "block_size": self._block_size(model, gpu, given),
            "enable_prefix_caching": (True, "vLLM 0.33.0 vllm/config/cache.py"),
        }
        if gpu is not None:
            source = "vLLM 0.33.0 vllm/engine/arg_utils.py, API server on this size of device"
            batched, seqs = self._batch_limits(gpu)
            seqs = given.get("max_num_seqs") or seqs
            length = given.get("max_model_len") or model.max_position_embeddings or 0
            if length > 0:
                batched = min(batched, seqs * length)
            batched = given.get("max_num_batched_tokens") or batched
            found["max_num_batched_tokens"] = (batched, source)
            found["max_num_seqs"] = (min(seqs, batched), source)
        return found

    @staticmethod
    def _batch_limits(gpu: GpuSpec) -> tuple[int, int]:
        """(max_num_batched_tokens, max_num_seqs) of the API server by device memory."""
        total = gpu.device_bytes
        if total >= 160 * GIB:
            return 16384, 1024
        if total >= 70 * GIB and "A100" not in gpu.name and not gpu.unified_memory:
            return 8192, 1024
        return 2048, 256

    @staticmethod
    def _block_size(model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> tuple[int, str]:
        """The smallest block that every attention backend of the model accepts.

        Source: vLLM 0.33.0 ``vllm/platforms/cuda.py`` (order of backends) and ``vllm/v1/attention/backends/``.
        """
        mixers = [m for name in model.layer_counts for m in model.blocks[name].mixers]
        if not any(m.kind == "mla" for m in mixers):
            return 16, "vLLM 0.33.0: every attention backend takes 16"
        capability = (gpu.compute_capability or "") if gpu else "9.0"
        if any(s.name == "index" for m in mixers for s in m.streams()):
            return 64, "vLLM 0.33.0: sparse MLA takes 64"
        if capability.startswith("10."):
            return 32, "vLLM 0.33.0: FLASHINFER_MLA takes 32"
        if capability.startswith("9.") and str(given.get("kv_cache_dtype", "auto")).startswith("fp8"):
            return 64, "vLLM 0.33.0: FLASHMLA takes 64"
        return 16, "vLLM 0.33.0: FLASH_ATTN_MLA and TRITON_MLA take 16"

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        limit = model.max_position_embeddings
        warnings = []
        if limit and settings.max_model_len > limit:
            if not settings.allow_long_max_model_len:
                raise UnsupportedError(
                    f"vLLM refuses {settings.max_model_len:,} tokens: the model's maximum is {limit:,}",
                    where="--max-model-len",
                    hint=f"type --max-model-len {limit}, set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1, or use --engine generic",
                )
            warnings.append(f"max_model_len {settings.max_model_len:,} is above the model's {limit:,} (VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)")
        if settings.block_size % 16:
            near = max(16, settings.block_size // 16 * 16)
            raise UnsupportedError(f"vLLM takes blocks of a multiple of 16 tokens, not {settings.block_size}", where="--block-size", hint=f"type --block-size {near}")
        kinds = pages.page_kinds(model)
        if len(kinds) > 1 or (kinds and kinds[0].family not in ("full", "sliding")):
            held = ", ".join(k.family for k in kinds)
            raise UnsupportedError(
                f"{model.id} has cache groups ({held}) whose vLLM paging is not modelled", where="--engine vllm", hint="type --engine generic"
            )
        self._check_context_parallel(model, settings)
        return warnings

    @staticmethod
    def _check_context_parallel(model: ModelSpec, settings: Settings) -> None:
        """DCP splits tokens over the copies that tensor parallelism makes of a KV head."""
        dcp, tp = settings.decode_context_parallel_size, settings.tensor_parallel_size
        for name in model.layer_counts if dcp > 1 else ():
            for mixer in model.blocks[name].mixers:
                heads = getattr(mixer, "kv_heads", 1)
                if tp // heads < dcp or tp <= heads:
                    raise UnsupportedError(
                        f"decode context parallelism of {dcp} needs {dcp} copies of each KV head; tensor parallel size {tp} over {heads} KV heads makes {max(1, tp // heads)}",
                        where="--decode-context-parallel-size",
                        hint=f"type -dcp {max(1, tp // heads)} or a larger -tp",
                    )

    def split_layers(self, num_layers: int, stages: int) -> list[int]:
        return balanced_split(num_layers, stages)

    def vocab_rows(self, vocab_size: int, tp: int) -> int:
        """The vocabulary is padded to a multiple of 64, then divided."""
        return -(-(-(-vocab_size // 64) * 64) // tp)

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        return plain_formats(model, settings)

    def budget_bytes(self, total_bytes: int, settings: Settings) -> int:
        return min(total_bytes, ceil(total_bytes * settings.gpu_memory_utilization))

    def terms(self, stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> list[Term]:
        return [
            budget.rope_term(model, settings),
            budget.activation_term(stage, model, settings, gpu),
            budget.graph_term(settings, gpu),
            budget.runtime_term(settings, gpu),
        ]

    def _block_bytes(self, stage: Stage, settings: Settings) -> int:
        return pages.bytes_per_block(stage.spec, self.kv_formats(stage.spec, settings), settings.block_size)

    @staticmethod
    def _blocks(stages: tuple[Stage, ...], settings: Settings, tokens: int) -> int:
        kinds = [k for stage in stages for k in pages.page_kinds(stage.spec)]
        return max((pages.blocks_per_request(k, tokens, settings) for k in kinds), default=0)

    def request_bytes(self, stage: Stage, settings: Settings, tokens: int) -> int:
        return self._blocks((stage,), settings, tokens) * self._block_bytes(stage, settings)

    def start_bytes(self, stage: Stage, settings: Settings) -> int:
        """The longest request and the null block."""
        blocks = self._blocks((stage,), settings, settings.max_model_len) + CHECK_MARGIN_BLOCKS
        return blocks * self._block_bytes(stage, settings)

    def _num_blocks(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> int:
        """Blocks that every rank can hold: the smallest stage decides for all."""
        if settings.num_gpu_blocks_override:
            return settings.num_gpu_blocks_override
        counts = []
        for stage, have in zip(stages, kv_bytes, strict=True):
            size = self._block_bytes(stage, settings)
            if size:
                counts.append(max(0, have) // size)
        return min(counts, default=0)

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> Pool:
        blocks, size = self._num_blocks(stages, settings, kv_bytes), settings.block_size
        per_request = self._blocks(stages, settings, settings.max_model_len)
        concurrency = blocks / per_request if per_request else float(settings.concurrency_per_replica)
        kinds = pages.page_kinds(stages[0].spec)
        physical = blocks * size * settings.decode_context_parallel_size if kinds and kinds[0].family == "full" else None
        usable = blocks - CHECK_MARGIN_BLOCKS
        return Pool(
            block_size=size,
            num_blocks=blocks,
            kv_tokens=physical,
            engine_reported_tokens=int(concurrency * settings.max_model_len),
            max_concurrency=concurrency,
            max_single_request_tokens=self._longest(stages, settings, usable),
            starts=per_request <= usable,
            used_bytes=tuple(blocks * self._block_bytes(stage, settings) for stage in stages),
        )

    def _longest(self, stages: tuple[Stage, ...], settings: Settings, usable: int) -> int:
        """The most tokens of one request that `usable` blocks hold."""
        low, high = 0, 2**40
        if usable <= 0:
            return 0
        while high - low > 1:
            middle = (low + high) // 2
            if self._blocks(stages, settings, middle) <= usable:
                low = middle
            else:
                high = middle
        return low if high < 2**40 else settings.max_model_len

    def requests_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        per_request = self._blocks(stages, settings, tokens)
        usable = self._num_blocks(stages, settings, kv_bytes) - CHECK_MARGIN_BLOCKS
        return max(0, usable) // per_request if per_request else settings.concurrency_per_replica

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> bool:
        running = settings.concurrency_per_replica
        per_request = self._blocks(stages, settings, settings.request_tokens)
        span = settings.block_size * settings.decode_context_parallel_size
        shared = self.shared_prefix_tokens(stages[0].spec, settings) // span
        need = running * per_request - (running - 1) * shared
        return need <= self._num_blocks(stages, settings, kv_bytes) - CHECK_MARGIN_BLOCKS

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> int:
        """Whole blocks only, and never the prompt's last token (its logits are needed)."""
        if not settings.enable_prefix_caching or any(k.family != "full" for k in pages.page_kinds(model)):
            return 0
        span = settings.block_size * settings.decode_context_parallel_size
        return min(settings.shared_prefix_tokens, settings.prompt_tokens - 1) // span * span
