"""LM Studio on random deployments, the lines of both, and lengths as they are typed."""

from __future__ import annotations

from math import floor
from random import Random
from typing import Any

import pytest
from at_random import plain, windowed, worked

from kvplan import load_model


def pad(cells: int) -> int:
    return -(-cells // 256) * 256


@pytest.mark.parametrize("seed", range(4))
def test_lm_studio(seed: int) -> None:
    """``contextLength`` cells that the predictions share, or as many for each; layers by a share of them."""
    rng = Random(f"lm studio {seed}")
    for _ in range(25):
        shape = rng.choice([plain, windowed])(rng)
        length, slots = rng.choice([None, rng.randint(1, shape.longest)]), rng.choice([None, rng.randint(1, 9)])
        apart, share = rng.choice([None, True]), rng.choice([None, "max", "off", round(rng.random(), 2)])
        named = {"max_model_len": length, "parallel": slots, "separate_caches": apart, "gpu_offload": share}
        given = {name: value for name, value in named.items() if value is not None}
        engine, found = worked(shape.model, "lmstudio", "h200-sxm", **given)
        tokens, count = length or min(4096, shape.longest), slots or 4
        cells, streams = pad(tokens), count if apart else 1
        extra = found.settings.extra
        assert (extra["slots"], extra["unified"], extra["batch_size"], extra["ubatch_size"]) == (
            count, not apart, 2048, 512,
        )  # fmt: skip
        assert found.pool is not None
        assert found.pool.engine_reported_tokens == cells * streams
        used = (
            shape.layers + 1
            if share in (None, "max", 1.0)
            else 0
            if share == "off"
            else floor(float(share) * shape.layers)
        )
        assert extra["n_gpu_layers_used"] == used
        wide, sizes = 4 * shape.kv_heads * shape.head_dim, []
        for window in shape.windows:
            each = cells
            if window:
                ubatch = min(512, cells * streams)
                each = pad(min(cells, window * (1 if apart else count) + ubatch))
            sizes.append(wide * each * streams)
        made = engine.allocation(shape.model, found.settings)
        assert made is not None
        assert made.bytes == sum(sizes)
        assert engine.start_bytes(found.stages[0], found.settings) == sum(
            sizes[min(shape.layers, max(0, shape.layers + 1 - used)) :]
        )


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("lms load qwen/qwen3-8b", {}), ("lms load qwen/qwen3-8b --gpu max -y", {"gpu_offload": "max"}),
        ("lms load qwen/qwen3-8b --context-length 16384", {"max_model_len": 16384}),
        ("lms load qwen/qwen3-8b --parallel 8 --identifier x --ttl 3600", {"parallel": "8"}),
    ],
)  # fmt: skip
def test_lms_load(line: str, settings: dict[str, Any]) -> None:
    from kvplan.sources.commands import read_command

    found = read_command(line)
    assert (found.engine, found.model, found.settings) == ("lmstudio", "qwen/qwen3-8b", settings)


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("llama-server MODEL -c 8192 -np 2 -ngl 20", {"ctx_size": 8192, "parallel": "2", "n_gpu_layers": "20"}),
        ("llama-server MODEL -ctk q8_0 -ctv q4_0 -fa", {"cache_type_k": "q8_0", "cache_type_v": "q4_0",
         "flash_attn": "on"}),
        ("llama-server MODEL -fa off -b 512 -ub 256 -kvu", {"flash_attn": "off", "batch_size": 512,
         "ubatch_size": 256, "kv_unified": True}),
        ("llama-server MODEL -ts 3,1 --swa-full -nkvo", {"tensor_split": "3,1", "swa_full": True,
         "kv_offload": False}),
        ("LLAMA_ARG_CTX_SIZE=4096 LLAMA_ARG_N_PARALLEL=3 LLAMA_ARG_FLASH_ATTN=off llama-server MODEL",
         {"ctx_size": 4096, "parallel": "3", "flash_attn": "off"}),
        ("LLAMA_ARG_UBATCH=64 LLAMA_ARG_BATCH=128 LLAMA_ARG_N_GPU_LAYERS=3 llama-server MODEL",
         {"ubatch_size": 64, "batch_size": 128, "n_gpu_layers": "3"}),
    ],
)  # fmt: skip
def test_llama_server(line: str, settings: dict[str, Any]) -> None:
    from kvplan.sources.commands import read_command

    found = read_command(line.replace("MODEL", "-hf unsloth/Qwen3-8B-GGUF:Q8_0"))
    assert (found.engine, found.model) == ("llama.cpp", "unsloth/Qwen3-8B-GGUF:Q8_0")
    assert found.settings == settings


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"ctx_size": 8192, "parallel": 2}, ("--ctx-size", "2048", {"ctx_size": 2048})),
        ({"ctx_size": 8192}, ("--ctx-size", "1024", {"ctx_size": 1024})),
        ({"max_model_len": 8192, "parallel": 2}, ("--max-model-len", "1024", {"max_model_len": 1024})),
    ],
)
def test_how_a_length_is_typed(given: dict[str, Any], want: tuple[str, str, dict[str, Any]]) -> None:
    """-c is a total over slots that do not share one pool."""
    engine, found = worked(load_model("llama-3.1-8b"), "llama.cpp", **given)
    assert engine.length_flag(found.settings, 1024) == want


def test_context_from_the_model() -> None:
    for slots, shared, want in ((None, None, 131_072), (2, None, 65_536), (3, None, 43_776), (2, True, 131_072)):
        given = {n: v for n, v in (("parallel", slots), ("kv_unified", shared)) if v is not None}
        settings = worked(load_model("llama-3.1-8b"), "llama.cpp", **given)[1].settings
        assert settings.max_model_len == want
