"""Compute buffers by the formula that ``docs/engines/llama.cpp.md`` and the module state, on random shapes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from at_random import latent, plain, windowed, worked

from kvplan import load_model
from kvplan.units import MIB


def pad(cells: int) -> int:
    return (cells + 255) // 256 * 256


@pytest.mark.parametrize("seed", range(10))
def test_the_largest_graph(seed: int) -> None:
    """Work of the widest moment and masks; without flash attention scores of all cells; or the rows of logits."""
    rng = Random(f"buffers {seed}")
    for _ in range(20):
        wide = 128 * rng.randint(2, 200)
        shape = rng.choice([plain, windowed])(rng, intermediate_size=wide)
        total, slots = rng.randint(1, 40_000), rng.choice([1, 2, 4])
        batch, ubatch, outputs = rng.choice([64, 2048]), rng.choice([32, 512, 1000]), rng.choice([1, 7, 4000, 0])
        flash = rng.random() < 0.6
        given: dict[str, Any] = {
            "ctx_size": total, "parallel": slots, "batch_size": batch, "ubatch_size": ubatch, "n_outputs_max": outputs,
            "flash_attn": "on" if flash else "off",
        }  # fmt: skip
        engine, found = worked(shape.model, "llama.cpp", "h200-sxm", **given)
        each = pad(pad(total) // slots)
        batch = min(batch, each * slots)
        ubatch = min(batch, ubatch)
        rows = min(ubatch, outputs or batch)
        cells = [each] if None in shape.windows else []
        windows = {w for w in shape.windows if w}
        cells += [pad(min(each, w + ubatch)) for w in windows]
        if shape.model.architecture == "LlamaForCausalLM":
            ffn = 16 * wide + 4 * shape.hidden
        else:  # two of four experts
            ffn = max(24 * wide + 12 * shape.hidden, 8 * wide + 16 * shape.hidden + 12 * shape.hidden)
        mixer = 4 * (2 * shape.query_heads + shape.kv_heads) * 2 * shape.head_dim + 4 * shape.hidden
        mask = ubatch * sum(cells) * (2 if flash else 4)
        size = max(ffn, mixer) * ubatch + mask
        if not flash:
            size = max(size, 4 * shape.query_heads * max(cells) * ubatch + mask + 22 * shape.hidden * ubatch)
        size = max(size, 4 * rows * (shape.vocab + 2 * shape.hidden))
        made = engine.allocation(shape.model, found.settings)
        assert made is not None
        assert made.compute_buffer_bytes == size, given
        assert found.waterfalls is not None
        terms = {t.name: t for t in found.waterfalls[0].terms}
        buffer, context = terms["compute buffer"], terms["driver context"]
        assert (buffer.bytes, buffer.low_bytes, buffer.high_bytes) == (size, int(size * 0.8), int(size * 1.35))
        assert (context.bytes, context.low_bytes, context.high_bytes) == (320 * MIB, 150 * MIB, 700 * MIB)


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_latent_attention(seed: int, flash: bool) -> None:
    """4 bytes of query heads x (2 rows and the latent): absorbed attention works on rows of the latent's width."""
    rng = Random(f"latent {seed}")
    shape = latent(rng, intermediate_size=256, moe_intermediate_size=64)
    engine, found = worked(shape.model, "llama.cpp", ctx_size=4096, parallel=1, flash_attn="on" if flash else "off")
    mixer = 4 * shape.query_heads * (2 * (shape.rank + shape.rope) + shape.rank)
    dense = 16 * 256 + 4 * shape.hidden
    routed = max(12 * 2 * 64 + 12 * shape.hidden, 4 * 2 * 64 + 8 * 2 * shape.hidden + 12 * shape.hidden)
    mask = 512 * 4096 * (2 if flash else 4)
    size = 512 * max(mixer, dense, routed) + mask
    if not flash:
        size = max(size, 4 * shape.query_heads * 4096 * 512 + mask + 22 * shape.hidden * 512)
    made = engine.allocation(shape.model, found.settings)
    assert made is not None
    assert made.compute_buffer_bytes == max(size, 4 * (shape.vocab + 2 * shape.hidden))


def test_several_devices_keep_copies_of_the_inputs() -> None:
    """Up to three more of the mask, in the upper bound alone."""
    for flash, width in (("on", 2), ("off", 4)):
        bounds = []
        for gpus in (1, 2):
            given: dict[str, Any] = {"gpus": gpus} if gpus > 1 else {}
            given |= {"ctx_size": 8192, "parallel": 1, "flash_attn": flash}
            found = worked(load_model("llama-3.1-8b"), "llama.cpp", "h200-sxm", **given)[1]
            assert found.waterfalls is not None
            (term,) = [t for t in found.waterfalls[0].terms if t.name == "compute buffer"]
            bounds.append(term)
        one, two = bounds
        assert (one.bytes, one.low_bytes) == (two.bytes, two.low_bytes)
        assert two.high_bytes - one.high_bytes == 3 * 512 * width * 8192
