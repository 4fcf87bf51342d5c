"""MLX-LM 0.32.2: caches that grow by 256 slots, rotating ones for windows, and the wired limit of the Mac."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cache.bytes import KvFormats
from kvplan.engines.base import PLAIN_KINDS, CachePool, Settings, Stage, Term
from kvplan.engines.common import forward_term, maybe_number, nearest_of, no_context_parallel, whole_number
from kvplan.engines.mlx import growth
from kvplan.engines.mlx.models import (
    FLOAT32_STATES,
    LISTED,
    MAKE_CACHE,
    MIXED_WINDOWS,
    OWN_SCORES,
    REBUILT,
    WINDOWED,
)
from kvplan.engines.rows import Rows, architecture_key, cache_rows
from kvplan.engines.sequences import SequenceEngine
from kvplan.engines.versions import version_key
from kvplan.errors import InputError, UnsupportedError
from kvplan.spec.formats import Format, get_format
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
ZERO_VALUES_UNTIL = (0, 32, 2)
"""Up to this release the index keys of sparse latent attention are stored beside as many zeros."""
SMALL_RAM_BYTES = 36 * GIB
"""Macs up to here let the GPU use two thirds of their memory, larger ones three quarters (recalled)."""


class Part(NamedTuple):
    """The cache of one kind of layer: which class holds it, and how wide it is."""

    kind: str
    row: Rows
    k: int
    v: int
    """Elements per slot."""
    quantised: bool


class Mlx(SequenceEngine):
    """``mlx_lm.generate`` or its batched server: left-padded to the longest prompt, one cache for the batch."""

    name = "mlx"
    version = "0.32.2"
    versions = ("0.32.2",)
    summary = "caches that grow by 256 slots; rotating for windows; prompts in chunks of 2,048"
    runs_on = frozenset({"apple"})
    only_on = frozenset({"apple", "nvidia"})
    lays_out_pool = False
    policies = (
        ("budget", "the working set that Metal recommends: a warning, no limit"),
        ("cache", "grows by 256 slots for the whole batch, padded to its longest prompt"),
        ("windows", "rotating: the window, and a chunk more while a prompt is read"),
        ("states", "float32 matrices, convolutions in the model's dtype"),
    )
    step = growth.STEP
    known_kinds = PLAIN_KINDS | {
        "mla", "gated_delta_net", "kda", "mamba1", "mamba2", "lightning", "short_conv", "rwkv", "rg_lru",
    }  # fmt: skip
    smaller_weights = ("mlx8_g64", "mlx4_g64")
    settings = frozenset(
        {"kv_bits", "kv_group_size", "quantized_kv_start", "max_kv_size", "prefill_step_size", "iogpu_wired_limit_mb"}
    )

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        source = "mlx-lm 0.32.2 mlx_lm/generate.py"
        found: dict[str, tuple[Any, str]] = {"prefill_step_size": (2048, source)}
        if given.get("kv_bits") is not None:
            found |= {"kv_group_size": (64, source), "quantized_kv_start": (5000, source)}
        if gpu is not None and gpu.unified_memory:
            share = (2, 3) if gpu.device_bytes <= SMALL_RAM_BYTES else (3, 4)
            limit = gpu.device_bytes * share[0] // share[1] // MIB
            found["iogpu_wired_limit_mb"] = (limit, f"{share[0]}/{share[1]} of the memory, macOS's default (recalled)")
        return found

    def budget_bytes(self, total_bytes: int, settings: Settings) -> int:
        """The working set that Metal recommends, to which MLX-LM sets the wired limit."""
        limit = maybe_number(settings, "iogpu_wired_limit_mb")
        return total_bytes if limit is None else min(total_bytes, limit * MIB)

    def served_dtype(self, model: ModelSpec, settings: Settings) -> str:
        """As the checkpoint has it."""
        return model.dtype

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        no_context_parallel(settings)
        key, bits = architecture_key(model), self._bits(settings)
        warnings: list[str] = []
        if maybe_number(settings, "max_kv_size") is not None and key in MAKE_CACHE:
            warnings.append(f"--max-kv-size has no effect: {model.id} makes its own caches (make_cache)")
        if bits is not None:
            warnings += self._check_quantised(model, settings)
        rows = cache_rows(model)
        if not self._windows(model) and any(r.window and r.kind == "sliding" for r in rows):
            warnings.append(f"mlx-lm keeps every token of {model.id}: its class gives windowed layers a plain cache")
        if key in REBUILT and any(r.kind == "mla" for r in rows):
            warnings.append(f"mlx-lm caches K and V of {model.id} rebuilt from the latent row")
        return warnings

    def _check_quantised(self, model: ModelSpec, settings: Settings) -> list[str]:
        """Refusals of ``--kv-bits``, which come when the cache reaches ``--quantized-kv-start`` tokens.

        Raises:
            UnsupportedError: a cache class or a head size that cannot be quantised.
        """
        start, group = whole_number(settings, "quantized_kv_start", 0, least=0), self._group(settings)
        parts = [p for p in self.parts(model, settings) if p.kind == "sliding" or p.quantised]
        if settings.max_model_len >= start:
            if any(p.kind == "sliding" for p in parts):
                raise UnsupportedError(
                    f"rotating caches cannot be quantised: {model.id} fails at {start:,} tokens",
                    where="--kv-bits",
                    hint="leave --kv-bits out",
                )
            if architecture_key(model) in OWN_SCORES and any(p.quantised for p in parts):
                raise UnsupportedError(
                    f"the attention of {model.id} does not take a quantised cache",
                    where="--kv-bits",
                    hint="leave --kv-bits out",
                )
            if any(p.row.kind == "mla" and architecture_key(model) not in REBUILT for p in parts):
                raise UnsupportedError(
                    f"the latent attention of {model.id} does not take a quantised cache",
                    where="--kv-bits",
                    hint="leave --kv-bits out",
                )
        bad = next((p.row.head_dim for p in parts if p.row.head_dim % group), None)
        if bad is not None:
            near = max((g for g in GROUPS if bad % g == 0), default=None)
            hint = f"type --kv-group-size {near}" if near else "leave --kv-bits out"
            raise UnsupportedError(
                f"groups of {group} do not divide a head of {bad}", where="--kv-group-size", hint=hint
            )
        if settings.request_tokens < start:
            return [f"below {start:,} tokens nothing is quantised (--quantized-kv-start)"]
        return []

    @staticmethod
    def _bits(settings: Settings) -> int | None:
        bits = maybe_number(settings, "kv_bits")
        if bits is not None and bits not in BITS:
            raise UnsupportedError(
                f"mlx quantises to {', '.join(map(str, BITS))} bits, not {bits}",
                where="--kv-bits",
                hint=f"type --kv-bits {nearest_of(bits, BITS)}",
            )
        if bits is None and any(n in settings.extra for n in ("kv_group_size", "quantized_kv_start")):
            raise InputError("is a setting of the quantised cache", where="--kv-group-size", hint="add --kv-bits 4")
        return bits

    @staticmethod
    def _group(settings: Settings) -> int:
        group = whole_number(settings, "kv_group_size", 64)
        if group not in GROUPS:
            near = min(GROUPS, key=lambda g: abs(g - group))
            raise UnsupportedError(
                f"mlx quantises in groups of 32, 64 or 128, not {group}",
                where="--kv-group-size",
                hint=f"type --kv-group-size {near}",
            )
        return group

    @staticmethod
    def _windows(model: ModelSpec) -> bool:
        """Whether the model's class gives windowed layers a rotating cache."""
        key = architecture_key(model)
        mixed = len({r.window for r in cache_rows(model) if r.k}) > 1
        return key in WINDOWED or (key in MIXED_WINDOWS and mixed)

    def parts(self, model: ModelSpec, settings: Settings) -> list[Part]:
        """The caches of each kind of layer."""
        key, found = architecture_key(model), []
        windows, size = self._windows(model), maybe_number(settings, "max_kv_size")
        for row in cache_rows(model, rebuilt=key in REBUILT):
            kind = "full"
            if size is not None and key not in MAKE_CACHE:
                kind, row = "sliding", row._replace(window=size)
            elif row.kind == "chunked":
                kind = "chunked"
            elif row.window is not None and windows:
                kind = "sliding"
            if row.k or row.v:
                found.append(Part(kind, row, row.k, row.v, kind == "full" and key not in LISTED))
            if row.index_key:
                doubled = row.kind == "mla" and version_key(settings.engine_version) <= ZERO_VALUES_UNTIL
                zeros = row.index_key if doubled else 0
                found.append(Part("index", row, row.index_key, zeros, False))
            if row.has_state:
                found.append(Part("recurrent", row, 0, 0, False))
        return found

    @staticmethod
    def _slots(part: Part, settings: Settings, prompt: int, tokens: int) -> growth.Slots:
        step = whole_number(settings, "prefill_step_size", 2048)
        if part.kind == "sliding":
            return growth.rotating(prompt, tokens, step, part.row.window or 1)
        if part.kind == "chunked":
            return growth.chunked(prompt, tokens, step, part.row.window or 1)
        return growth.plain(prompt, tokens, step)

    def _stored(self, elements: int, part: Part, settings: Settings, size: int, converted: bool) -> int:
        """Bytes of `elements` of a part, with a scale and a bias per group where they are quantised."""
        bits = self._bits(settings)
        if bits is None or not part.quantised or not converted:
            return elements * size
        return elements * bits // 8 + elements // self._group(settings) * 2 * size

    def pools(self, spec: ModelSpec, settings: Settings, batch: int, prompt: int, tokens: int) -> tuple[CachePool, ...]:
        size, converted = self._dtype(spec, settings).block_bytes, self._converted(settings, tokens)
        found: dict[str, CachePool] = {}
        for part in self.parts(spec, settings):
            cells: int | None = None
            if part.kind == "recurrent":
                k, v = _state_sizes(part.row, size)
            else:
                cells = self._slots(part, settings, prompt, tokens).last
                k, v = (self._stored(cells * e, part, settings, size, converted) for e in (part.k, part.v))
            many = batch * part.row.layers
            have = found.get(part.kind, CachePool(part.kind, cells, None, 0, 0, 0))
            cells = max(filter(None, (have.cells, cells)), default=None)
            found[part.kind] = CachePool(
                part.kind, cells, None, have.bytes + many * (k + v), have.k_bytes + many * k, have.v_bytes + many * v
            )
        return tuple(found.values())

    def _converted(self, settings: Settings, tokens: int) -> bool:
        return self._bits(settings) is not None and tokens >= whole_number(settings, "quantized_kv_start", 0, least=0)

    def peak_bytes(self, spec: ModelSpec, settings: Settings, batch: int, prompt: int, tokens: int) -> int:
        """The most at once: while the prompt comes in, while a layer grows, or while a layer is quantised."""
        size = self._dtype(spec, settings).block_bytes
        parts = self.parts(spec, settings)
        last = first = chunk = growing = 0
        for part in parts:
            many = batch * part.row.layers
            if part.kind == "recurrent":
                state = many * sum(_state_sizes(part.row, size))
                last, first, chunk = last + state, first + state, chunk + state
                continue
            slots = self._slots(part, settings, prompt, tokens)
            width, converted = part.k + part.v, self._converted(settings, tokens)
            last += many * self._stored(slots.last * width, part, settings, size, converted)
            converted = self._converted(settings, prompt)
            first += many * self._stored(slots.after_prompt * width, part, settings, size, converted)
            chunk += many * self._stored(slots.before_last * width, part, settings, size, converted)
            growing = max(growing, batch * slots.grown_from * max(part.k, part.v) * size)
        peak = max(last, first, chunk) + growing
        if self._converted(settings, tokens):
            peak = max(peak, self._conversion_bytes(parts, spec, settings, batch, prompt))
        return peak

    def _conversion_bytes(self, parts: list[Part], spec: ModelSpec, settings: Settings, batch: int, prompt: int) -> int:
        """The whole cache in full precision at the moment of conversion, and one layer quantised beside it."""
        size, start = self._dtype(spec, settings).block_bytes, whole_number(settings, "quantized_kv_start", 0, least=0)
        step = whole_number(settings, "prefill_step_size", 2048)
        at = min(prompt, max(1, -(-start // step)) * step) if start <= prompt else start
        total = beside = 0
        for part in parts:
            if part.kind == "recurrent":
                total += batch * part.row.layers * sum(_state_sizes(part.row, size))
                continue
            elements = self._slots(part, settings, min(at, prompt), at).last * (part.k + part.v) * batch
            total += part.row.layers * elements * size
            if part.quantised:
                beside = max(beside, self._stored(elements, part, settings, size, True))
        return total + beside

    @staticmethod
    def _dtype(model: ModelSpec, settings: Settings) -> Format:
        """The dtype the model runs in.

        Raises:
            UnsupportedError: a format that is no dtype.
        """
        name = model.dtype if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype
        found = get_format(name, use="cache", where="--kv-cache-dtype")
        if found.name not in ("fp32", "bf16", "fp16"):
            raise UnsupportedError(
                f"mlx-lm keeps the cache in the model's dtype, not in {found.name}",
                where="--kv-cache-dtype",
                hint="type --kv-bits 4",
            )
        return found

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        plain, bits = self._dtype(model, settings), self._bits(settings)
        fmt = plain
        if bits is not None:
            group = self._group(settings)
            fmt = Format(
                name=f"mlx{bits}_g{group}",
                block_elements=group,
                block_bytes=group * bits // 8 + 2 * plain.block_bytes,
                use="cache",
                source="mlx-lm 0.32.2 mlx_lm/models/cache.py, QuantizedKVCache: scale and bias per group",
            )
        return KvFormats(fmt, fmt, plain, plain.block_bytes, 4)

    def terms(self, stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> list[Term]:
        """Activations of one chunk of the prompt and its logits."""
        batch = settings.concurrency_per_replica
        rows = batch * min(settings.prompt_tokens, whole_number(settings, "prefill_step_size", 2048))
        return [forward_term(stage, model, rows, batch, "one chunk of each prompt")]


def _state_sizes(row: Rows, size: int) -> tuple[int, int]:
    """(convolution bytes, recurrent bytes) of one layer and sequence; kernel - 1 columns."""
    conv = (row.conv_channels * row.conv_columns + row.shift) * size
    return conv, row.recurrent * (4 if row.kind in FLOAT32_STATES else size)
