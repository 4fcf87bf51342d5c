"""Models of random shapes, written as configurations: what their caches hold follows from the numbers here alone.

Shared by the tests that hold an engine's module against the rules of the engine itself, written down a second time.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from kvplan import load_gpu
from kvplan.engines.base import Engine
from kvplan.planning.evaluate import Outcome
from kvplan.planning.planner import work_out
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec


class Shape(NamedTuple):
    """The numbers of a model, and what kvplan reads out of a configuration that has them."""

    windows: tuple[int | None, ...]
    """Of each layer; None: it keeps everything."""
    query_heads: int
    kv_heads: int
    head_dim: int
    rank: int
    """Elements of the latent; 0: K and V of every KV head."""
    rope: int
    hidden: int
    vocab: int
    longest: int
    model: ModelSpec

    @property
    def layers(self) -> int:
        return len(self.windows)


_PLAIN = {"tie_word_embeddings": False, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6}


def plain(rng: Random, **changed: Any) -> Shape:
    """Grouped attention in every layer."""
    kv = rng.choice([2, 4, 8, 16])
    return _shape(
        rng, "llama", "LlamaForCausalLM", [None] * rng.randint(2, 13), kv * rng.choice([1, 2, 4]), kv,
        rng.choice([64, 96, 128, 256]), {}, changed,
    )  # fmt: skip


def windowed(rng: Random, **changed: Any) -> Shape:
    """Windows in some layers, in an architecture that every engine here gives pools or rings of their own."""
    window = rng.choice([128, 512, 1000, 2048])
    layers = [rng.choice([window, window, None]) for _ in range(rng.randint(2, 10))] + [window, None]
    kinds = {
        "layer_types": ["full_attention" if w is None else "sliding_attention" for w in layers],
        "sliding_window": window, "num_local_experts": 4, "num_experts_per_tok": 2,
    }  # fmt: skip
    kv = rng.choice([2, 4, 8])
    return _shape(rng, "gpt_oss", "GptOssForCausalLM", layers, 2 * kv, kv, rng.choice([64, 128]), kinds, changed)


def latent(rng: Random, **changed: Any) -> Shape:
    """Latent attention in every layer."""
    rank, rope, heads = rng.choice([256, 384, 512]), rng.choice([32, 64]), rng.choice([8, 16])
    kinds = {
        "q_lora_rank": 96, "kv_lora_rank": rank, "qk_rope_head_dim": rope, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    layers = [None] * rng.randint(2, 9)
    found = _shape(rng, "deepseek_v3", "DeepseekV3ForCausalLM", layers, heads, heads, 0, kinds, changed)
    return found._replace(rank=rank, rope=rope)


def _shape(
    rng: Random, kind: str, name: str, layers: list[int | None], heads: int, kv: int, dim: int,
    more: dict[str, Any], changed: dict[str, Any],
) -> Shape:  # fmt: skip
    hidden, vocab, longest = 128 * rng.randint(2, 20), 64 * rng.randint(10, 900), 1024 * rng.randint(4, 64)
    config = {
        "model_type": kind, "architectures": [name], "hidden_size": hidden, "vocab_size": vocab,
        "intermediate_size": 128 * rng.randint(2, 30), "num_hidden_layers": len(layers),
        "num_attention_heads": heads, "num_key_value_heads": kv, "max_position_embeddings": longest,
        **({"head_dim": dim} if dim else {}), **_PLAIN, **more, **changed,
    }  # fmt: skip
    return Shape(tuple(layers), heads, kv, dim, 0, 0, hidden, vocab, longest, read_config(config, name="random"))


def worked(model: ModelSpec, engine: str, gpu: str | None = None, **given: Any) -> tuple[Engine, Outcome]:
    """The engine and what `kvplan.planning.evaluate` finds, without a report."""
    found = work_out(model, load_gpu(gpu) if gpu else None, engine, given)
    return found[1], found[3]


def row(elements: int, storage: str) -> int:
    """Bytes of so many elements: 16 bits, 8 bits, or 4 bits with an 8-bit scale for each 16."""
    return {"auto": 2 * elements, "fp8": elements, "nvfp4": elements // 2 + elements // 16}[storage]
