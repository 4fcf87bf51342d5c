"""transformers 5.24 and 4.57: one cache per call of ``generate()``, grown token by token or laid out at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.cache.bytes import KvFormats
from kvplan.cache.compressed import CompressedAttention
from kvplan.engines.base import PLAIN_KINDS, Change, Settings, Stage, Term
from kvplan.engines.common import context_term, forward_term, no_context_parallel, whole_number
from kvplan.engines.rows import Rows, architecture_key, cache_rows
from kvplan.engines.sequences import SequenceEngine
from kvplan.engines.transformers import cache, compressed
from kvplan.engines.versions import at_least
from kvplan.errors import InputError, UnsupportedError
from kvplan.spec.formats import Format, get_format

if TYPE_CHECKING:
    from kvplan.engines.base import CachePool
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

IMPLEMENTATIONS = ("dynamic", "dynamic_noconfig", "static", "quantized")
BACKENDS = {"quanto": (2, 4), "hqq": (1, 2, 4, 8), "fp8": (8,)}
"""backend -> bits it takes. hqq lists 3 as well and then fails to run."""
LATENT_SINCE = "5.15"
"""From here on latent attention caches its latent row; before it, K and V rebuilt for every head
(5.14.1 and 5.15.1 ``models/deepseek_v3/modeling_deepseek_v3.py``)."""
FP8_SINCE = "5.22"
"""The fp8 backend is in 5.22.2 and not in 5.20.2."""
UNIFIED_SINCE = "5.0"
"""One cache class for all layers, float32 recurrent states, and only full attention quantised: so in 5.24.0. In
4.57.6 Mamba layers have caches of their own in the model's dtype, and every layer is quantised at full length."""
QUANTIZED_ONLY = ("cache_nbits", "cache_group_size", "cache_residual_length", "cache_backend")
MASKED = frozenset(("gpt_neo",))
"""Families whose windows are in the mask alone. A cache cuts a layer where ``sliding_window`` or ``layer_types`` of
the configuration say so (5.24.0 ``cache_utils.py``), and these say it otherwise: every layer keeps every token."""
DTYPES = ("fp32", "bf16", "fp16")

_MLSTM_STATE_BYTES = 2
"""xLSTM's cache is in bf16 whatever the model is in (``models/xlstm/modeling_xlstm.py``, ``xLSTMCache``)."""


