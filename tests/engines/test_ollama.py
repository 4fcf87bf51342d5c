"""Ollama's choices on random deployments, by its scheduler's rules written down a second time.

Read in Ollama main of 2026-08-21 (fb30760): ``server/sched.go`` (``load``, ``automaticGenerationBatch`` and what it
calls), ``server/routes.go`` (``Serve``, ``modelOptions``), ``llm/llama_server.go`` (``PredictServerVRAM``).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from at_random import Shape, plain, worked

from kvplan import load_gpu, load_model, plan
from kvplan.engines import ollama
from kvplan.engines.ollama_library import meaning, tag_of
from kvplan.errors import InputError, KvplanError
from kvplan.sources.commands import read_command

GIB, MIB = 1 << 30, 1 << 20
CARDS = ("l4", "rtx-4090", "l40s", "a100-80gb-sxm", "h100-sxm", "h200-sxm", "rtx-3060-12gb", "mi300x")


def parameters(shape: Shape, config: dict[str, int]) -> int:
    attention = 2 * shape.hidden * (shape.query_heads + shape.kv_heads) * shape.head_dim
    layer = attention + 3 * shape.hidden * config["ffn"] + 2 * shape.hidden
    return shape.layers * layer + 2 * shape.vocab * shape.hidden + shape.hidden


def fits(batch: int, predicted: int, available: int) -> bool:
    threshold = available * 80 // 100
    if predicted > threshold:
        return False
    if predicted > available * {2048: 60, 1024: 75}[batch] // 100:
        return False
    return {2048: 2 * GIB, 1024: 768 * MIB}[batch] <= threshold - predicted


def batch_of(context: int, predicted: int, available: int | None) -> int:
    batch = 2048 if context > 32768 else 1024 if context > 4096 else 512
    while batch > 512 and available is not None and not fits(batch, predicted, available):
        batch = 1024 if batch > 1024 else 512
    return batch


@pytest.mark.parametrize("seed", range(12))
def test_context_slots_and_batch(seed: int) -> None:
    rng = Random(f"ollama {seed}")
    seen = set()
    for _ in range(25):
        ffn, hidden = 128 * rng.randint(2, 200), 128 * rng.randint(2, 60)
        shape = plain(rng, intermediate_size=ffn, hidden_size=hidden, num_hidden_layers=(n := rng.randint(1, 80)))
        shape = shape._replace(hidden=hidden, windows=(None,) * n)
        card, gpus = rng.choice([None, *CARDS]), rng.choice([1, 1, 2])
        gpu = load_gpu(card) if card else None
        gpus = gpus if card and n > 3 else 1  # fewer may leave a GPU without a layer
        given: dict[str, Any] = {"gpus": gpus} if gpus > 1 else {}
        context, slots = rng.choice([None, rng.randint(1, 70_000)]), rng.choice([None, rng.randint(1, 9)])
        given |= {"num_ctx": context} if context else {}
        given |= {"num_parallel": slots} if slots else {}
        memory = gpu.device_bytes * gpus if gpu else 0
        tier = 262144 if memory >= 47 * GIB else 32768 if memory >= 23 * GIB else 4096
        tokens = min(max(4, context) if context else tier, shape.longest)
        total = tokens * (slots or 1)
        predicted = (
            2 * parameters(shape, {"ffn": ffn})
            + 2 * n * shape.kv_heads * (shape.hidden // shape.query_heads) * total * 2
        )
        batch = batch_of(total, predicted, memory if gpu else None)
        engine, outcome = worked(shape.model, "ollama", card, **given)
        extra = outcome.settings.extra
        assert engine.name == "ollama"
        assert (extra["num_ctx"], extra["slots"], extra["unified"]) == (context or tokens, slots or 1, False), given
        assert (extra["batch_size"], extra["ubatch_size"], extra["num_batch"]) == (batch,) * 3, (given, card)
        assert extra["parallel"] == extra["num_parallel"] == (slots or 1)
        assert extra["fit"] is False
        cells = -(-tokens // 256) * 256
        assert outcome.settings.max_model_len == cells
        if outcome.pool is not None:
            assert outcome.pool.engine_reported_tokens == cells * (slots or 1)
        seen.add(batch)
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("need", "available", "context", "batch"),
    [
        (60, 100, 32769, 2048), (60.01, 100, 32769, 1024), (60, 100, 32768, 1024), (75, 100, 4097, 1024),
        (75.01, 100, 4097, 512), (10, 100, 4096, 512), (7.6, 12, 40000, 1024), (7.2, 12, 40000, 2048),
        (4.4, 8, 40000, 2048), (4.41, 8, 40000, 1024), (5.65, 8, 40000, 1024), (5.66, 8, 40000, 512),
    ],
)  # fmt: skip
def test_batches_at_their_limits(
    monkeypatch: pytest.MonkeyPatch, need: float, available: int, context: int, batch: int
) -> None:
    """2,048 where 60 % of the memory and 80 % with 2 GiB more hold it; 1,024 at 75 %, or 80 % with 768 MiB more."""
    if batch != 512 or context > 4096:
        assert batch == batch_of(context, int(need * GIB), available * GIB)
    monkeypatch.setattr(ollama, "_estimate", lambda *_: int(need * GIB))
    card = replace(load_gpu("h100-sxm"), torch_total_bytes=available * GIB)
    found, why = ollama.Ollama._batch(load_model("llama-3.1-8b"), card, {}, context)
    assert card.device_bytes == available * GIB
    assert found == batch
    assert ("above" in why) is (batch > 512)


@pytest.mark.parametrize(
    ("card", "context", "given", "batch"),
    [
        ("h100-sxm", 40000, {"flash_attn": "off"}, 512), ("rtx-3060-12gb", 40000, {"flash_attn": "off"}, 512),
        ("mi300x", 40000, {"flash_attn": "off"}, 2048), ("h100-sxm", 40000, {"flash_attn": "on"}, 2048),
        ("h100-sxm", 40000, {"num_batch": 77}, 77), ("h100-sxm", 40000, {"ubatch_size": 96}, 96),
        (None, 40000, {"flash_attn": "off"}, 2048),
    ],
)  # fmt: skip
def test_batches_without_flash_attention(card: str | None, context: int, given: dict[str, Any], batch: int) -> None:
    """On CUDA 512, or 256 where a card of 8 GiB or less meets a context above 4,096."""
    extra = worked(load_model("llama-3.2-1b"), "ollama", card, num_ctx=context, **given)[1].settings.extra
    assert (extra["batch_size"], extra["ubatch_size"]) == (batch, batch)


@pytest.mark.parametrize(
    ("size", "context", "batch"),
    [(8 * GIB, 4096, 512), (8 * GIB, 4097, 256), (8 * GIB + 1, 4097, 512), (8 * GIB + 1, 4096, 512)],
)
def test_small_cards_without_flash_attention(size: int, context: int, batch: int) -> None:
    card = replace(load_gpu("h100-sxm"), torch_total_bytes=size)
    found, _ = ollama.Ollama._batch(load_model("llama-3.2-1b"), card, {"flash_attn": "off"}, context)
    assert found == batch


@pytest.mark.parametrize(
    ("size", "tokens"),
    [(47 * GIB, 262144), (47 * GIB - 1, 32768), (23 * GIB, 32768), (23 * GIB - 1, 4096), (GIB, 4096)],
)
def test_contexts_by_memory(size: int, tokens: int) -> None:
    """47 and 23 GiB of all GPUs together, and never more than the model was trained with."""
    card = replace(load_gpu("h100-sxm"), torch_total_bytes=size)
    long = plain(Random(1), max_position_embeddings=1 << 20).model
    assert ollama.Ollama._slot_context(long, card, {}, 1)[0] == tokens
    half = replace(card, torch_total_bytes=size // 2)
    if size % 2 == 0:
        assert ollama.Ollama._slot_context(long, half, {"gpus": 2}, 1)[0] == tokens
    short = plain(Random(1), max_position_embeddings=5000).model
    assert ollama.Ollama._slot_context(short, card, {}, 1)[0] == min(5000, tokens)
    assert ollama.Ollama._slot_context(long, None, {}, 1)[0] == 4096


@pytest.mark.parametrize(("asked", "tokens"), [(1, 4), (3, 4), (4, 4), (5, 5), (8192, 8192), (8193, 8192)])
def test_four_tokens_at_least_and_the_models_at_most(asked: int, tokens: int) -> None:
    shape = plain(Random(2), max_position_embeddings=8192)
    for name in ("num_ctx", "max_model_len"):
        assert ollama.Ollama._slot_context(shape.model, None, {name: asked}, 1) == (tokens, "num_ctx")


def test_the_pre_flight_figure() -> None:
    """2 x layers x fewest KV heads x hidden / most heads x context x 2 bytes, and the file."""
    model = load_model("llama-3.1-8b")
    weights = 2 * 8_030_261_248
    assert ollama._estimate(model, "auto", 1000) == weights + 2 * 32 * 8 * 128 * 1000 * 2
    assert ollama._estimate(model, "q8_0", 1) == 8_030_261_248 * 34 // 32 + 2 * 32 * 8 * 128 * 2


def test_fewest_kv_heads_and_most_heads() -> None:
    """Layers that differ: Step 3.5 Flash has 64 or 96 heads over 8 KV heads, MiMo-V2-Flash 64 over 8 or 4."""
    for name, layers, kv, hidden, heads in (("step-3.5-flash", 45, 8, 4096, 96), ("mimo-v2-flash", 48, 4, 4096, 64)):
        model = load_model(name)
        grows = ollama._estimate(model, "auto", 7) - ollama._estimate(model, "auto", 0)
        assert grows == 7 * 4 * layers * kv * (hidden // heads)


@pytest.mark.parametrize(
    ("model", "slots"),
    [("qwen3-next-80b-a3b", 1), ("nemotron-h-8b", 1), ("qwen3-vl-8b", 1), ("lfm2-8b-a1b", 1), ("llama-3.1-8b", 4),
     ("gemma-3-27b", 4), ("qwen3-8b", 4), ("granite-4.0-h-tiny", 4)],
)  # fmt: skip
def test_architectures_with_one_slot(model: str, slots: int) -> None:
    assert worked(load_model(model), "ollama", num_ctx=4096, num_parallel=4)[1].settings.extra["slots"] == slots
    asked = worked(load_model(model), "ollama", num_ctx=4096, parallel=4)[1].settings
    assert asked.extra["slots"] == 4  # of llama-server itself


def test_a_total_is_shared_out() -> None:
    for slots, total, each in ((1, 8192, 8192), (3, 8192, 2816), (4, 8192, 2048)):
        settings = worked(load_model("llama-3.1-8b"), "ollama", ctx_size=total, num_parallel=slots)[1].settings
        assert (settings.extra["num_ctx"], settings.max_model_len) == (each, each)
    with pytest.raises(InputError, match="say the same thing twice"):
        plan("llama-3.1-8b", engine="ollama", num_ctx=8192, max_model_len=8192)
    with pytest.raises(InputError, match="say the same thing twice"):
        plan("llama-3.1-8b", engine="ollama", ctx_size=8192, num_ctx=8192)


def test_how_a_length_is_typed() -> None:
    for given, want in (
        ({"num_ctx": 8192}, ("--num-ctx", "4096", {"num_ctx": 4096})),
        ({}, ("--num-ctx", "4096", {"num_ctx": 4096})),
        ({"max_model_len": 8192}, ("--max-model-len", "4096", {"max_model_len": 4096})),
        ({"ctx_size": 8192, "num_parallel": 2}, ("--ctx-size", "8192", {"ctx_size": 8192})),
    ):  # fmt: skip
        engine, outcome = worked(load_model("llama-3.1-8b"), "ollama", **given)
        assert engine.length_flag(outcome.settings, 4096) == want


# ---- the command line and the library ----


@pytest.mark.parametrize(
    ("line", "settings", "model"),
    [
        ("OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_NUM_PARALLEL=2 ollama run llama3.1:8b",
         {"num_ctx": 8192, "num_parallel": 2}, "llama3.1:8b"),
        ("OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1 ollama run llama3.1", {"kv_cache_dtype": "q8_0",
         "flash_attn": "1"}, "llama3.1:8b"),
        ("OLLAMA_NUM_PARALLEL=0 OLLAMA_CONTEXT_LENGTH=0 ollama run gemma3:27b", {}, "gemma3:27b"),
        ("ollama run hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0", {}, "bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0"),
        ("ollama run huggingface.co/bartowski/Llama-3.2-1B-Instruct-GGUF", {},
         "bartowski/Llama-3.2-1B-Instruct-GGUF:q4_k_m"),
        ("ollama run registry.ollama.ai/library/qwen3:14b", {}, "qwen3:14b"),
        ("ollama run deepseek-r1:70b why is the sky blue", {}, "deepseek-r1-distill-llama-70b"),
        ("ollama pull smollm2:135m", {}, "smollm2-135m"),
    ],
)  # fmt: skip
def test_lines(line: str, settings: dict[str, Any], model: str) -> None:
    found = read_command(line)
    assert (found.engine, found.model, found.settings) == ("ollama", model, settings)


@pytest.mark.parametrize(
    ("name", "format_", "assumed"),
    [
        ("llama3.1:8b", "q4_k_m", True), ("llama2", "q4_0", True), ("smollm2:135m", "fp16", True),
        ("llama3.1:8b-instruct-q8_0", "q8_0", False), ("llama3.1:8b-instruct-fp16", "fp16", False),
        ("llama3.2:1b", "q8_0", True), ("gemma3:27b-it-qat", "q4_0", True),
        ("llama3.1:8b-text-f16", "fp16", False),
    ],
)  # fmt: skip
def test_how_names_are_stored(name: str, format_: str, assumed: bool) -> None:
    found = read_command(f"ollama run {name}")
    assert found.quantization is not None
    assert found.quantization.format == format_
    assert bool(found.assumed) is assumed


def test_names_that_are_refused() -> None:
    for name, says in (("phi3:14b", "no model of the shape of phi3:14b"), ("gpt-oss:120b-cloud", "cloud")):
        with pytest.raises(KvplanError, match=says) as caught:
            read_command(f"ollama run {name}")
        assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "tag", "want"),
    [
        ("deepseek-r1", "", ("8b", "qwen3-8b", "q4_k_m", 131072)), ("qwen3", "latest", ("8b", "qwen3:8b", "q4_k_m", 0)),
        ("llama3.2", "1b", ("1b", "llama-3.2-1b", "q8_0", 0)), ("gpt-oss", "", ("20b", "gpt-oss:20b", "", 0)),
        ("gemma", "7b", ("7b", "gemma:7b", "q4_0", 0)), ("phi3", "14b", ("14b", "", "q4_0", 0)),
    ],
)  # fmt: skip
def test_what_names_stand_for(name: str, tag: str, want: tuple[str, str, str, int]) -> None:
    assert meaning(name, tag) == want
    assert meaning("nobody", tag) is None


@pytest.mark.parametrize(
    ("model", "stored", "name"),
    [
        ("llama-3.1-8b", "q4_k_m", "llama3.1:8b"), ("llama-3.1-8b", "q8_0", ""), ("qwen3-14b", "q4_k_m", "qwen3:14b"),
        ("llama-3.2-1b", "q8_0", "llama3.2:1b"), ("llama-3.2-1b", "q4_k_m", ""),
        ("gpt-oss-20b", "mxfp4", "gpt-oss:20b"),
        ("deepseek-r1-distill-llama-70b", "q4_k_m", "deepseek-r1:70b"), ("gemma-3-27b", "q4_k_m", "gemma3:27b"),
        ("smollm2-135m", "fp16", "smollm2:135m"),
    ],
)  # fmt: skip
def test_names_for_models(model: str, stored: str, name: str) -> None:
    assert tag_of(model, stored) == name
