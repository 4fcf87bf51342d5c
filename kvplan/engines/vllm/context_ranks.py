"""Decode context parallelism: ranks that share the tokens of one KV head, where vLLM lets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.common import check_context_parallel
from kvplan.engines.vllm.backends import PLAIN_FORMATS
from kvplan.engines.vllm.layers import attention_family, has_states, mixers_of
from kvplan.engines.vllm.versions import CHANGES, Rules
from kvplan.errors import UnsupportedError

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.spec.model import ModelSpec


def check_context_ranks(model: ModelSpec, settings: Settings, rules: Rules, cache: str) -> None:
    """Refuse context ranks of a size or beside layers that vLLM does not take.

    Args:
        cache: name of the cache's format.

    Source: for states vLLM 0.11.0 to 0.25.0 ``vllm/v1/core/kv_cache_coordinator.py``, ``HybridKVCacheCoordinator``.

    Raises:
        UnsupportedError: such ranks.
    """
    dcp = settings.decode_context_parallel_size
    where = "--decode-context-parallel-size"
    check_context_parallel(model, settings)
    if settings.enable_prefix_caching and has_states(model) and not rules.has("context_ranks_cache_prefixes"):
        since = ".".join(map(str, CHANGES["context_ranks_cache_prefixes"].since))
        raise UnsupportedError(
            f"vLLM {rules.name} does not share prefixes of a model with states over context ranks: "
            "DCP not support hybrid attn now", where=where,
            hint=f"leave --enable-prefix-caching out, or type --engine vllm@{since}, or {where} 1",
        )  # fmt: skip
    family = attention_family(mixers_of(model))
    if family == "sparse":
        _check_sparse(settings, rules, cache, where)
    elif family in ("dense", "mla"):
        _check_kernel(family, settings, rules, where)
    for mixer in mixers_of(model):
        streams = mixer.streams()
        if not streams or streams[0].name == "latent":
            continue
        if streams[0].window is not None:
            raise UnsupportedError(
                "vLLM does not share the tokens of windowed layers", where=where, hint=f"type {where} 1"
            )
        heads = streams[0].heads
        per_head = getattr(mixer, "query_heads", heads) // heads
        if per_head % dcp:
            raise UnsupportedError(
                f"{per_head} query heads per KV head are not a multiple of {dcp}", where=where, hint=f"type {where} 1"
            )


_MERGED = {"dense": ("FLASH_ATTN", "FLASHINFER"),
           "mla": ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "CUTLASS_MLA", "TRITON_MLA")}  # fmt: skip
"""Family -> the backends whose partial results context ranks can merge."""


def _check_kernel(family: str, settings: Settings, rules: Rules, where: str) -> None:
    """The kernels of K and V, and of latent rows, that return what context ranks merge.

    Source: vLLM 0.11.0 to 0.33.0 ``can_return_lse_for_decode`` in ``vllm/v1/attention/backends/``, which a worker asks
    for (0.14.0 to 0.33.0 ``vllm/v1/worker/cp_utils.py``), and since 0.30.0 the choice of the backend.

    Raises:
        UnsupportedError: the backend is none of them.
    """
    name = str(settings.extra.get("attention_backend", ""))
    change = "dense_context_ranks" if family == "dense" else "flashinfer_sparse_context_ranks"
    if name in _MERGED[family] and (name not in ("FLASH_ATTN", "FLASHINFER", "FLASHINFER_MLA") or rules.has(change)):
        return
    why = f" before {'.'.join(map(str, CHANGES[change].since))}" if name in _MERGED[family] else ""
    if name:
        raise UnsupportedError(
            f"vLLM {rules.name} does not share the rows that {name} reads over context ranks{why}",
            where=where, hint=f"type {where} 1",
        )  # fmt: skip


def _check_sparse(settings: Settings, rules: Rules, cache: str, where: str) -> None:
    """The kernels of sparse latent attention that return what context ranks merge.

    Source: vLLM 0.11.0 to 0.33.0 ``can_return_lse_for_decode`` in ``vllm/v1/attention/backends/mla/``, and
    ``FlashMLASparseImpl``, which refuses 16-bit rows.

    Raises:
        UnsupportedError: the backend is none of them.
    """
    backend = str(settings.extra.get("attention_backend", ""))
    flashinfer = backend.startswith("FLASHINFER") or backend.endswith("_FA4")  # which decodes on FlashInfer's terms
    change = "flashinfer_sparse_context_ranks" if flashinfer else "sparse_context_ranks"
    if not rules.has(change):
        why, hint = f"before {'.'.join(map(str, CHANGES[change].since))}", f"type {where} 1"
    elif flashinfer or cache not in PLAIN_FORMATS:
        return
    else:
        why, hint = "in 16 bits", f"type --kv-cache-dtype fp8, or {where} 1"
    raise UnsupportedError(
        f"vLLM {rules.name} does not share the rows of sparse latent attention over context ranks {why}",
        where=where, hint=hint,
    )  # fmt: skip
