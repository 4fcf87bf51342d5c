"""From GGUF metadata to what each layer caches, as llama.cpp sees it."""

from __future__ import annotations

from typing import Any, Literal

from kvplan.cache.attention import FullAttention
from kvplan.cache.compressed import CompressedAttention
from kvplan.cache.delta import GatedDeltaNet, KimiDeltaAttention
from kvplan.cache.latent import LatentAttention
from kvplan.cache.lightning import LightningAttention
from kvplan.cache.mamba import Mamba1, Mamba2
from kvplan.cache.none import NoCache
from kvplan.cache.rwkv import Rwkv
from kvplan.cache.shared import SharedAttention
from kvplan.cache.short_conv import ShortConv
from kvplan.cache.sliding import ChunkedAttention, SlidingAttention
from kvplan.sources.gguf import architectures as arch
from kvplan.sources.gguf.keys import MAX_LAYERS, Keys
from kvplan.spec.kind import CacheKind


class Shape:
    """The per-layer numbers of a file, read once.

    Names follow the keys: ``heads`` is ``attention.head_count``, and so on.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys, self.architecture = keys, keys.architecture
        stored = keys.must("block_count")
        if stored > MAX_LAYERS:
            keys.fail(f"{stored:,} layers are more than the {MAX_LAYERS} that llama.cpp takes")
        drafts = min(keys.get("nextn_predict_layers", 0), stored - 1)
        self.trunk = stored - drafts
        self.layers = stored if self.architecture in arch.NEXTN_CACHED else self.trunk
        self.hidden = keys.must("embedding_length")
        self.heads = keys.per_layer("attention.head_count", self.layers, 0)
        self.kv_heads = keys.per_layer("attention.head_count_kv", self.layers, -1)
        self.kv_heads = [h if kv < 0 else kv for h, kv in zip(self.heads, self.kv_heads, strict=True)]
        if self.architecture not in arch.PURE:
            self._attends()
        self.ffn = keys.per_layer("feed_forward_length", self.layers, 0)
        first = self.heads[0] or next((h for h in self.heads if h), 0)
        plain = self.hidden // first if first else 0
        self.dim_k = keys.get("attention.key_length", plain)
        self.dim_v = keys.get("attention.value_length", plain)
        self.window, self.sliding = self._windows()
        self.recurrent = self._recurrent()
        self.owners = self._owners()
        self.latent = keys.get("attention.key_length_mla", 0) > 0 and keys.get("attention.value_length_mla", 0) > 0

    def _attends(self) -> None:
        """Refuse a file whose attention has no heads in any layer."""
        for name, heads in (("attention.head_count", self.heads), ("attention.head_count_kv", self.kv_heads)):
            if not any(heads):
                if name in self.keys:
                    self.keys.fail(f"{name} is 0 in every layer")
                self.keys.fail(f"does not say its {self.architecture}.{name}")

    def _windows(self) -> tuple[int, list[bool]]:
        """(window, which layers have it)."""
        none = [False] * self.layers
        rule = arch.WINDOWS.get(self.architecture)
        if rule is None or (rule.at_layers and rule.at_layers != self.trunk):
            return 0, none
        window = self.keys.get("attention.sliding_window", rule.default or 0)
        if not window:
            return 0, none
        window = rule.fixed or window
        if rule.period == 0:
            return window, [kv > 0 for kv in self.kv_heads]
        stored = self.keys.raw("attention.sliding_window_pattern")
        if isinstance(stored, list | tuple):
            return window, [bool(v) for v in self.keys.per_layer("attention.sliding_window_pattern", self.layers, 0)]
        period = self.keys.get("attention.sliding_window_pattern", rule.period or 0)
        if not period and rule.period is None:
            self.keys.fail("does not say which layers have a window (attention.sliding_window_pattern)")
        dense = 0 if rule.dense_first else period - 1
        return window, [il < self.trunk and (not period or il % period != dense) for il in range(self.layers)]

    def _recurrent(self) -> list[bool]:
        """Which layers hold a state instead of (or besides) K and V."""
        name = self.architecture
        if name in arch.PURE or name == arch.BOTH:
            return [True] * self.layers
        if name in arch.INTERVAL:
            marks = self.keys.raw("attention.recurrent_layers")
            if isinstance(marks, list | tuple):
                return [bool(v) for v in self.keys.per_layer("attention.recurrent_layers", self.layers, 0)]
            every = self.keys.get("full_attention_interval", arch.INTERVAL[name])
            if not every:
                self.keys.fail("full_attention_interval is 0")
            return [il < self.trunk and (il + 1) % every != 0 for il in range(self.layers)]
        if name in arch.SSM | arch.KDA | arch.CONV:
            feeds = self.ffn if name.startswith("nemotron") else [0] * self.layers
            return [
                il < self.trunk and not kv and not f
                for il, (kv, f) in enumerate(zip(self.kv_heads, feeds, strict=True))
            ]
        return [False] * self.layers

    def _owners(self) -> int:
        """Layers from the start that own a cache."""
        shared = self.keys.get("attention.shared_kv_layers", 0) if self.architecture == "gemma4" else 0
        owners = arch.OWNERS.get(self.architecture, self.keys.get("block_count", 0) - shared)
        if shared and owners < 2:
            self.keys.fail(f"shares the cache of {max(0, owners)} of {self.layers} layers")
        return min(owners, self.layers)

    def indexed(self, il: int) -> bool:
        """Whether a layer's indexer stores keys of its own."""
        name = self.architecture
        if name == "hy_v4" and not self.keys.get("attention.indexer.top_k", 0):
            return False
        if name == "minimax-m3":
            return il >= self.keys.get("leading_dense_block_count", 0)
        if name == "qwen4exp":
            return not self.recurrent[il]
        if il >= self.trunk:
            return False
        if name == "deepseek32" or "attention.indexer.types" not in self.keys:
            if name == "glm-dsa" and self.keys.get("context_length", 0) >= 1 << 20:
                return il < 2 or (il - 2) % 4 == 0  # GLM-5.2 as converted without the key
            return name not in ("hy_v4", "dots3note")
        return bool(self.keys.per_layer("attention.indexer.types", self.trunk, 0)[il])


