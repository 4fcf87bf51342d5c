"""Ollama, which launches `llama-server`: its defaults over the rules of `kvplan.engines.llama_cpp`.

The context is given per slot (``num_ctx``), and the server is started with ``-c num_ctx x slots -np
slots`` and no -kvu: slots multiply the cache. Source: Ollama main of 2026-08-21 (fb30760, llama.cpp
b10488), ``llm/llama_server.go``, ``llm/server.go``, ``server/sched.go``, ``server/routes.go``, ``envconfig/config.go``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.engines.llama_cpp.architectures import facts
from kvplan.engines.llama_cpp.cache_types import Words
from kvplan.engines.llama_cpp.engine import LlamaCpp
from kvplan.engines.llama_cpp.geometry import flash_mode, pad, slot_tokens, slots_of, whole
from kvplan.errors import InputError
from kvplan.spec.formats import get_format
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

VERSION = "2026-08-21"
_SOURCE = f"Ollama main of {VERSION}"

CONTEXT_BY_MEMORY = ((47 * GIB, 262144), (23 * GIB, 32768), (0, 4096))
"""(bytes of all GPUs together, tokens of a slot) where nothing says how long a context is wanted."""

_BATCHES = ((32768, 2048, 2 * GIB, 0.6), (4096, 1024, 768 * MIB, 0.75))
"""(context above which, batch, what it is taken to cost, share of the memory that must hold everything)."""
_SMALL_BATCH = 512

ENVIRONMENT = {
    "OLLAMA_CONTEXT_LENGTH": "num_ctx", "OLLAMA_NUM_PARALLEL": "num_parallel", "OLLAMA_KV_CACHE_TYPE": "kv_cache_dtype",
    "OLLAMA_FLASH_ATTENTION": "flash_attn",
}  # fmt: skip
"""Environment variable -> setting."""

_ONE_SLOT = frozenset(
    {
        "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "qwen3vl", "qwen3vlmoe",
    }
)  # fmt: skip
"""GGUF architectures that run with one slot, whatever OLLAMA_NUM_PARALLEL says."""


class Ollama(LlamaCpp):
    """llama.cpp with a context per slot, batches by context length, and K and V of one type."""

    name = "ollama"
    version = VERSION
    summary = "llama-server with a context per slot; context and batch by memory where left out"
    runs_on = frozenset({"nvidia", "amd", "apple"})
    policies = (
        ("budget", "as llama.cpp; -c is always given, so nothing shrinks it"),
        ("cache", "num_ctx for every slot: slots multiply the cache"),
        ("context", "4,096, 32,768 or 262,144 tokens by the memory of all GPUs, where nobody says"),
        ("batch", "512, 1,024 or 2,048 by the context; windows grow with it"),
    )
    settings = LlamaCpp.settings | {"num_ctx", "num_parallel", "num_batch"}
    words = Words(
        k="OLLAMA_KV_CACHE_TYPE", v="OLLAMA_KV_CACHE_TYPE", flash="OLLAMA_FLASH_ATTENTION",
        set_k="OLLAMA_KV_CACHE_TYPE={0} (here --kv-cache-dtype {0})",
        set_v="OLLAMA_KV_CACHE_TYPE={0} (here --kv-cache-dtype {0})",
        set_both="OLLAMA_KV_CACHE_TYPE={0} (here --kv-cache-dtype {0})",
        set_flash="OLLAMA_FLASH_ATTENTION=1 (here --flash-attn on), or OLLAMA_KV_CACHE_TYPE=f16",
    )  # fmt: skip

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        slots, why = self._slots(model, given)
        context, source = self._slot_context(model, gpu, given, slots)
        asked = {k: v for k, v in given.items() if k not in ("num_ctx", "num_parallel", "num_batch", "max_model_len")}
        found = super().defaults(model, gpu, {**asked, "parallel": slots, "ctx_size": context * slots})
        found["parallel"] = found["num_parallel"] = (slots, why)
        found["max_model_len"] = (pad(context), source)
        found["num_ctx"] = (context, source)
        found["fit"] = (False, f"{_SOURCE}: -c is always given")
        batch, why = self._batch(model, gpu, given, context * slots)
        found["batch_size"] = found["ubatch_size"] = found["num_batch"] = (batch, why)
        return found

    def length_flag(self, settings: Settings, length: int) -> tuple[str, str, dict[str, Any]]:
        if "ctx_size" in settings.extra and "ctx_size" not in settings.defaults:
            total = length * settings.extra["slots"]
            return "--ctx-size", str(total), {"ctx_size": total}
        if "max_model_len" in settings.defaults:
            return "--num-ctx", str(length), {"num_ctx": length}
        return "--max-model-len", str(length), {"max_model_len": length}

    @staticmethod
    def _slots(model: ModelSpec, given: dict[str, Any]) -> tuple[int, str]:
        """OLLAMA_NUM_PARALLEL, which recurrent architectures bring down to 1."""
        asked = given.get("num_parallel", given.get("parallel"))
        slots = slots_of(asked, "--num-parallel") or 1
        if slots > 1 and "parallel" not in given and facts(model).name in _ONE_SLOT:
            return 1, f"{_SOURCE}: this architecture runs with one slot"
        return slots, "OLLAMA_NUM_PARALLEL" if asked is not None else f"{_SOURCE}: OLLAMA_NUM_PARALLEL is 1"

    @staticmethod
    def _slot_context(model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any], slots: int) -> tuple[int, str]:
        """Tokens of one slot, and where they come from; never more than the model was trained with."""
        trained = model.max_position_embeddings or 1 << 40
        named = [name for name in ("num_ctx", "max_model_len", "ctx_size") if given.get(name)]
        if len(named) > 1:
            raise InputError(
                f"{' and '.join(named)} say the same thing twice", where="--num-ctx", hint="give one of them"
            )
        if named == ["ctx_size"]:
            return slot_tokens(whole(given["ctx_size"], "--ctx-size", most=1 << 40), slots, False), "-c over the slots"
        if named:
            return min(max(4, whole(given[named[0]], "--num-ctx", most=1 << 40)), trained), "num_ctx"
        total = gpu.device_bytes * given.get("gpus", 1) if gpu else 0
        tokens = next(tokens for least, tokens in CONTEXT_BY_MEMORY if total >= least)
        return min(tokens, trained), f"{_SOURCE}: by the memory of the GPUs, at most the trained context"

    @staticmethod
    def _batch(model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any], context: int) -> tuple[int, str]:
        """``num_batch``: longer contexts get larger batches where memory leaves room."""
        if given.get("num_batch") or given.get("ubatch_size"):
            return whole(given.get("num_batch") or given["ubatch_size"], "--num-batch"), "num_batch"
        flash = flash_mode(given.get("flash_attn", "auto")) != "off"
        if not flash and gpu is not None and gpu.vendor.lower() == "nvidia":
            small = context > 4096 and gpu.device_bytes <= 8 * GIB
            return (256 if small else _SMALL_BATCH), f"{_SOURCE}: without flash attention"
        memory = gpu.device_bytes * given.get("gpus", 1) if gpu else None
        need = _estimate(model, given.get("weights", "auto"), context)
        for above, batch, cost, share in _BATCHES:
            if context > above and (memory is None or (need + cost <= 0.8 * memory and need <= share * memory)):
                return batch, f"{_SOURCE}: context above {above:,}"
        return _SMALL_BATCH, f"{_SOURCE}: a short context, or little memory"


def _estimate(model: ModelSpec, weights: str, context: int) -> int:
    """Ollama's own pre-flight figure: the file, and 4 bytes per layer, smallest KV head count, hidden / most heads,
    and token; windows, latents and cache types ignored. A file that is not there counts as its main format."""
    mixers: list[Any] = [m for _, m in model.mixers()]
    heads = [(m.kv_heads, m.query_heads) for m in mixers if hasattr(m, "kv_heads")]
    kv, query = min((k for k, _ in heads), default=1), max((q for _, q in heads), default=1)
    cache = 4 * model.num_layers * kv * (model.hidden_size // query) * context
    stored: int = getattr(model, "file_bytes", 0)
    if not stored or weights != "auto":
        own = model.checkpoint.format if model.checkpoint else model.dtype
        fmt = get_format(own if weights == "auto" else weights, use="weights", where="--weights")
        stored = model.parameters * fmt.block_bytes // fmt.block_elements
    return stored + cache
