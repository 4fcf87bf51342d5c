"""MLX-LM's caches on random shapes, push by push as its classes grow them, and what it refuses.

Read in mlx-lm 0.32.2 ``mlx_lm/models/cache.py`` (``KVCache``, ``RotatingKVCache``, ``QuantizedKVCache``) and
``mlx_lm/generate.py`` (``generate_step``, ``maybe_quantize_kv_cache``).
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from at_random import plain, windowed, worked

from kvplan import load_gpu, load_model, plan
from kvplan.engines.mlx import growth
from kvplan.errors import KvplanError
from kvplan.planning.planner import plan_deployment
from kvplan.units import MIB


def pushes(prompt: int, tokens: int, step: int) -> list[int]:
    """Tokens of each call: the prompt in chunks, then one by one."""
    return [*[step] * (prompt // step), *([prompt % step] if prompt % step else []), *[1] * (tokens - prompt)]


class Plain:
    """``KVCache``, of whose tensors only the lengths are kept."""

    def __init__(self) -> None:
        self.slots = self.offset = 0
        self.grown: list[int] = []

    def push(self, size: int) -> None:
        if self.offset + size > self.slots:
            self.grown.append(self.slots)
            kept = self.offset if self.slots and self.offset % 256 else self.slots
            self.slots = kept + (255 + size) // 256 * 256
        self.offset += size


class Rotating:
    """``RotatingKVCache`` without kept tokens."""

    def __init__(self, window: int) -> None:
        self.window, self.slots, self.offset = window, 0, 0
        self.grown: list[int] = []

    def push(self, size: int) -> None:
        self.grown.append(self.slots)
        if size > 1:
            self.slots = size if not self.slots else self.slots - max(0, self.slots - self.window + 1) + size
        else:
            if not self.slots or (self.offset >= self.slots and self.slots < self.window):
                self.slots += min(256, self.window - self.offset)
            self.slots = min(self.slots, self.window)
        self.offset += size


@pytest.mark.parametrize("seed", range(6))
def test_growth(seed: int) -> None:
    rng = Random(f"growth {seed}")
    for _ in range(60):
        prompt, output, step = rng.randint(1, 5000), rng.randint(0, 700), rng.choice([1, 100, 256, 300, 512, 2048])
        window = rng.choice([100, 256, 300, 1024])
        sizes = pushes(prompt, prompt + output, step)
        chunks = len(pushes(prompt, prompt, step))
        for cache, found in (
            (Plain(), growth.plain(prompt, prompt + output, step)),
            (Rotating(window), growth.rotating(prompt, prompt + output, step, window)),
        ):
            lengths = []
            for size in sizes:
                cache.push(size)
                lengths.append(cache.slots)
            before = lengths[chunks - 2] if chunks > 1 else 0
            assert (found.last, found.after_prompt, found.before_last) == (lengths[-1], lengths[chunks - 1], before), (
                prompt, output, step, window,
            )  # fmt: skip
            if isinstance(cache, Plain):
                assert found.grown_from == cache.grown[-1]


@pytest.mark.parametrize("seed", range(6))
def test_what_a_batch_holds(seed: int) -> None:
    rng = Random(f"batch {seed}")
    for _ in range(15):
        shape = rng.choice([plain, windowed])(rng)
        batch, prompt, output = rng.randint(1, 4), rng.randint(1, 3000), rng.randint(1, 300)
        step, bits, group = rng.choice([None, 512]), None, 64
        start = rng.choice([0, 500, 3000])
        given: dict[str, Any] = {
            "concurrency": batch, "prompt_tokens": prompt, "output_tokens": output, "max_model_len": prompt + output,
        }  # fmt: skip
        given |= {"prefill_step_size": step} if step else {}
        if not any(shape.windows) and rng.random() < 0.6:
            bits, group = rng.choice([2, 3, 4, 6, 8]), rng.choice([32, 64])
            if shape.head_dim % group:
                group = 32
            given |= {"kv_bits": bits, "kv_group_size": group, "quantized_kv_start": start}
        made = plan_deployment(shape.model, None, "mlx", given).allocation
        elements, held = shape.kv_heads * shape.head_dim, 0
        converted = bits is not None and prompt + output >= start
        for window in shape.windows:
            cache = Rotating(window) if window else Plain()
            for size in pushes(prompt, prompt + output, step or 2048):
                cache.push(size)
            size = cache.slots * elements
            assert bits is None or group
            one = size * bits // 8 + size // group * 2 * 2 if converted and bits else size * 2
            held += 2 * batch * one
        assert made is not None
        assert made.bytes == held, given
        assert made.peak_bytes is not None
        assert made.peak_bytes >= held
        if not any(shape.windows) and bits is None:
            sim, top = Plain(), 0
            for size in pushes(prompt, prompt + output, step or 2048):
                old, count = sim.slots, len(sim.grown)
                sim.push(size)
                grew = old if len(sim.grown) > count else 0
                top = max(top, 2 * batch * elements * 2 * shape.layers * sim.slots + batch * elements * 2 * grew)
            assert made.peak_bytes == top


@pytest.mark.parametrize(
    ("gpu", "share"),
    [("apple-m4-max", (3, 4)), ("apple-m3-ultra", (3, 4)), ("apple-m2", (2, 3)), ("apple-m1", (2, 3))],
)
def test_the_working_set(gpu: str, share: tuple[int, int]) -> None:
    """Two thirds of the memory up to 36 GiB, three quarters above, in whole MiB."""
    card = load_gpu(gpu)
    found = worked(load_model("llama-3.2-1b"), "mlx", gpu, max_model_len=512)[1]
    limit = card.device_bytes * share[0] // share[1] // MIB
    assert found.settings.extra["iogpu_wired_limit_mb"] == limit
    assert found.waterfalls is not None
    assert found.waterfalls[0].budget_bytes == limit * MIB
    more = worked(load_model("llama-3.2-1b"), "mlx", gpu, max_model_len=512, iogpu_wired_limit_mb=1 << 30)[1]
    assert more.waterfalls is not None
    assert more.waterfalls[0].budget_bytes == card.device_bytes


@pytest.mark.parametrize(
    ("model", "given", "says", "hint"),
    [
        ("llama-3.1-8b", {"kv_bits": 7}, "to 2, 3, 4, 5, 6, 8 bits, not 7", "type --kv-bits 6 or 8"),
        ("llama-3.1-8b", {"kv_bits": 1}, "not 1", "type --kv-bits 2"), ("llama-3.1-8b", {"kv_bits": 9}, "not 9", "8"),
        ("llama-3.1-8b", {"kv_bits": 4, "kv_group_size": 48}, "not 48", "type --kv-group-size 32"),
        ("llama-3.1-8b", {"kv_bits": 4, "kv_group_size": 90}, "not 90", "type --kv-group-size 64"),
        ("llama-3.1-8b", {"kv_bits": 4, "kv_group_size": 100}, "not 100", "type --kv-group-size 128"),
        ("llama-3.1-8b", {"kv_group_size": 64}, "setting of the quantised cache", "add --kv-bits 4"),
        ("llama-3.1-8b", {"quantized_kv_start": 64}, "setting of the quantised cache", "add --kv-bits 4"),
        ("gpt-oss-20b", {"kv_bits": 4, "max_model_len": 5000}, "rotating caches cannot be quantised", "leave"),
        ("gpt-oss-20b", {"kv_bits": 4, "max_model_len": 9, "quantized_kv_start": 9, "prompt_tokens": 4,
         "output_tokens": 4}, "fails at 9 tokens", "leave --kv-bits out"),
        ("deepseek-v3", {"kv_bits": 4}, "latent attention of deepseek-v3 does not take", "leave --kv-bits out"),
        ("gemma-2-9b", {"kv_bits": 4}, "the attention of gemma-2-9b does not take", "leave --kv-bits out"),
        ("phi-2", {"kv_bits": 4, "max_model_len": 2048, "quantized_kv_start": 2049},
         "groups of 64 do not divide a head of 80", "leave --kv-bits out"),
        ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}, "in the model's dtype, not in fp8_e4m3", "type --kv-bits 4"),
        ("llama-3.1-8b", {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}, "context parallelism", "1"),
    ],
)  # fmt: skip
def test_refusals(model: str, given: dict[str, Any], says: str, hint: str) -> None:
    with pytest.raises(KvplanError) as caught:
        plan(model, engine="mlx", **given)
    assert says in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(("dim", "near"), [(96, 32), (160, 32)])
def test_the_group_that_would_divide(dim: int, near: int) -> None:
    shape = plain(Random(1), head_dim=dim)
    for group in (64, 128):
        with pytest.raises(KvplanError, match=f"groups of {group} do not divide a head of {dim}") as caught:
            plan_deployment(shape.model, None, "mlx", {"kv_bits": 4, "kv_group_size": group})
        assert caught.value.hint == f"type --kv-group-size {near}"


@pytest.mark.parametrize(
    ("model", "given", "says"),
    [
        ("gpt-oss-20b", {"max_kv_size": 512}, "has no effect"), ("llama-3.1-8b", {"kv_bits": 4}, "below 5,000 tokens"),
        ("llama-3.1-8b", {"kv_bits": 4, "prompt_tokens": 4999, "output_tokens": 1}, None),
        ("llama-3.1-8b", {"kv_bits": 4, "prompt_tokens": 4998, "output_tokens": 1}, "below 5,000 tokens"),
        ("deepseek-v2-lite", {}, "rebuilt from the latent row"), ("deepseek-v3", {}, None),
        ("gemma-2-9b", {}, "plain cache"), ("gemma-3-27b", {}, None), ("llama-3.1-8b", {}, None),
        ("llama-3.1-8b", {"max_model_len": 256, "prompt_tokens": 200, "output_tokens": 50}, None),
    ],
)  # fmt: skip
def test_what_is_said(model: str, given: dict[str, Any], says: str | None) -> None:
    words = ("has no effect", "below 5,000", "rebuilt from", "plain cache")
    said = [w for w in plan(model, engine="mlx", **given).warnings if any(part in w for part in words)]
    assert [says is not None and says in w for w in said] == ([] if says is None else [True])


def test_a_rotating_cache_of_a_size_that_is_asked_for() -> None:
    made = plan("qwen2.5-7b", engine="mlx", max_kv_size=512, prompt_tokens=300, output_tokens=400)
    assert made.allocation is not None
    (pool,) = made.allocation.pools
    assert (pool.kind, pool.cells, pool.bytes) == ("sliding", 512, 28 * 512 * 4 * 128 * 2 * 2)


def test_a_chunk_of_each_prompt() -> None:
    """Activations of up to prefill_step_size tokens of every sequence."""
    for prompt, step, tokens in ((500, None, 500), (5000, None, 2048), (5000, 512, 512)):
        given = {"prefill_step_size": step} if step else {}
        found = worked(
            load_model("llama-3.1-8b"),
            "mlx",
            "h100-sxm",
            concurrency=3,
            prompt_tokens=prompt,
            max_model_len=8192,
            **given,
        )[1]
        assert found.waterfalls is not None
        (peak,) = [t for t in found.waterfalls[0].terms if t.name == "activation peak"]
        assert peak.bytes == 2 * 3 * tokens * (3 * 14336 + 4 * 4096) + 6 * 3 * 128256
