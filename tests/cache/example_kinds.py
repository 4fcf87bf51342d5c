"""A mixer of every cache kind, in the sizes of released models."""

from __future__ import annotations

from dataclasses import replace

from kvplan.cache.attention import FullAttention
from kvplan.cache.compressed import CompressedAttention
from kvplan.cache.cross import CrossAttention
from kvplan.cache.delta import GatedDeltaNet, KimiDeltaAttention
from kvplan.cache.latent import LatentAttention
from kvplan.cache.lightning import LightningAttention
from kvplan.cache.mamba import Mamba1, Mamba2
from kvplan.cache.mlstm import Mlstm
from kvplan.cache.none import NoCache
from kvplan.cache.rg_lru import RgLru
from kvplan.cache.rwkv import Rwkv
from kvplan.cache.shared import SharedAttention
from kvplan.cache.short_conv import ShortConv
from kvplan.cache.sliding import ChunkedAttention, SlidingAttention
from kvplan.spec.kind import CacheKind

LLAMA = FullAttention(query_heads=32, kv_heads=8, head_dim=128)  # Llama 3.1 8B, hidden 4096
V3 = LatentAttention(  # DeepSeek-V3, hidden 7168
    query_heads=128, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, q_lora_rank=1536
)
V32 = replace(V3, index_head_dim=128, index_heads=64, index_topk=2048)  # DeepSeek-V3.2
V4 = CompressedAttention(  # sizes of DeepSeek-V4-Flash with every part of the layer
    query_heads=64, head_dim=512, window=128, ratio=4, index_head_dim=128, index_heads=64, index_topk=512,
    q_lora_rank=1024, o_lora_rank=1024, o_groups=8, compressor=True,
)  # fmt: skip
MAMBA = Mamba1(inner_size=1536, state_size=16, conv_kernel=4, dt_rank=48)  # mamba-130m, hidden 768
MAMBA2 = Mamba2(heads=24, head_dim=64, state_size=128, groups=1, conv_kernel=4)  # mamba2-130m, hidden 768
NEXT = GatedDeltaNet(key_heads=16, value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel=4)  # Qwen3-Next
KIMI = KimiDeltaAttention(heads=32, head_dim=128, conv_kernel=4)  # Kimi-Linear-48B, hidden 2304
MINIMAX = LightningAttention(heads=64, head_dim=128)  # MiniMax-Text-01, hidden 6144
XLSTM = Mlstm(heads=8, qk_head_dim=256, v_head_dim=512)  # xLSTM-7b, hidden 4096
GRIFFIN = RgLru(width=2560, heads=10, conv_kernel=4)  # RecurrentGemma 2B, hidden 2560
LFM = ShortConv(channels=2048, conv_kernel=3)  # LFM2 1.2B, hidden 2048
RWKV = Rwkv(heads=64, head_dim=64, hidden_size=4096, version=7)  # RWKV-7 7.2B

EVERY: dict[str, CacheKind] = {
    "full": LLAMA,
    "sliding": SlidingAttention(query_heads=32, kv_heads=8, head_dim=128, window=4096),
    "chunked": ChunkedAttention(query_heads=40, kv_heads=8, head_dim=128, window=8192),
    "cross": CrossAttention(query_heads=20, kv_heads=20, head_dim=64, encoder_tokens=1500),
    "shared": SharedAttention(query_heads=8, kv_heads=2, head_dim=256, source="global"),
    "mla": V32,
    "compressed": V4,
    "mamba1": MAMBA,
    "mamba2": MAMBA2,
    "gated_delta_net": NEXT,
    "kda": KIMI,
    "lightning": MINIMAX,
    "mlstm": XLSTM,
    "short_conv": LFM,
    "rwkv": RWKV,
    "rg_lru": GRIFFIN,
    "none": NoCache(),
}


def weights(mixer: CacheKind, hidden_size: int) -> dict[str, int]:
    return {tensor.name: tensor.elements for tensor in mixer.tensors(hidden_size)}


def states(mixer: CacheKind) -> dict[str, int]:
    return {state.name: state.elements for state in mixer.states()}


def elements(mixer: CacheKind, tokens: int) -> int:
    """Cached elements of one layer."""
    return sum(s.entries(tokens) * s.heads * s.head_dim for s in mixer.streams())