def mixers(shape: Shape, il: int) -> tuple[CacheKind, ...]:
    """What layer `il` caches.

    Raises:
        SpecError: keys that are missing or do not fit each other.
    """
    try:
        return tuple(_mixers(shape, il))
    except ValueError as error:
        shape.keys.fail(f"layer {il}: {error}")


def _mixers(shape: Shape, il: int) -> list[CacheKind]:
    found = _recurrent(shape, il) if shape.recurrent[il] else []
    if not shape.recurrent[il] or shape.architecture == arch.BOTH:
        found.append(_attention(shape, il))
    return found


def _recurrent(shape: Shape, il: int) -> list[CacheKind]:
    keys, name = shape.keys, shape.architecture
    if name in arch.RWKV:
        size = keys.must("wkv.head_size")
        if shape.hidden % size:
            raise ValueError(f"a hidden size of {shape.hidden} is not a multiple of wkv.head_size {size}")
        version: Literal[6, 7] = 7 if name in ("rwkv7", "arwkv7") else 6
        shifts = keys.get("token_shift_count", 2)
        return [
            Rwkv(
                heads=shape.hidden // size,
                head_dim=size,
                token_shifts=shifts,
                hidden_size=shape.hidden,
                version=version,
            )
        ]
    if name in arch.CONV:
        return [ShortConv(channels=shape.hidden, conv_kernel=keys.must("shortconv.l_cache"))]
    if name in arch.KDA:
        heads = shape.heads[0] or next((h for h in shape.heads if h), 0)
        return [
            KimiDeltaAttention(
                heads=heads, head_dim=keys.must("kda.head_dim"), conv_kernel=keys.get("ssm.conv_kernel", 4) or 4
            )
        ]
    if name == arch.LIGHTNING:
        return [LightningAttention(heads=shape.heads[0], head_dim=shape.dim_k)]
    inner, state, kernel = keys.must("ssm.inner_size"), keys.must("ssm.state_size"), keys.must("ssm.conv_kernel")
    rank, groups = keys.must("ssm.time_step_rank"), keys.get("ssm.group_count", 0)
    if not groups:
        return [Mamba1(inner_size=inner, state_size=state, conv_kernel=kernel, dt_rank=rank)]
    if inner % rank:
        raise ValueError(f"ssm.inner_size {inner} is not a multiple of ssm.time_step_rank {rank}")
    if name not in arch.DELTA:
        return [Mamba2(heads=rank, head_dim=inner // rank, state_size=state, groups=groups, conv_kernel=kernel)]
    net = GatedDeltaNet(
        key_heads=groups, value_heads=rank, key_head_dim=state, value_head_dim=inner // rank, conv_kernel=kernel
    )
    return [net, *_ngram_history(shape, il)]


def _ngram_history(shape: Shape, il: int) -> list[CacheKind]:
    """The convolution history of a hashed n-gram embedding, kept in the recurrent cache of its layer."""
    layers = shape.keys.raw("ple.layers")
    if not isinstance(layers, list | tuple) or il not in layers:
        return []
    channels = shape.keys.must("ple.ngram_size") * shape.keys.must("hyper_connection.count") * shape.hidden
    return [ShortConv(channels=channels, conv_kernel=shape.keys.must("ple.conv_kernel"))]


def _attention(shape: Shape, il: int) -> CacheKind:
    keys, heads, kv_heads = shape.keys, shape.heads[il], shape.kv_heads[il]
    if shape.architecture == arch.COMPRESSED:
        return _compressed(shape, il)
    if not heads or not kv_heads or (shape.architecture.startswith("nemotron_h") and shape.ffn[il]):
        return NoCache()
    if shape.latent:
        return _latent(shape, il)
    sliding = shape.sliding[il]
    dim_k = keys.get("attention.key_length_swa", shape.dim_k) if sliding else shape.dim_k
    dim_v = keys.get("attention.value_length_swa", shape.dim_v) if sliding else shape.dim_v
    common: dict[str, Any] = dict(
        query_heads=heads, kv_heads=kv_heads, head_dim=dim_k, head_dim_v=dim_v if dim_v != dim_k else None
    )
    if il >= shape.owners:
        source = next(i for i in reversed(range(shape.owners)) if shape.sliding[i] == sliding or i == 0)
        return SharedAttention(**common, source=f"layer {source}", window=shape.window if sliding else None)
    if sliding:
        kind = ChunkedAttention if shape.architecture == "llama4" else SlidingAttention
        return kind(**common, window=shape.window)
    index = (
        keys.must("attention.indexer.key_length")
        if shape.architecture in arch.INDEXED_GQA and shape.indexed(il)
        else None
    )
    index_heads = keys.get("attention.indexer.head_count", 0) or None if index else None
    return FullAttention(**common, index_head_dim=index, index_heads=index_heads)


def _latent(shape: Shape, il: int) -> CacheKind:
    """One row per token for all heads; in windowed layers the same without an indexer."""
    keys, heads, kv_heads = shape.keys, shape.heads[il], shape.kv_heads[il]
    if shape.sliding[il]:
        width = keys.get("attention.key_length_swa", shape.dim_k) * kv_heads
        return CompressedAttention(query_heads=heads, head_dim=width, window=shape.window)
    row, rank = shape.dim_k * kv_heads, keys.must("attention.kv_lora_rank")
    rope = row - rank
    if rope < 0:
        raise ValueError(f"a row of {row} elements is narrower than kv_lora_rank {rank}")
    nope = keys.must("attention.key_length_mla") - (rope if kv_heads == 1 else 0)
    index = (
        keys.must("attention.indexer.key_length") if shape.architecture in arch.INDEXED and shape.indexed(il) else None
    )
    return LatentAttention(
        query_heads=heads, kv_lora_rank=rank, qk_rope_head_dim=rope, qk_nope_head_dim=max(1, nope),
        v_head_dim=keys.must("attention.value_length_mla"), q_lora_rank=keys.get("attention.q_lora_rank", 0) or None,
        index_head_dim=index, index_heads=keys.get("attention.indexer.head_count", 0) or None if index else None,
        index_topk=keys.get("attention.indexer.top_k", 0) or None if index else None,
    )  # fmt: skip


def _compressed(shape: Shape, il: int) -> CacheKind:
    keys = shape.keys
    ratio = keys.per_layer("attention.compress_ratios", shape.layers, 0)[il]
    kept = ratio if ratio in arch.COMPRESS_RATIOS else None
    index = keys.must("attention.indexer.key_length") if kept == arch.COMPRESS_RATIOS[0] else None
    return CompressedAttention(
        query_heads=shape.heads[il], head_dim=shape.dim_k, window=keys.must("attention.sliding_window"), ratio=kept,
        index_head_dim=index, index_heads=keys.get("attention.indexer.head_count", 0) or None if index else None,
        index_topk=keys.get("attention.indexer.top_k", 0) or None if index else None,
        q_lora_rank=keys.get("attention.q_lora_rank", 0) or None,
        o_lora_rank=keys.get("attention.output_lora_rank", 0) or None,
        o_groups=keys.get("attention.output_group_count", 0) or None, compressor=kept is not None,
    )  # fmt: skip
