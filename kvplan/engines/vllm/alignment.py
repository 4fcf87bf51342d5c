"""Block sizes that pages of several kinds must agree on: states beside attention, packed rows beside plain ones."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from kvplan.cache.mamba import Mamba2
from kvplan.engines.common import balanced_split
from kvplan.engines.vllm.backends import DEFAULT_BLOCK, Backend
from kvplan.engines.vllm.layers import Inputs, attention_family, model_caches
from kvplan.engines.vllm.specs import up
from kvplan.engines.vllm.states import state_bytes
from kvplan.engines.vllm.versions import Rules
from kvplan.errors import UnsupportedError

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import ModelSpec

_MAMBA1_CHUNK = 2048
"""Tokens of a chunk of kernels that have none (vLLM 0.15.0 to 0.31.0 ``vllm/config/model.py``,
``get_mamba_chunk_size``)."""


def hybrid_block(
    model: ModelSpec,
    mixers: list[CacheKind],
    settings: Settings,
    inputs: Inputs,
    backends: list[Backend],
    mode: str,
    grid: int,
) -> Inputs:
    """Grow the attention block until its page covers a state, and pad states to that page.

    Source: vLLM 0.33.0 ``vllm/platforms/interface.py``, ``_align_hybrid_block_size``; before 0.18
    ``HybridAttentionMambaModelConfig``.
    """
    rules = inputs.rules
    state = max(state_bytes(m, inputs.dtypes, rules, inputs.draft_tokens) for m in mixers if m.states())
    per_token = _token_bytes(model, inputs)
    if not state or not per_token:
        return inputs
    latent = attention_family(mixers) != "dense"
    align = max(min(backends[0].sizes), inputs.block_size)
    if not rules.has("backend_aligns_hybrids"):
        align = _old_alignment(latent, mixers, settings, rules)
    elif latent and rules.has("hybrid_mla_128"):
        align = max(align, 128)
    align = lcm(align, grid)
    block = align * up(state, align * per_token)
    if mode == "all":
        chunk = settings.extra.get("mamba_block_size") or _kernel_chunk(mixers)
        if not chunk:
            raise UnsupportedError(
                "mamba cache mode all needs the kernel's chunk size, which the model's description does not hold",
                where="--mamba-block-size",
                hint="add --mamba-block-size with the configuration's chunk size, or type --mamba-cache-mode align",
            )
        chunk = lcm(int(chunk), align)
        block = chunk * up(up(state, per_token), chunk)
    if rules.has("every_backend_aligns"):
        step = lcm(*(min(b.sizes) for b in backends))
        block = step * up(block, step)
    block = max(block, inputs.block_size)
    if mode == "align" and rules.has("block_within_step") and not rules.has("block_past_step"):
        _check_step(block, settings.max_num_batched_tokens, rules)
    return inputs._replace(block_size=block, state_block=block, state_padding=block * per_token)


def _check_step(block: int, batched: int | None, rules: Rules) -> None:
    """A step must reach the end of a block, where states are kept (vLLM 0.17.0 to 0.26.0
    ``vllm/config/vllm.py``).

    Raises:
        UnsupportedError: it does not.
    """
    if batched is not None and block > batched:
        raise UnsupportedError(
            f"vLLM {rules.name} refuses blocks of {block:,} tokens above max_num_batched_tokens {batched:,} where "
            "states are kept at their ends",
            where="--max-num-batched-tokens", hint=f"type --max-num-batched-tokens {block}",
        )  # fmt: skip


def _kernel_chunk(mixers: list[CacheKind]) -> int | None:
    """Tokens that the kernel of the recurrent layers scans at once; None: the model's description does not say."""
    recurrent = [m for m in mixers if m.states()]
    if all(m.kind == "mamba1" for m in recurrent):
        return _MAMBA1_CHUNK
    return next((m.chunk_size for m in recurrent if isinstance(m, Mamba2)), None)


def _old_alignment(latent: bool, mixers: list[CacheKind], settings: Settings, rules: Rules) -> int:
    """Multiples of which hybrid blocks were before the backend chose them too.

    Source: vLLM 0.11.0, 0.14.0 and 0.19.0 ``vllm/model_executor/models/config.py``.
    """
    major = str(settings.extra.get("compute_capability", "9.0")).partition(".")[0]
    if not rules.has("group_of_the_larger"):
        return 16
    if latent:
        return 128 if settings.extra.get("attention_backend") == "CUTLASS_MLA" else 64
    wide = any(s.head_dim == 256 for m in mixers for s in m.streams())
    return 32 if major == "10" and wide and rules.has("chunked_in_hybrid_manager") else 16


def _token_bytes(model: ModelSpec, inputs: Inputs) -> int:
    """Bytes of one token in one attention layer: the first one's."""
    for _, cache in model_caches(model, inputs):
        if cache.family in ("full", "mla", "sliding", "chunked") and cache.shape[:1] != ("index",):
            return cache.row_bytes
    return 0


def mixed_blocks(model: ModelSpec, mixers: list[CacheKind], settings: Settings, inputs: Inputs) -> list[int]:
    """Tokens of a block of every pipeline stage where outermost layers are not packed and the others are.

    A block's page must cover a kernel block of the plain layers. Every rank reckons it with the backend of its own
    first layer: one that does not pack counts a byte an element for packed rows, TurboQuant's own (since 0.28) their
    true bytes.
    Source: vLLM 0.33.0 ``vllm/platforms/interface.py``, ``_align_heterogeneous_kv_block_size``.
    """
    step = max(DEFAULT_BLOCK, inputs.block_size)
    streams = next((found for m in mixers if (found := [s for s in m.streams() if s.role in ("k", "v")])), [])
    if not streams:
        return [step] * settings.pipeline_parallel_size
    elements = sum(s.heads * s.head_dim for s in streams)
    packed = elements
    if inputs.rules.has("backends_count_packing"):
        packed = sum(inputs.formats.k.pair_bytes(streams[0].heads, streams[0].head_dim, streams[-1].head_dim))
    need = inputs.dtypes.conv * elements * DEFAULT_BLOCK
    edge = min(inputs.formats.k.edge_layers, model.num_layers // 2)
    blocks, first = [], 0
    for count in balanced_split(model.num_layers, settings.pipeline_parallel_size):
        plain = first < edge or first >= model.num_layers - edge
        per_token = elements if plain else packed
        blocks.append(step * up(need, step * per_token))
        first += count
    return blocks