class Transformers(SequenceEngine):
    """``generate()`` with one of its caches; the workload's requests are one batch, padded to one length."""

    name = "transformers"
    version = "5.24.0"
    versions = ("4.57.6", "5.24.0")
    summary = "a tensor per layer and sequence: growing by concatenation, static, or quantised with a residual"
    runs_on = frozenset({"nvidia", "amd", "intel", "apple", "google", "aws", "huawei"})
    lays_out_pool = False
    policies = (
        ("budget", "none: the cache grows with the batch until memory ends"),
        ("cache", "a tensor per layer, concatenated anew at each step: one layer is there twice"),
        ("windows", "window - 1 tokens, after a prefill that holds all of them"),
        ("states", "float32, convolutions with a column more than elsewhere"),
    )
    known_kinds = PLAIN_KINDS | {
        "cross", "mla", compressed.KIND, "gated_delta_net", "kda", "mamba1", "mamba2", "lightning", "short_conv",
        "rwkv", "rg_lru", "mlstm",
    }  # fmt: skip
    smaller_weights = ("bnb_int8", "nf4")
    settings = frozenset({"cache_implementation", "max_cache_len", *QUANTIZED_ONLY})

    def changes(self) -> list[Change]:
        source = "src/transformers/cache_utils.py"
        latent = "latent attention caches its row (before: K and V of every head, 71 times as much for DeepSeek-V3)"
        return [
            Change(
                UNIFIED_SINCE, "one cache class for all layers, states in float32; windows stay unquantised", source
            ),
            Change(LATENT_SINCE, latent, "src/transformers/models/deepseek_v3/modeling_deepseek_v3.py"),
            Change(FP8_SINCE, "quantised caches in fp8", source),
        ]

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        source = "transformers 5.24.0 generation/utils.py"
        found: dict[str, tuple[Any, str]] = {"cache_implementation": ("dynamic", source)}
        chosen = given.get("cache_implementation", "dynamic")
        if chosen == "static":
            length = given.get("max_model_len") or model.max_position_embeddings or 0
            found["max_cache_len"] = (max(1, length), "max_model_len; generate() takes one token less")
        if chosen == "quantized":
            found["cache_backend"] = ("quanto", source)
            if given.get("cache_backend") != "fp8":
                layer = "transformers 5.24.0 cache_utils.py, QuantizedLayer"
                found |= {
                    "cache_nbits": (4, layer),
                    "cache_group_size": (64, layer),
                    "cache_residual_length": (128, layer),
                }
        return found

    def served_dtype(self, model: ModelSpec, settings: Settings) -> str:
        """As the checkpoint has it."""
        return model.dtype

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        no_context_parallel(settings)
        layout, rows = self.layout(model, settings), self.rows(model, settings)
        if layout.implementation == "quantized":
            self._check_quantized(model, settings, layout, rows)
        if layout.implementation == "static" and not at_least(settings.engine_version, UNIFIED_SINCE):
            self._check_old_static(model, settings, rows)
        warnings: list[str] = []
        if not at_least(settings.engine_version, LATENT_SINCE) and any(r.kind == "mla" for r in rows):
            size = max((r.k + r.v) * layout.element_bytes for r in rows if r.kind == "mla")
            warnings.append(
                f"transformers {settings.engine_version} caches K and V rebuilt from the latent: {size:,} B a token "
                f"and layer; {LATENT_SINCE} and later cache the row"
            )
        if layout.implementation == "dynamic" and any(r.window and settings.prompt_tokens >= r.window for r in rows):
            warnings.append("until the token after the prompt, sliding layers keep the whole prompt alive (peak_bytes)")
        return warnings

    @staticmethod
    def _check_old_static(model: ModelSpec, settings: Settings, rows: list[Rows]) -> None:
        """Refuse the static cache where a release gives models with states caches of their own.

        Raises:
            UnsupportedError: a layer has a state.
        """
        if any(r.has_state for r in rows):
            flag = "--cache-implementation"
            raise UnsupportedError(
                f"transformers {settings.engine_version} gives {model.id} a cache of its own, which is never static",
                where=flag,
                hint=f"type {flag} dynamic",
            )

    @staticmethod
    def _check_quantized(model: ModelSpec, settings: Settings, layout: cache.Layout, rows: list[Rows]) -> None:
        """Refusals of ``QuantizedCache``.

        Raises:
            UnsupportedError: layers or groups that it cannot quantise.
        """
        flag = "--cache-implementation"
        old = not at_least(settings.engine_version, UNIFIED_SINCE)
        odd = sorted({r.kind for r in rows if r.has_state or r.index_key or r.fixed_entries or (r.window and not old)})
        if odd:
            raise UnsupportedError(
                f"only caches of full attention are quantised; {model.id} has {', '.join(odd)} layers",
                where=flag,
                hint=f"type {flag} dynamic",
            )
        if layout.backend == "fp8":
            return
        bad = next((r for r in rows if any(e % layout.group for e in (r.k, r.v))), None)
        if bad is not None:
            near = max((g for g in (16, 32, 64, 128) if bad.k % g == 0 and bad.v % g == 0), default=1)
            raise UnsupportedError(
                f"groups of {layout.group} do not divide the {bad.k} and {bad.v} elements of a token's K and V",
                where="--cache-group-size",
                hint=f"type --cache-group-size {near}",
            )

    def layout(self, model: ModelSpec, settings: Settings) -> cache.Layout:
        """The settings that decide the bytes.

        Raises:
            InputError: a value that cannot be read; UnsupportedError: one that transformers refuses.
        """
        chosen = str(settings.extra.get("cache_implementation", "dynamic"))
        flag = "--cache-implementation"
        if chosen not in IMPLEMENTATIONS:
            more = (
                "offloaded and paged caches are not modelled; "
                if chosen in ("offloaded", "offloaded_static", "paged")
                else ""
            )
            raise UnsupportedError(
                f"no cache implementation {chosen!r}",
                where=flag,
                hint=f"{more}type one of {', '.join(IMPLEMENTATIONS)}",
            )
        self._check_stray(settings, chosen)
        size = self._dtype(model, settings).block_bytes
        state = 4 if at_least(settings.engine_version, UNIFIED_SINCE) or _delta_only(model) else size
        if any(mixer.kind == "mlstm" for _, mixer in model.mixers()):
            state = _MLSTM_STATE_BYTES
        cells = whole_number(settings, "max_cache_len", settings.max_model_len)
        plain = cache.Layout(chosen, size, state, cells)
        if chosen != "quantized":
            return plain
        backend, nbits = self._backend(settings)
        return plain._replace(
            backend=backend,
            nbits=nbits,
            group=whole_number(settings, "cache_group_size", 64),
            residual=whole_number(settings, "cache_residual_length", 128, least=0),
        )

    @staticmethod
    def _check_stray(settings: Settings, chosen: str) -> None:
        """Refuse settings of a cache that is not the chosen one."""
        for name in (*QUANTIZED_ONLY, "max_cache_len"):
            owner = "static" if name == "max_cache_len" else "quantized"
            if name in settings.extra and chosen != owner:
                flag = "--" + name.replace("_", "-")
                raise InputError(
                    f"is a setting of the {owner} cache", where=flag, hint=f"add --cache-implementation {owner}"
                )

    @staticmethod
    def _backend(settings: Settings) -> tuple[str, int]:
        """(backend, bits) of the quantised cache.

        Raises:
            UnsupportedError: no such backend in this version, or bits that it does not take.
        """
        backend = str(settings.extra.get("cache_backend", "quanto"))
        known = [b for b in BACKENDS if b != "fp8" or at_least(settings.engine_version, FP8_SINCE)]
        if backend not in known:
            more = f" (fp8 since {FP8_SINCE})" if backend == "fp8" else ""
            raise UnsupportedError(
                f"transformers {settings.engine_version} has no cache backend {backend!r}{more}",
                where="--cache-backend",
                hint=f"type one of {', '.join(known)}",
            )
        if backend == "fp8":
            given = [n for n in QUANTIZED_ONLY if n != "cache_backend" and n in settings.extra]
            if given:
                flag = "--" + given[0].replace("_", "-")
                raise UnsupportedError(
                    "the fp8 backend has one scale per tensor and takes no such setting",
                    where=flag,
                    hint="leave it out",
                )
            return backend, 8
        nbits = whole_number(settings, "cache_nbits", 4)
        if nbits not in BACKENDS[backend]:
            near = min(BACKENDS[backend], key=lambda b: abs(b - nbits))
            fails = "fails to run with" if (backend, nbits) == ("hqq", 3) else "does not take"
            raise UnsupportedError(
                f"{backend} {fails} {nbits} bits", where="--cache-nbits", hint=f"type --cache-nbits {near}"
            )
        return backend, nbits

    @staticmethod
    def _dtype(model: ModelSpec, settings: Settings) -> Format:
        """The dtype the model runs in, which is the cache's."""
        name = model.dtype if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype
        found = get_format(name, use="cache", where="--kv-cache-dtype")
        if found.name not in DTYPES:
            raise UnsupportedError(
                f"transformers keeps the cache in the model's dtype, not in {found.name}",
                where="--kv-cache-dtype",
                hint="type --cache-implementation quantized --cache-nbits 4",
            )
        return found

    def rows(self, model: ModelSpec, settings: Settings) -> list[Rows]:
        """What each layer caches in this version.

        Raises:
            UnsupportedError: a kind of layer whose cache class is not modelled.
        """
        old = not at_least(settings.engine_version, LATENT_SINCE)
        rows = cache_rows(model, rebuilt=old, apart=compressed.KIND)
        if any(mixer.kind == compressed.KIND for _, mixer in model.mixers()):
            self._check_compressed(model, settings)
            rows += [compressed.row(m, n) for n, m in model.mixers() if isinstance(m, CompressedAttention)]
        quantized = settings.extra.get("cache_implementation") == "quantized"
        if model.family in MASKED or (quantized and not at_least(settings.engine_version, UNIFIED_SINCE)):
            rows = [r._replace(window=None) for r in rows]
        return rows

    @staticmethod
    def _check_compressed(model: ModelSpec, settings: Settings) -> None:
        """Refuse what DeepSeek-V4's layers do not do.

        Raises:
            UnsupportedError: a release before the model, a successor, or a cache without such layers.
        """
        if not at_least(settings.engine_version, compressed.SINCE):
            raise UnsupportedError(
                f"transformers {settings.engine_version} has no compressed caches, which {model.id} needs",
                where="--engine",
                hint="type --engine transformers",
            )
        if architecture_key(model) != compressed.ARCHITECTURE:
            raise UnsupportedError(
                f"{model.id}: transformers has no caches for {model.architecture}",
                where="--engine transformers",
                hint="type --engine generic",
            )
        if settings.extra.get("cache_implementation", "dynamic") != "dynamic":
            flag = "--cache-implementation"
            raise UnsupportedError(
                f"only the dynamic cache has the compressed layers of {model.id}",
                where=flag,
                hint=f"type {flag} dynamic",
            )

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        layout, plain = self.layout(model, settings), self._dtype(model, settings)
        fmt = plain
        if layout.implementation == "quantized":
            fmt = get_format("fp8_e4m3") if layout.backend == "fp8" else _group_format(layout)
        return KvFormats(fmt, fmt, plain, plain.block_bytes, layout.state_bytes, cache.SPEC_COLUMNS)

    def pools(self, spec: ModelSpec, settings: Settings, batch: int, prompt: int, tokens: int) -> tuple[CachePool, ...]:
        return cache.pools(self.rows(spec, settings), self.layout(spec, settings), batch, prompt, tokens)

    def peak_bytes(self, spec: ModelSpec, settings: Settings, batch: int, prompt: int, tokens: int) -> int:
        return cache.peak_bytes(self.rows(spec, settings), self.layout(spec, settings), batch, prompt, tokens)

    def held_bytes(self, spec: ModelSpec, settings: Settings, tokens: int) -> int:
        """One sequence; the residual of a quantised cache as full as it gets."""
        prompt, layout = tokens, self.layout(spec, settings)
        if layout.implementation == "quantized" and layout.backend != "fp8":
            prompt = max(1, tokens - max(0, layout.residual - 1))
        if layout.implementation == "static":
            layout = layout._replace(static_tokens=tokens)
        return sum(p.bytes for p in cache.pools(self.rows(spec, settings), layout, 1, prompt, tokens))

    def worst_bytes(self, spec: ModelSpec, settings: Settings, tokens: int) -> int:
        layout = self.layout(spec, settings)
        if layout.implementation == "static":
            layout = layout._replace(static_tokens=tokens)
        return cache.peak_bytes(self.rows(spec, settings), layout, 1, max(1, tokens - 1), tokens)

    def terms(self, stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> list[Term]:
        """Activations of the prompt, which is not divided into chunks, and the CUDA context."""
        batch = settings.concurrency_per_replica
        return [
            forward_term(stage, model, batch * settings.prompt_tokens, batch, "all prompts at once"),
            context_term(),
        ]


def _delta_only(model: ModelSpec) -> bool:
    """Whether every recurrent layer is a delta rule, which computes and keeps float32 in 4.57.6 too."""
    return all(m.kind in ("gated_delta_net", "kda") for _, m in model.mixers() if m.states())


def _group_format(layout: cache.Layout) -> Format:
    """The quantised store as a format: `group` elements with a scale and a zero point in the model's dtype."""
    size = layout.group * layout.nbits // 8 + 2 * layout.element_bytes
    return Format(
        name=f"{layout.backend}{layout.nbits}_g{layout.group}",
        block_elements=layout.group,
        block_bytes=size,
        use="cache",
        source="transformers 5.24.0 cache_utils.py: scale and zero point per group in the model's dtype",
    )
