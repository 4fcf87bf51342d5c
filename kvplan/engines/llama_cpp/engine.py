"""llama.cpp (libllama 0.5.0, ggml 0.25.3) as `llama-server` starts it.

Nothing is paged and nothing grows: every cache is laid out whole at start, so a deployment fits when
its buffers fit, and requests are limited by slots. See ``docs/engines/llama.cpp.md``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from kvplan.cache.bytes import KvFormats
from kvplan.engines.base import Allocation, CachePool, Engine, Pool, Settings, Stage, Term
from kvplan.engines.llama_cpp import buffers, cache_types, caches, offload
from kvplan.engines.llama_cpp.architectures import Facts, facts
from kvplan.engines.llama_cpp.geometry import (
    BATCH,
    UBATCH,
    Geometry,
    flash_mode,
    geometry,
    slot_tokens,
    slots_of,
    whole,
)
from kvplan.errors import InputError, UnsupportedError, printable
from kvplan.spec.arrays import last_true
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

AUTO_SLOTS = 4
FIT_TARGET_BYTES = GIB
"""What ``--fit`` leaves free on every device (``--fit-target``)."""
_SERVER = "llama-server of libllama 0.5.0"


class LlamaCpp(Engine):
    """Cells in streams, laid out whole; layers on GPUs as -ngl and -ts say."""

    name = "llama.cpp"
    version = "0.5.0"
    summary = "caches laid out whole at start, in cells of 256; a context shared by slots"
    runs_on = frozenset({"nvidia", "amd", "intel", "apple", "huawei"})
    policies: ClassVar[tuple[tuple[str, str], ...]] = (
        ("budget", "none: the settings' caches are laid out, or the start fails; --fit shrinks a context not given"),
        ("cache", "cells rounded up to 256; -c is a total that slots share out, or one pool for all (-kvu)"),
        ("windows", "a cache of window + ubatch cells, for listed architectures; else held at full length"),
        ("states", "per slot, float32 whatever the cache type"),
        ("layout", "whole layers on each GPU"),
    )
    smaller_kv_formats = ("q8_0", "q4_0")
    smaller_weights = ("q8_0", "q4_k_m")
    known_kinds = caches.KNOWN_KINDS
    fills_budget = False
    least_fitted_tokens = 4096
    """``--fit-ctx``: a context that nobody gave is not made shorter; layers go to host memory instead."""
    splits_tensors = False
    words: ClassVar[cache_types.Words] = cache_types.LLAMA_SERVER
    settings = frozenset(
        {
            "ctx_size", "cache_type_k", "cache_type_v", "parallel", "batch_size", "ubatch_size", "n_gpu_layers",
            "swa_full", "kv_unified", "flash_attn", "tensor_split", "kv_offload", "n_rs_seq", "n_outputs_max",
        }
    )  # fmt: skip

    def __init__(self, version: str | None = None) -> None:
        """The engine; builds are continuous, so any version is answered with the rules that are known.

        Raises:
            InputError: not a version.
        """
        self.build = version or ""
        """As asked for: kernels get faster from build to build, and `kvplan.planning.speed` knows when."""
        if version and version != self.version:
            if not re.fullmatch(r"b?[0-9][0-9.\-]{0,20}", version):
                raise InputError(
                    f"{printable(version, 30)!r} is not a version of {self.name}",
                    where="--engine", hint=f"{self.name}@{self.version}, or leave the version out",
                )  # fmt: skip
            self.warnings = (f"{self.name} {version} is planned by the rules of {self.version}",)

    # ---- settings ----

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        asked = slots_of(given.get("parallel"))
        slots, unified = (asked, bool(given.get("kv_unified"))) if asked else (AUTO_SLOTS, True)
        found: dict[str, tuple[Any, str]] = {
            "parallel": (slots, f"{_SERVER}: -np left to itself"),
            "kv_unified": (unified, f"{_SERVER}: on where -np is left to itself"),
            "slots": (slots, "-np"),
            "unified": (unified, "-kvu, or -np left to itself"),
            "max_num_seqs": (slots, "-np"),
            **self._simple_defaults(given),
            **self._devices(model, given),
        }
        if "max_model_len" in given and given.get("ctx_size"):
            raise InputError(
                "is one slot's share of -c: give one of both",
                where="--max-model-len",
                hint="-c alone, or --max-model-len alone",
            )
        found["fit"] = (False, "-c or --max-model-len is given, or there is no GPU")
        if given.get("ctx_size") is not None or "max_model_len" not in given:
            found["max_model_len"] = self._context(model, gpu, given, slots, unified)
            found["fit"] = (found["max_model_len"][0] == -1, f"{_SERVER}: --fit shrinks a context that is not given")
        return found

    @staticmethod
    def _simple_defaults(given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        batch = whole(given.get("batch_size", BATCH), "--batch-size")
        ubatch = whole(given.get("ubatch_size", UBATCH), "--ubatch-size")
        flash_mode(given.get("flash_attn", "auto"))
        k, v = given.get("cache_type_k"), given.get("cache_type_v")
        source = "libllama 0.5.0 common/common.h"
        found: dict[str, tuple[Any, str]] = {
            "batch_size": (batch, source),
            "ubatch_size": (ubatch, source),
            "flash_attn": ("auto", f"{source}; counts as on"),
            "swa_full": (False, source),
            "kv_offload": (True, source),
            "n_rs_seq": (0, source),
            "n_outputs_max": (slots_of(given.get("parallel")) or AUTO_SLOTS, f"{_SERVER}: one row of logits per slot"),
            "kv_cache_dtype": ("f16", source),
        }
        whole(given.get("n_rs_seq", 0), "n_rs_seq", least=0, most=64)
        whole(given.get("n_outputs_max", 0), "n_outputs_max", least=0)
        if k or v:
            if given.get("kv_cache_dtype") not in (None, "auto"):
                raise InputError("says K and V already", where="--kv-cache-dtype", hint="give it, or -ctk and -ctv")
            found["kv_cache_dtype"] = (f"{k or 'f16'},{v or 'f16'}", "-ctk and -ctv")
        return found

    def _devices(self, model: ModelSpec, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        """GPUs, layers on them and layers in host memory."""
        shares = offload.parse_shares(given.get("tensor_split"))
        replicas = given.get("data_parallel_size", 1)
        count = given.get("pipeline_parallel_size") or (
            len(shares) if shares else max(1, given.get("gpus", 1) // replicas)
        )
        if shares and len(shares) != count:
            raise InputError(
                f"{len(shares)} shares for {count} GPUs", where="--tensor-split", hint="one share for each GPU"
            )
        if count > offload.MAX_GPUS:
            raise UnsupportedError(
                f"llama.cpp takes at most {offload.MAX_GPUS} devices, not {count}",
                where="--gpus",
                hint=f"type --gpus {offload.MAX_GPUS}",
            )
        used = offload.gpu_layers(given.get("n_gpu_layers"), model.num_layers)
        parts = offload.split(model.num_layers, used, shares or (1.0,) * count)
        source = "-ngl and -ts"
        found: dict[str, tuple[Any, str]] = {
            "n_gpu_layers": ("all", "libllama 0.5.0: auto, which is all layers where they fit"),
            "n_gpu_layers_used": (used, source),
            "host_layers": (parts.host, source),
            "layers_per_gpu": (list(parts.gpus), source),
            "tensor_split": (None, "equal shares; llama.cpp takes each GPU's free memory"),
            "pipeline_parallel_size": (count, "a GPU each: whole layers"),
        }
        if "gpus" not in given:
            found["gpus"] = (
                count * replicas * given.get("tensor_parallel_size", 1),
                "the GPUs that layers are dealt over",
            )
        return found

    def _context(
        self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any], slots: int, unified: bool
    ) -> tuple[int, str]:
        """The context of one slot: from -c, from the model, or as long as the memory allows (-1)."""
        asked = given.get("ctx_size")
        total = whole(asked, "--ctx-size", least=0, most=1 << 40) if asked is not None else 0
        if total:
            return slot_tokens(
                total, slots, unified
            ), f"-c over {slots} slots" if not unified else "-c, a pool for all slots"
        trained = model.max_position_embeddings or 0
        if asked is None and gpu is not None:
            return -1, f"{_SERVER}: the trained context, or what --fit leaves of it"
        return slot_tokens(trained, slots, unified), f"the trained context of {model.id}" + (
            "" if unified else f" over {slots} slots"
        )

    def length_flag(self, settings: Settings, length: int) -> tuple[str, str, dict[str, Any]]:
        """By the flag that was typed: -c is a total over slots that do not share one pool."""
        if "max_model_len" not in settings.defaults:
            return super().length_flag(settings, length)
        total = length if settings.extra["unified"] else length * settings.extra["slots"]
        return "--ctx-size", str(total), {"ctx_size": total}

    def smaller_caches(self, settings: Settings) -> list[tuple[str, str, dict[str, Any]]]:
        """By -ctk and -ctv, llama-server's own words, unless the one flag for both was typed."""
        typed = settings.extra.get("cache_type_k") or settings.extra.get("cache_type_v")
        if not typed and (self.words is not cache_types.LLAMA_SERVER or "kv_cache_dtype" not in settings.defaults):
            return super().smaller_caches(settings)
        return [
            ("--cache-type-k", f"{name} --cache-type-v {name}", {"cache_type_k": name, "cache_type_v": name})
            for name in self.smaller_kv_formats
        ]

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        if not settings.max_model_len:
            raise InputError(
                f"0 is the model's own length, and {model.id} does not say how long a context it takes",
                where="--ctx-size", hint="type --ctx-size TOKENS",
            )  # fmt: skip
        for name, flag in (
            ("decode_context_parallel_size", "-dcp"),
            ("enable_expert_parallel", "--enable-expert-parallel"),
        ):
            if getattr(settings, name) not in (1, False):
                raise UnsupportedError(
                    "llama.cpp has no such layout", where=flag, hint="--gpus N deals whole layers over N GPUs"
                )
        if settings.kv_cache_memory_bytes is not None:
            raise UnsupportedError(
                "llama.cpp takes what its settings ask for, no budget",
                where="--kv-cache-memory-bytes",
                hint="use -c instead",
            )
        known = facts(model)
        shape = self._shape(model, settings)
        self.kv_formats(model, settings)
        caches.pools(model, known, shape, self.kv_formats(model, settings), model.layers)
        return [
            *_architecture_warnings(model, known),
            *_context_warnings(shape, settings),
        ]

    def split_layers(self, num_layers: int, settings: Settings) -> list[int]:
        """Layers of each stage; those in host memory are counted with the first."""
        stages, extra = settings.pipeline_parallel_size, settings.extra
        shares = offload.parse_shares(extra.get("tensor_split")) or ()
        used = extra.get("n_gpu_layers_used", num_layers + 1)
        parts = offload.split(num_layers, used, shares if len(shares) == stages else (1.0,) * stages)
        return [parts.host + parts.gpus[0], *parts.gpus[1:]]

    def vocab_rows(self, vocab_size: int, tp: int) -> int:
        if tp > 1:
            raise UnsupportedError(
                "llama.cpp deals whole layers over GPUs (-sm layer); its tensor split mode is not modelled",
                where="--tensor-parallel-size", hint=f"type --gpus {tp}, or -ts with {tp} shares",
            )  # fmt: skip
        return vocab_size

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        k, v = cache_types.split_types(_types(settings), self.words)
        known = facts(model)
        flash = cache_types.resolve_flash(flash_mode(settings.extra["flash_attn"]), v, known, self.words) == "on"
        cache_types.check_types(model, known, k, v, flash=flash, words=self.words)
        return KvFormats(k, v, k, caches.STATE_BYTES, caches.STATE_BYTES)

    # ---- what is laid out ----

    @staticmethod
    def _shape(model: ModelSpec, settings: Settings, tokens: int | None = None) -> Geometry:
        shape = geometry(settings, tokens=tokens)
        return shape if facts(model).flash else shape._replace(flash=False)

    def _pools(
        self, model: ModelSpec, settings: Settings, layers: tuple[str, ...], tokens: int | None = None
    ) -> list[CachePool]:
        return caches.pools(
            model, facts(model), self._shape(model, settings, tokens), self.kv_formats(model, settings), layers
        )

    def _on_gpu(self, stage: Stage, settings: Settings, tokens: int | None = None) -> int:
        """Bytes of all caches on the GPU of a stage."""
        if not settings.extra["kv_offload"]:
            return 0
        host = settings.extra["host_layers"] if stage.first else 0
        return sum(pool.bytes for pool in self._pools(stage.spec, settings, stage.spec.layers[host:], tokens))

    def allocation(self, model: ModelSpec, settings: Settings) -> Allocation:
        pools = self._pools(model, settings, model.layers)
        shape = self._shape(model, settings)
        return Allocation.of(pools, buffers.compute_bytes(model, facts(model), shape))

    # ---- budget ----

    def budget_bytes(self, total_bytes: int, settings: Settings) -> int:
        return max(0, total_bytes - FIT_TARGET_BYTES) if settings.extra["fit"] else total_bytes

    def terms(self, stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> list[Term]:
        shape = self._shape(model, settings)
        found = [
            buffers.compute_term(model, facts(model), shape, settings.pipeline_parallel_size),
            buffers.context_term(),
        ]
        taken_off = (offload.host_term(stage, model, settings), offload.towers_term(stage, model, settings))
        return [*(term for term in taken_off if term is not None), *found]

    def request_bytes(self, stage: Stage, settings: Settings, tokens: int) -> int:
        """The caches of a context with one slot of `tokens`."""
        return self._on_gpu(stage, settings, tokens)

    def start_bytes(self, stage: Stage, settings: Settings) -> int:
        """All caches: they are laid out whole, whatever is asked later."""
        return self._on_gpu(stage, settings)

    def start_words(self, settings: Settings) -> str:
        shape = geometry(settings)
        slots = f"{shape.slots:,} slots" if shape.slots > 1 else "the slot"
        return f"the caches of {slots} ({shape.n_ctx:,} cells) need"

    def _starts(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> bool:
        return all(self._on_gpu(s, settings) <= have for s, have in zip(stages, kv_bytes, strict=True))

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> Pool:
        shape = self._shape(stages[0].spec, settings)
        starts = self._starts(stages, settings, kv_bytes)
        limit, asked = self._request_limit(stages[0].spec, shape), settings.max_model_len
        longest = limit if starts else min(limit, self._longest(stages, settings, kv_bytes))
        used = tuple(self._on_gpu(stage, settings) for stage in stages)
        at_once = min(float(shape.slots), shape.n_ctx / asked) if shape.unified else float(shape.slots)
        if not starts or asked > limit:
            at_once = 0.0
        held = shape.n_ctx if starts else 0  # laid out whole, or not at all
        return Pool(None, None, held, shape.n_ctx, at_once, longest, starts, used)

    @staticmethod
    def _request_limit(model: ModelSpec, shape: Geometry) -> int:
        """Tokens of a slot's request: its cells, but not more than the model was trained with.

        Source: libllama 0.5.0 ``tools/server/server-context.cpp``, ``n_ctx_slot``.
        """
        return min(shape.n_ctx_seq, model.max_position_embeddings or shape.n_ctx_seq)

    def _longest(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> int:
        """The longest context of a slot, in whole steps of 256, whose caches fit; 0: none."""

        def starts(steps: int) -> bool:
            return self._starts(stages, replace(settings, max_model_len=256 * steps), kv_bytes)

        return 256 * last_true(0, -(-settings.max_model_len // 256), starts)

    def requests_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        shape = self._shape(stages[0].spec, settings)
        if tokens > self._request_limit(stages[0].spec, shape) or not self._starts(stages, settings, kv_bytes):
            return 0
        return min(shape.slots, shape.n_ctx_seq // tokens) if shape.unified else shape.slots

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> bool:
        return self.requests_at(stages, settings, kv_bytes, settings.request_tokens) >= settings.concurrency_per_replica

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> int:
        """None: a slot reuses its own prompt, and slots share no cells."""
        return 0


def _types(settings: Settings) -> str:
    """``K,V`` as given: by --kv-cache-dtype, or by -ctk and -ctv."""
    if settings.kv_cache_dtype != "auto":
        return settings.kv_cache_dtype
    return f"{settings.extra.get('cache_type_k') or 'f16'},{settings.extra.get('cache_type_v') or 'f16'}"


def _architecture_warnings(model: ModelSpec, known: Facts) -> list[str]:
    found = []
    if known.name is None:
        found.append(
            f"libllama 0.5.0 has no converter for {model.architecture}: planned as if it cached what the model needs"
        )
    windowed = sum(n for n, m in model.mixers() if m.kind in ("sliding", "chunked"))
    if windowed and not known.windowed:
        found.append(
            f"llama.cpp ignores the window of {known.name} models: {windowed} layers of {model.id} cache every token"
        )
    if known.uncompressed_latent and any(m.kind == "mla" for _, m in model.mixers()):
        found.append(f"llama.cpp caches K and V of every head for {known.name}, not the latent row")
    return found


def _context_warnings(shape: Geometry, settings: Settings) -> list[str]:
    found = []
    asked = settings.extra.get("ctx_size")
    if asked and shape.slots > 1 and not shape.unified:
        found.append(f"-c {int(asked):,} is shared out: {shape.slots} slots of {shape.n_ctx_seq:,} tokens")
    if shape.n_ctx_seq % 256 == 0 and settings.max_model_len % 256 and settings.max_model_len > 0:
        found.append(f"a slot of {settings.max_model_len:,} tokens is laid out with {shape.n_ctx_seq:,} cells")
    return found
