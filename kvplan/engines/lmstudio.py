"""LM Studio's llama.cpp runtime: its load settings over the rules of `kvplan.engines.llama_cpp`.

Four predictions share one cache of ``contextLength`` cells; without the shared cache each has as many of its own.
Source: lmstudio-js main of 2026-08-21 (6ec11db), ``packages/lms-kv-config/src/schema.ts`` (``llm.load``) and
``packages/lms-shared-types/src/llm/LLMLoadModelConfig.ts``; lms main of 2026-08-13 (07b7252),
``src/subcommands/load.ts``. The application itself is closed: what only it decides is said where it is assumed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from kvplan.engines.llama_cpp.engine import AUTO_SLOTS, LlamaCpp
from kvplan.engines.llama_cpp.geometry import BATCH, UBATCH, pad, slots_of, whole
from kvplan.errors import InputError, UnsupportedError, printable

if TYPE_CHECKING:
    from kvplan.cache.bytes import KvFormats
    from kvplan.engines.base import Settings
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

VERSION = "2026-08-21"
_SOURCE = f"lmstudio-js main of {VERSION}"

CONTEXT = 4096
"""Tokens where nobody says: what public reports of 0.3 and 0.4 show as loaded; the application has it as a setting."""
_OFFLOAD = "--gpu-offload"


class LmStudio(LlamaCpp):
    """llama.cpp with one context for four predictions, or one for each."""

    name = "lmstudio"
    version = VERSION
    summary = "llama.cpp with four predictions in one cache of the context length"
    runs_on = frozenset({"nvidia", "amd", "intel", "apple"})
    policies: ClassVar[tuple[tuple[str, str], ...]] = (
        ("budget", "as llama.cpp; the context is always given, so nothing shrinks it"),
        ("cache", "contextLength cells that predictions share, or as many for each (useUnifiedKvCache off)"),
        ("context", "4,096 tokens where nobody says; a setting of the application"),
        ("layout", "a share of the layers on the GPU, all by default"),
    )
    settings = frozenset(
        {
            "ctx_size", "cache_type_k", "cache_type_v", "parallel", "batch_size", "ubatch_size", "flash_attn",
            "kv_offload", "gpu_offload", "separate_caches",
        }
    )  # fmt: skip

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        asked_slots = slots_of(given.get("parallel"))
        slots, unified = asked_slots or AUTO_SLOTS, not given.get("separate_caches")
        context, source = self._context_length(model, given)
        asked = {k: v for k, v in given.items() if k not in ("max_model_len", "gpu_offload")}
        layers = self._layers(model, given)
        if layers is not None:
            asked["n_gpu_layers"] = layers
        cells = context if unified else slots * pad(context)
        found = super().defaults(model, gpu, {**asked, "parallel": slots, "kv_unified": unified, "ctx_size": cells})
        found["parallel"] = (slots, "--parallel" if asked_slots else f"{_SOURCE}: maxParallelPredictions is 4")
        found["kv_unified"] = (unified, f"{_SOURCE}: useUnifiedKvCache" if unified else "--separate-caches")
        found["max_model_len"] = (pad(context), source)
        found["fit"] = (False, f"{_SOURCE}: contextLength is always given")
        found["batch_size"] = (BATCH, f"{_SOURCE}: evalBatchSize")
        found["ubatch_size"] = (UBATCH, f"{_SOURCE}: physicalBatchSize")
        found["flash_attn"] = ("auto", f"counts as on; the application decides by runtime ({_SOURCE} has it off)")
        if layers is not None:
            found["n_gpu_layers"] = (layers, f"{_OFFLOAD} {given['gpu_offload']} of {model.num_layers} layers")
        return found

    def length_flag(self, settings: Settings, length: int) -> tuple[str, str, dict[str, Any]]:
        if settings.extra.get("ctx_size"):
            return "--ctx-size", str(length), {"ctx_size": length}
        return "--max-model-len", str(length), {"max_model_len": length}

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        total = {k: v for k, v in settings.extra.items() if k != "ctx_size"}  # of every prediction, not of all together
        found = super().check(model, replace(settings, extra=total), gpu)
        asked = str(settings.extra.get("gpu_offload") or "max")
        if asked not in ("max", "off") and 0 < float(asked) < 1:
            layers = settings.extra["n_gpu_layers"]
            found.append(
                f"LM Studio does not say how it rounds {asked} of {model.num_layers} layers: {layers} are taken"
            )
        return found

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        made = super().kv_formats(model, settings)
        for fmt, flag in ((made.k, "--cache-type-k"), (made.v, "--cache-type-v")):
            if fmt.name == "bf16":
                raise UnsupportedError("LM Studio has no cache type bf16", where=flag, hint=f"type {flag} f16")
        return made

    @staticmethod
    def _context_length(model: ModelSpec, given: dict[str, Any]) -> tuple[int, str]:
        """``contextLength``: the longest prediction, and the cells of the shared cache."""
        named = [name for name in ("max_model_len", "ctx_size") if given.get(name)]
        if len(named) > 1:
            raise InputError("is contextLength, as --max-model-len is", where="--ctx-size", hint="give one of both")
        if named:
            return whole(given[named[0]], "--max-model-len", most=1 << 40), "contextLength"
        return min(CONTEXT, model.max_position_embeddings or CONTEXT), f"{CONTEXT:,} as loaded unless it is set"

    @staticmethod
    def _layers(model: ModelSpec, given: dict[str, Any]) -> str | None:
        """Layers on the GPU out of ``gpu.ratio``: ``max``, ``off`` or a share; None: nobody said.

        Raises:
            InputError: no share.
        """
        asked = given.get("gpu_offload")
        if asked is None:
            return None
        text = {"max": "1", "off": "0"}.get(str(asked).strip().lower(), str(asked).strip())
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            what = f"{printable(str(asked), 40)!r} is not max, off or a share from 0 to 1"
            raise InputError(what, where=_OFFLOAD, hint=f"type {_OFFLOAD} max")
        return "all" if share == 1 else str(int(share * model.num_layers))
