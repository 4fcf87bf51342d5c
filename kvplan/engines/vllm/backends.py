"""Which attention backend vLLM picks, and the block sizes it takes.

Source: vLLM 0.33.0 ``vllm/platforms/cuda.py`` (``_get_backend_priorities``) and the classes in
``vllm/v1/attention/backends/``; every kernel is taken to be installed. Where a release keys on
something that a machine may lack (a kernel's package), ``--attention-backend`` says what it picked.
"""

from __future__ import annotations

from itertools import product
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from kvplan.engines.vllm.versions import Rules
from kvplan.errors import UnknownNameError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.spec.formats import Format
    from kvplan.spec.kind import Stream

DEFAULT_BLOCK = 16


class Backend(NamedTuple):
    """An attention backend and what it can do."""

    sizes: tuple[int, ...]
    """Tokens of a kernel block; blocks are multiples of one of them."""
    family: str = "dense"
    """``dense``, ``mla`` or ``sparse`` (latent rows with an index)."""
    majors: tuple[int, ...] | None = None
    """Major compute capabilities; None: all."""
    quantized: bool = True
    """Whether it reads 8-bit caches."""
    multiple: bool = True
    """Whether every multiple of its size is a kernel block of its own."""
    row: str = ""
    """Latent row layout of 8-bit caches, where it is not plain: a format name."""
    formats: tuple[str, ...] = ("fp8_e4m3",)
    """Cache formats it reads besides 16 bits, by kvplan's names (``supported_kv_cache_dtypes``)."""
    least: float = 0.0
    """The lowest compute capability."""
    row_stride: int = 1
    """Rows of which blocks are multiples, where its pages lie beside others (``align_blocks_to_rows``)."""

    def takes(self, block_size: int) -> bool:
        """Whether blocks of so many tokens work."""
        return any(block_size % size == 0 for size in self.sizes)


