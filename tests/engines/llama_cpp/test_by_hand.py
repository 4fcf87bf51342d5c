"""llama.cpp and LM Studio on random deployments: layers, cells, slots and bytes by llama.cpp's rules, written again.

Read in libllama 0.5.0 ``src/llama-model.cpp`` (``load_tensors``), ``src/llama-context.cpp``,
``src/llama-kv-cache.cpp``,
``src/llama-kv-cache-iswa.cpp``, ``common/common.h``, ``tools/server/server-context.cpp``; LM Studio's
load settings in lmstudio-js ``packages/lms-kv-config/src/schema.ts``.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from at_random import Shape, plain, windowed, worked

from kvplan import plan
from kvplan.engines.llama_cpp import offload
from kvplan.errors import KvplanError

BLOCKS = {"f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q5_1": (32, 24), "q5_0": (32, 22),
          "q4_1": (32, 20), "q4_0": (32, 18), "iq4_nl": (32, 18)}  # fmt: skip
"""Type -> (elements, bytes) of a block: ``ggml/src/ggml-common.h``."""


def pad(cells: int) -> int:
    while cells % 256:
        cells += 1
    return cells


def dealt(layers: int, used: int, shares: list[float]) -> tuple[int, list[int]]:
    """(layers in host memory, layers of each GPU)."""
    sums = list(accumulate(shares))
    splits, start = [s / sums[-1] for s in sums], max(layers + 1 - used, 0)
    counts, host = [0] * len(shares), 0
    for il in range(layers):
        if il < start:
            host += 1
        else:
            counts[min(bisect_right(splits, (il - start) / used), len(shares) - 1)] += 1
    return host, counts


@pytest.mark.parametrize("seed", range(4))
def test_layers_of_devices(seed: int) -> None:
    rng = Random(f"layers {seed}")
    for _ in range(150):
        layers, shares = rng.randint(1, 90), [rng.choice([1, 1, 2, 3, 0.5]) for _ in range(rng.randint(1, 5))]
        used = rng.randint(0, layers + 1)
        host, counts = dealt(layers, used, shares)
        if len(shares) > 1 and not all(counts):
            with pytest.raises(KvplanError, match=f"GPU {counts.index(0)} would hold none of {layers} layers"):
                offload.split(layers, used, shares)
            continue
        assert offload.split(layers, used, shares) == (host, tuple(counts))


@pytest.mark.parametrize(
    ("value", "layers"), [(None, 33), ("all", 33), ("auto", 33), ("-1", 33), (-2, 33), (0, 0), (32, 32), ("33", 33),
                          (34, 33), (999, 33)],
)  # fmt: skip
def test_layers_asked_for(value: Any, layers: int) -> None:
    assert offload.gpu_layers(value, 32) == layers


@pytest.mark.parametrize("value", ["-3", "x", "1.5", ""])
def test_layers_that_are_none(value: str) -> None:
    with pytest.raises(KvplanError):
        offload.gpu_layers(value, 32)


@pytest.mark.parametrize(
    ("text", "shares"),
    [(None, None), ("3,1", (3, 1)), ("3/1", (3, 1)), ("3;1", (3, 1)), ([1, 2], (1, 2)), ("0,1", (0, 1)),
     ("0.5", (0.5,)),      (",".join("1" * 16), (1,) * 16)],
)  # fmt: skip
def test_shares(text: Any, shares: Any) -> None:
    assert offload.parse_shares(text) == shares


@pytest.mark.parametrize("text", ["0,0", "-1,2", "a,b", "", "1e12", ",".join("1" * 17), "nan"])
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(KvplanError) as caught:
        offload.parse_shares(text)
    assert "type -ts 3,1" in caught.value.hint


class Asked:
    """A random deployment without and with slots, types, a split and a window."""

    def __init__(self, rng: Random) -> None:
        self.shape = rng.choice([plain, windowed])(rng)
        self.slots = rng.choice([None, 1, rng.randint(2, 12)])
        self.shared = rng.choice([None, True]) if self.slots else None
        self.total = rng.randint(1, 60_000)
        self.batch, self.ubatch = rng.choice([None, 1024, 64]), rng.choice([None, 256, 1000])
        self.full = rng.choice([None, True])
        self.k, self.v = rng.choice(list(BLOCKS)), rng.choice(list(BLOCKS))
        self.used = rng.choice([None, rng.randint(0, self.shape.layers + 1)])
        self.gpus = rng.choice([1, 1, 2])
        if self.gpus > 1 and not all(dealt(self.shape.layers, self.layers_used, [1.0, 1.0])[1]):
            self.gpus = 1

    @property
    def layers_used(self) -> int:
        return self.shape.layers + 1 if self.used is None else self.used

    @property
    def unified(self) -> bool:
        return self.slots is None or bool(self.shared)

    @property
    def given(self) -> dict[str, Any]:
        named = {
            "parallel": self.slots, "kv_unified": self.shared, "ctx_size": self.total, "batch_size": self.batch,
            "ubatch_size": self.ubatch, "swa_full": self.full, "cache_type_k": self.k, "cache_type_v": self.v,
            "n_gpu_layers": self.used, "gpus": self.gpus if self.gpus > 1 else None,
        }  # fmt: skip
        return {name: value for name, value in named.items() if value is not None}

    @property
    def slot_cells(self) -> int:
        total = pad(self.total)
        return total if self.unified else pad(total // (self.slots or 4))

    def layer(self, window: int | None) -> tuple[int, int]:
        """(K bytes, V bytes) of one layer, all streams."""
        slots, cells = self.slots or 4, self.slot_cells
        streams = 1 if self.unified else slots
        if window is not None and not self.full:
            batch = min(cells * streams, self.batch or 2048)
            cells = pad(min(cells, window * (slots if self.unified else 1) + min(batch, self.ubatch or 512)))
        wide = self.shape.kv_heads * self.shape.head_dim
        k, v = (wide // BLOCKS[t][0] * BLOCKS[t][1] for t in (self.k, self.v))
        return k * cells * streams, v * cells * streams


@pytest.mark.parametrize("seed", range(8))
def test_caches(seed: int) -> None:
    rng = Random(f"caches {seed}")
    for _ in range(20):
        one = Asked(rng)
        engine, found = worked(one.shape.model, "llama.cpp", **one.given)
        made = engine.allocation(one.shape.model, found.settings)
        assert made is not None
        for kind, kept in (("full", None), ("sliding", 1)):
            layers = [one.layer(w) for w in one.shape.windows if bool(w) is bool(kept)]
            if one.full or not kept:
                continue
            pools = [p for p in made.pools if p.kind == kind]
            assert [(p.k_bytes, p.v_bytes) for p in pools] == (
                [(sum(k for k, _ in layers), sum(v for _, v in layers))] if layers else []
            )
        assert made.bytes == sum(sum(one.layer(w)) for w in one.shape.windows)
        assert made.peak_bytes is None


@pytest.mark.parametrize("seed", range(8))
def test_what_lies_on_each_device(seed: int) -> None:
    """Caches and weights of a GPU's layers; the token embedding, and the layers before the first on a GPU, are not."""
    rng = Random(f"devices {seed}")
    for _ in range(12):
        one = Asked(rng)
        shape = one.shape
        engine, found = worked(shape.model, "llama.cpp", "h200-sxm", **one.given)
        assert found.waterfalls is not None
        assert found.kv_bytes is not None
        host, counts = dealt(shape.layers, one.layers_used, [1.0] * one.gpus)
        at = host
        for n, count in enumerate(counts):
            mine = sum(sum(one.layer(w)) for w in shape.windows[at : at + count])
            at += count
            assert engine.start_bytes(found.stages[n], found.settings) == mine, one.given
        assert [s.spec.num_layers for s in found.stages] == [host + counts[0], *counts[1:]]
        assert found.pool is not None
        streams = 1 if one.unified else one.slots or 4
        slots, limit = one.slots or 4, min(one.slot_cells, shape.longest)
        assert found.pool.engine_reported_tokens == one.slot_cells * streams
        assert found.pool.starts
        assert found.pool.max_single_request_tokens == limit
        for tokens in (1, limit, limit + 1, max(1, limit // 2)):
            want = 0 if tokens > limit else min(slots, one.slot_cells // tokens) if one.unified else slots
            assert engine.requests_at(found.stages, found.settings, found.kv_bytes, tokens) == want
        for n, fall in enumerate(found.waterfalls):
            if shape.model.architecture == "LlamaForCausalLM":
                off = _off(shape, host, first=n == 0, last=n == one.gpus - 1, used=one.layers_used)
                assert {t.name: t.bytes for t in fall.terms}.get("weights not on this GPU", 0) == -off


def _off(shape: Shape, host: int, *, first: bool, last: bool, used: int) -> int:
    wide = (shape.query_heads + shape.kv_heads) * 2 * shape.head_dim
    ffn = next(f.intermediate_size for b in shape.model.blocks.values() for f in b.ffns)  # type: ignore[attr-defined]
    layer = shape.hidden * (wide + 3 * ffn + 2)
    size = shape.vocab * shape.hidden + host * layer if first else 0
    return 2 * (size + (shape.vocab * shape.hidden + shape.hidden if last and not used else 0))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("used", [None, 0, 1])
def test_a_tied_embedding_is_copied_for_the_head(tied: bool, used: int | None) -> None:
    shape = plain(Random(8), tie_word_embeddings=tied)
    given = {} if used is None else {"n_gpu_layers": used}
    found = worked(shape.model, "llama.cpp", "h200-sxm", ctx_size=512, **given)[1]
    assert found.waterfalls is not None
    off = {t.name: -t.bytes for t in found.waterfalls[0].terms}.get("weights not on this GPU", 0)
    host = 0 if used is None else shape.layers + min(0, 1 - used)
    ends = shape.vocab * shape.hidden * 2
    want = _off(shape, host, first=True, last=True, used=1) - (ends if tied and used != 0 else 0)
    if used == 0:
        want += 2 * shape.hidden + (0 if tied else ends)
    assert off == want


@pytest.mark.parametrize("seed", range(5))
def test_it_fits_in_as_many_bytes_and_not_in_one_less(seed: int) -> None:
    rng = Random(f"fits {seed}")
    for _ in range(8):
        one = Asked(rng)
        engine, found = worked(one.shape.model, "llama.cpp", "h200-sxm", **one.given)
        need = tuple(engine.start_bytes(stage, found.settings) for stage in found.stages)
        if not min(need):
            continue
        exact = engine.pool(found.stages, found.settings, need)
        assert exact.starts
        assert exact.used_bytes == need
        streams = 1 if one.unified else one.slots or 4
        assert exact.kv_tokens == one.slot_cells * streams
        less = engine.pool(found.stages, found.settings, (need[0] - 1, *need[1:]))
        assert not less.starts
        assert (less.kv_tokens, less.max_concurrency) == (0, 0.0)
        assert engine.requests_at(found.stages, found.settings, (need[0] - 1, *need[1:]), 1) == 0
        if not any(one.shape.windows):
            each = need[0] // (one.slot_cells // 256)
            assert less.max_single_request_tokens == min(one.shape.longest, (need[0] - 1) // each * 256)


@pytest.mark.parametrize(
    ("given", "warns"),
    [
        ({"ctx_size": 8192, "parallel": 2}, "-c 8,192 is shared out: 2 slots of 4,096 tokens"),
        ({"ctx_size": 8192, "parallel": 1}, None), ({"ctx_size": 8192}, None),
        ({"ctx_size": 8192, "parallel": 2, "kv_unified": True}, None),
        ({"max_model_len": 5000}, "a slot of 5,000 tokens is laid out with 5,120 cells"),
        ({"max_model_len": 5120}, None),
    ],
)  # fmt: skip
def test_what_is_said_of_a_context(given: dict[str, Any], warns: str | None) -> None:
    said = [w for w in plan("llama-3.1-8b", engine="llama.cpp", **given).warnings if "slot" in w]
    assert said == ([warns] if warns else [])


@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        ({"gpus": 17}, "at most 16 devices, not 17", "type --gpus 16"),
        ({"tensor_split": "1,1,1", "gpus": 2, "pipeline_parallel_size": 2}, "3 shares for 2 GPUs", "one share"),
        ({"ctx_size": 8192, "max_model_len": 4096}, "one slot's share of -c", "-c alone"),
        ({"kv_cache_memory_bytes": 1 << 30, "ctx_size": 512}, "no budget", "use -c"),
        ({"tensor_parallel_size": 2, "ctx_size": 512}, "whole layers over GPUs", "type --gpus 2"),
        ({"cache_type_k": "q8_0", "kv_cache_dtype": "f16"}, "says K and V already", "give it, or"),
        ({"parallel": 257}, "257 is out of range", "from 1 to 256"), ({"parallel": 0}, "0 is out of range", "1 to 256"),
        ({"batch_size": 0}, "0 is out of range", "from 1"), ({"flash_attn": "maybe"}, "not on, off or auto", "-fa on"),
        ({"cache_type_k": "q6_k"}, "q6_k", "formats"), ({"cache_type_k": "fp8"}, "no cache type", "-ctk q8_0"),
        ({"cache_type_v": "q4_0", "flash_attn": "off"}, "needs flash", "-fa"),
        ({"n_rs_seq": 65, "ctx_size": 512}, "65 is out of range", "from 0 to 64"),
        ({"n_rs_seq": -1, "ctx_size": 512}, "-1 is out of range", "from 0 to 64"),
        ({"n_outputs_max": -1, "ctx_size": 512}, "-1 is out of range", "from 0"),
        ({"ctx_size": -1}, "-1 is out of range", "from 0"),
    ],
)  # fmt: skip
def test_refusals(given: dict[str, Any], says: str, hint: str) -> None:
    with pytest.raises(KvplanError) as caught:
        plan("llama-3.1-8b", engine="llama.cpp", **given)
    assert says in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("model", "k", "v", "flash", "says"),
    [
        ("phi-2", "q8_0", "f16", "on", "do not divide the K head size of 80"), ("phi-2", "q8_0", "f16", "off", None),
        ("phi-2", "f16", "q8_0", "on", "do not divide the V head size of 80"), 
        ("llama-3.1-8b", "q8_0", "q4_0", "on", None),
        ("deepseek-v3", "q8_0", "f16", "on", "K and V take one type, not q8_0 and f16"),
        ("deepseek-v3", "q8_0", "q8_0", "on", None),
    ],
)  # fmt: skip
def test_types_that_shapes_take(model: str, k: str, v: str, flash: str, says: str | None) -> None:
    given = {"cache_type_k": k, "cache_type_v": v, "flash_attn": flash, "ctx_size": 512}
    if says is None:
        assert plan(model, engine="llama.cpp", **given).allocation
        return
    with pytest.raises(KvplanError, match=says) as caught:
        plan(model, engine="llama.cpp", **given)
    assert caught.value.hint