BACKENDS: dict[str, Backend] = {
    "FLASH_ATTN": Backend((16,), formats=("fp8_e4m3", "fp8_e5m2"), least=8.0),
    "FLASHINFER": Backend((16, 32, 64), multiple=False, formats=("fp8_e4m3", "fp8_e5m2", "nvfp4"), least=8.0),
    "TRITON_ATTN": Backend(
        (16,),
        formats=("fp8_e4m3", "fp8_e5m2", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"),
    ),
    "FLEX_ATTENTION": Backend((16,), quantized=False),
    "TURBOQUANT": Backend(
        (16, 32, 64, 128),
        multiple=False,
        formats=("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
    ),
    "FLASH_ATTN_MLA": Backend((16,), "mla", (9,), quantized=False),
    "FLASHMLA": Backend((64,), "mla", (9, 10), multiple=False),
    "FLASHINFER_MLA": Backend((32, 64), "mla", (10,), multiple=False),
    "CUTLASS_MLA": Backend((128,), "mla", (10,), multiple=False),
    "TRITON_MLA": Backend((16,), "mla"),
    "FLASH_ATTN_MLA_SPARSE": Backend((64,), "sparse", (9,), quantized=False),
    "FLASH_ATTN_MLA_SPARSE_FA4": Backend((64,), "sparse", (10,), quantized=False, row_stride=32),
    "FLASHMLA_SPARSE": Backend(
        (64,), "sparse", (9, 10), row="fp8_ds_mla", formats=("fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla")
    ),
    "FLASHINFER_MLA_SPARSE": Backend((32,), "sparse", (10,), row_stride=32),
    "FLASHINFER_MLA_SPARSE_SM90": Backend((64,), "sparse", (9,)),
    "FLASHINFER_MLA_SPARSE_SM120": Backend(
        (64,), "sparse", (12,), row="fp8_ds_mla", formats=("fp8_e4m3", "fp8_ds_mla")
    ),
}
"""name -> what it takes (block sizes: ``get_supported_kernel_block_sizes``)."""

INDEXER = Backend((64,), "index", multiple=False)
"""The sparse-attention indexer's own cache (``DeepseekV32IndexerBackend``)."""

BLOCK_SPARSE = Backend((128,), "index", multiple=False)
"""Sparse attention over K and V by blocks of 128 tokens (MiniMax-M3: ``vllm/models/minimax_m3/common/``)."""
PLAIN_FORMATS = ("bf16", "fp16", "fp32")
"""Cache formats that every backend reads."""

_ORDER: dict[str, dict[int, tuple[str, ...]]] = {
    "mla": {10: ("FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA", "TRITON_MLA"), 12: ("TRITON_MLA",),
            0: ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA")},
    "sparse": {10: ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE"), 12: ("FLASHINFER_MLA_SPARSE_SM120",),
               0: ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE")},
    "dense": {10: ("FLASHINFER", "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION"),
              0: ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")},
}  # fmt: skip
"""family -> major capability (0: any other) -> backends, the preferred first."""
_ROPE_FREE = {9: ("FLASHINFER_MLA_SPARSE_SM90", "FLASHMLA_SPARSE"), 10: ("FLASHINFER_MLA_SPARSE",),
              12: ("FLASHINFER_MLA_SPARSE_SM120",)}  # fmt: skip
"""Major capability -> sparse backends that read rows of 512 without a rotary part (their ``supports_combination``)."""


def get_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        UnknownNameError: none that is known.
    """
    try:
        return BACKENDS[name.upper()]
    except KeyError:
        raise UnknownNameError("attention backend", name, list(BACKENDS), where="--attention-backend") from None


def choose(
    family: str,
    capability: str,
    rules: Rules,
    *,
    quantized: bool,
    cache_format: str = "",
    block_size: int | None = None,
    rope_free: bool = False,
    few_heads: bool = False,
    spelled_out: bool = False,
) -> str:
    """The backend that vLLM picks.

    Args:
        family: ``dense``, ``mla`` or ``sparse``.
        capability: compute capability, ``9.0``.
        quantized: whether the cache is 8-bit or smaller.
        cache_format: canonical name of the cache's format; some formats have a backend of their own.
        block_size: what the user asked for; backends that cannot take it are passed over.
        rope_free: latent rows have no rotary part; few kernels read such.
        few_heads: a rank has 16 query heads or fewer, which FlashMLA pads.
        spelled_out: the format was asked for as ``fp8_e4m3``, which FlashMLA's sparse kernel does not list (it lists
            ``fp8``).

    Raises:
        UnsupportedError: no backend takes these settings; names the nearest block size that works.
    """
    if family == "dense":
        if cache_format.startswith("turboquant"):
            return "TURBOQUANT"
        if cache_format == "nvfp4":
            return "FLASHINFER"
    major = int(capability.partition(".")[0] or 0)
    if cache_format.endswith("_ds_mla") and family != "sparse":
        return "FLASHMLA_SPARSE"
    order = _ROPE_FREE.get(major, ()) if rope_free else _order(family, major, quantized, rules, few_heads=few_heads)
    if family == "dense" and cache_format.endswith("per_token_head"):
        order = ("TRITON_ATTN",)
    able = [n for n in order if _able(BACKENDS[n], major, quantized) and reads(n, capability, cache_format, rules)]
    if spelled_out and family == "sparse":
        able = [n for n in able if n != "FLASHMLA_SPARSE"]
        if major == 9 and rules.has("glm5_next"):
            able.append("FLASHINFER_MLA_SPARSE_SM90")
    for name in able:
        if block_size is None or BACKENDS[name].takes(block_size):
            return name
    if not able or block_size is None:
        raise UnsupportedError(
            f"vLLM {rules.name} has no backend for {family} attention with this cache on capability {capability}",
            where="--engine vllm",
            hint="type --kv-cache-dtype auto" if quantized else "type --engine generic for the arithmetic alone",
        )
    smallest = min(s for n in able for s in BACKENDS[n].sizes)
    near = max(smallest, block_size // smallest * smallest)
    raise UnsupportedError(
        f"no attention backend takes blocks of {block_size} tokens ({', '.join(able)})",
        where="--block-size",
        hint=f"type --block-size {near}",
    )


_FP8_FROM_SM89 = {"TRITON_ATTN": "triton_fp8_from_sm89", "TRITON_MLA": "triton_mla_fp8_from_sm89"}


def reads(name: str, capability: str, cache_format: str, rules: Rules) -> bool:
    """Whether a backend runs on this device with this cache; latent families are told apart by their `majors`.

    FlashAttention reads fp8 on compute capability 9.x (its version 3; 4 on 10.x), and e5m2 up to 0.20;
    FlashInfer begins at 8.0 since 0.24 (before: 7.5). Triton's kernels are picked for fp8 and then refuse it below 8.9.
    """
    backend, number = BACKENDS[name], float(capability or 0)
    if name == "TRITON_MLA" and cache_format.startswith("fp8") and not rules.has("triton_mla_fp8"):
        return False
    change = _FP8_FROM_SM89.get(name)
    if change and 0 < number < 8.9 and cache_format.startswith("fp8") and rules.has(change):
        return False
    if backend.family != "dense":
        return not cache_format or cache_format in (*PLAIN_FORMATS, *backend.formats, backend.row)
    if not number:
        return True
    least = 7.5 if name == "FLASHINFER" and not rules.has("flashinfer_from_sm80") else backend.least
    if number < least:
        return False
    if name == "FLASH_ATTN" and cache_format.startswith("fp8_e"):
        major = int(number)
        eight = major == 9 or (major == 10 and rules.has("fa4_reads_fp8"))
        return eight and (cache_format != "fp8_e5m2" or not rules.has("fa_e4m3_only"))
    return True


def check_choice(name: str, family: str, capability: str, cache_format: str, rules: Rules) -> None:
    """Refuse a backend that was asked for and does not fit, as ``validate_configuration`` does.

    Source: vLLM 0.33.0 ``vllm/v1/attention/backend.py`` and ``vllm/platforms/cuda.py``, ``get_attn_backend_cls``.

    Raises:
        UnknownNameError: no such backend; UnsupportedError: it does not fit; both name those that do.
    """
    fitting = [n for n in BACKENDS if not _reasons(BACKENDS[n], n, family, capability, cache_format, rules)]
    if name.upper() not in BACKENDS:
        raise UnknownNameError(
            "attention backend", name, list(BACKENDS), where="--attention-backend",
            more=f"{', '.join(fitting)} fit here" if fitting else "leave the flag out",
        )  # fmt: skip
    why = _reasons(get_backend(name), name.upper(), family, capability, cache_format, rules)
    if why:
        near = next((n for n in _order(family, int(capability.partition(".")[0]), False, rules) if n in fitting), "")
        near = near or (fitting[0] if fitting else "")
        raise UnsupportedError(
            f"vLLM {rules.name} refuses {name.upper()} here: {', '.join(why)}", where="--attention-backend",
            hint=f"type --attention-backend {near}, or leave the flag out" if near else "leave the flag out",
        )  # fmt: skip


def _reasons(backend: Backend, name: str, family: str, capability: str, cache_format: str, rules: Rules) -> list[str]:
    """In vLLM's words."""
    found, major = [], int(capability.partition(".")[0])
    latent = family in ("mla", "sparse")
    if latent != (backend.family in ("mla", "sparse")):
        found.append("MLA not supported" if latent else "non-MLA not supported")
    elif (family == "sparse") != (backend.family == "sparse"):
        found.append("sparse not supported" if family == "sparse" else "non-sparse not supported")
    plain = cache_format in PLAIN_FORMATS
    if name == "TURBOQUANT" and plain:
        found.append(f"kv_cache_dtype not supported ({cache_format})")
    if not plain and (not backend.quantized or cache_format not in backend.formats):
        found.append(f"kv_cache_dtype not supported ({cache_format})")
    if backend.majors is not None and major not in backend.majors:
        found.append(f"compute capability not supported ({capability})")
    elif not found and not reads(name, capability, cache_format, rules):
        low = not reads(name, capability, "bf16", rules)
        found.append(
            f"compute capability not supported ({capability})"
            if low
            else f"kv_cache_dtype not supported ({cache_format} on compute capability {capability})"
        )
    return found


def _order(
    family: str, major: int, quantized: bool, rules: Rules, *, few_heads: bool = False
) -> tuple[str, ...]:  # fmt: skip
    orders = _ORDER[family]
    found = orders.get(major) or orders[0]
    forced = rules.has("backends_list_formats") and not rules.has("sparse_past_cutlass")
    if family == "sparse" and ((major == 12 and not rules.has("sm120_sparse")) or (major == 10 and forced)):
        return ()
    if family == "sparse" and major == 10 and not quantized:
        if few_heads:
            return ("FLASH_ATTN_MLA_SPARSE_FA4", *found) if rules.has("fa4_sparse") else found
        return found[::-1]  # FlashMLA first for bf16 rows
    if family == "sparse" and not rules.has("flash_attn_sparse"):
        return tuple(n for n in found if n != "FLASH_ATTN_MLA_SPARSE")
    return found


def _able(backend: Backend, major: int, quantized: bool) -> bool:
    return (backend.majors is None or major in backend.majors) and (backend.quantized or not quantized)


def forced_block(family: str, capability: str, rules: Rules, asked: int | None = None) -> int | None:
    """The block size that releases before 0.18 force on latent caches; None: the backend decides.

    Args:
        asked: the size that the user gave, which 0.12 and later leave where it is a multiple.

    Source: vLLM 0.11.0 to 0.17.0 ``vllm/platforms/cuda.py``, ``check_and_update_config``.
    """
    if rules.has("backend_chooses_block") or family == "dense":
        return None
    major = int(capability.partition(".")[0] or 0)
    if family == "sparse":
        return 64
    if major not in (9, 10):
        return asked or DEFAULT_BLOCK
    step = 128 if major == 10 and not rules.has("mamba_cache_modes") else 64
    if not asked or not rules.has("group_of_the_larger"):
        return step
    return asked if asked % step == 0 or (asked == 32 and major == 10 and step == 64) else step


def preferred_block(backends: list[Backend]) -> int:
    """The smallest block that every backend takes; 16 where all do.

    Source: vLLM 0.33.0 ``vllm/platforms/interface.py``, ``_preferred_block_size_for_backends``.

    Raises:
        UnsupportedError: they share none.
    """
    if all(b.takes(DEFAULT_BLOCK) for b in backends):
        return DEFAULT_BLOCK
    candidates = sorted({lcm(*sizes) for sizes in product(*(b.sizes for b in backends))})
    for size in candidates:
        if all(b.takes(size) for b in backends):
            return size
    raise UnsupportedError(
        "the attention backends share no block size", where="--block-size", hint="type --engine generic"
    )


def window_block(backend: Backend, block_size: int, rules: Rules) -> int:
    """The block that a windowed layer chooses for itself: the largest kernel block not above the model's.

    0.25 to 0.29 took the smallest, which then grows with the pages. Source: vLLM 0.25.0 to 0.33.0
    ``vllm/model_executor/layers/attention/attention.py``, ``_largest_kernel_block_within``.
    """
    if not rules.has("window_largest_block"):
        return min(backend.sizes)
    if backend.multiple:
        size = backend.sizes[0]
        return max(size, block_size // size * size)
    fitting = [size for size in backend.sizes if size <= block_size]
    return max(fitting) if fitting else min(backend.sizes)


def check_packed_windows(
    model: str, streams: Iterable[Stream], outermost: Iterable[Stream], fmt: Format, rules: Rules
) -> list[str]:
    """TurboQuant beside windows; returns warnings.

    Source: vLLM 0.26.0 to 0.33.0 ``vllm/v1/attention/backend.py``, ``validate_configuration``; for chunks vLLM 0.20.0
    to 0.33.0 ``chunked_local_attention.py``, which picks TurboQuant's kernels for outermost layers too.

    Raises:
        UnsupportedError: a windowed layer, for which no backend of 0.26 or later both unpacks and reads windows; or a
            chunked one among the outermost, whose rows are not packed.
    """
    windowed = [s for s in streams if s.window] if fmt.edge_layers else []
    if rules.has("windows_ask_backend") and any(not s.chunked for s in windowed):
        raise UnsupportedError(
            f"no attention backend of vLLM {rules.name} takes {fmt.name} for the windowed layers of {model}: "
            "TURBOQUANT: [sliding window not supported]",
            where="--kv-cache-dtype", hint="type --kv-cache-dtype fp8",
        )  # fmt: skip
    if fmt.edge_layers and any(s.chunked for s in outermost):
        raise UnsupportedError(
            f"vLLM {rules.name} does not start with {fmt.name} where the outermost layers of {model} are chunked: it "
            "gives TurboQuant's kernels rows that are not packed (Unknown TurboQuant cache dtype: 'auto')",
            where="--kv-cache-dtype", hint="type --kv-cache-dtype fp8",
        )  # fmt: skip
    chunked = any(s.chunked for s in windowed)
    return ["TurboQuant pages of chunked layers are not modelled: theirs are taken as packed"] if chunked else []
