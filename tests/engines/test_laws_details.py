"""Details of engines: flags of a length, layers dealt over GPUs, samplers by release, bounds that hold their figure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines import get_engine
from kvplan.engines.exllamav3.engine import row_bytes
from kvplan.engines.llama_cpp import offload
from kvplan.engines.llama_cpp.buffers import _mixer_bytes
from kvplan.engines.ollama import _estimate
from kvplan.engines.rows import cache_rows
from kvplan.engines.sglang.pools import Cell, Pools, held_bytes
from kvplan.engines.vllm import budget_outside
from kvplan.engines.vllm.backends import BACKENDS, window_block
from kvplan.engines.vllm.budget_activation import compile_peak, major
from kvplan.engines.vllm.budget_outside import Level, capture_sizes
from kvplan.engines.vllm.budget_versions import NO_SORT, SORT_FEW_ROWS, sampler
from kvplan.engines.vllm.versions import Rules
from kvplan.errors import UnsupportedError
from kvplan.planning.evaluate import evaluate
from kvplan.planning.settings import resolve
from kvplan.sources.commands import read_command
from kvplan.units import MIB


def resolved(engine: str, gpu: str = "h200-sxm", **given: Any) -> Any:
    spec, chosen = load_model("llama-3.1-8b"), get_engine(engine)
    settings, _ = resolve(spec, load_gpu(gpu), chosen, {"max_model_len": 4096, **given})
    return chosen, settings


def test_a_length_is_asked_for_as_the_engine_was_told_it() -> None:
    chosen, settings = resolved("exllamav3", cache_tokens=8192)
    changes = {"max_model_len": 1000, "cache_tokens": 1024}
    assert chosen.length_flag(settings, 1000) == ("--max-model-len", "1000 --cache-tokens 1024", changes)
    chosen, settings = resolved("exllamav3")
    assert chosen.length_flag(settings, 1000)[:2] == ("--max-model-len", "1000")
    chosen, settings = resolved("lmstudio")
    assert chosen.length_flag(settings, 1000)[:2] == ("--max-model-len", "1000")
    chosen, settings = resolved("lmstudio", max_model_len=None, ctx_size=8192)
    assert chosen.length_flag(settings, 1000) == ("--ctx-size", "1000", {"ctx_size": 1000})


def test_k_and_v_of_exllamav3_are_as_wide() -> None:
    made = plan("llama-3.1-8b", engine="exllamav3", cache_tokens=1024, max_model_len=1024).allocation
    assert made is not None
    assert [(p.k_bytes, p.v_bytes) for p in made.pools] == [(1024 * 32 * 1024 * 2,) * 2]


def test_layers_beside_those_in_host_memory_are_dealt_evenly() -> None:
    assert offload.split(80, 41, (1.0, 1.0)) == offload.Split(40, (21, 19))
    assert offload.split(80, 41, (3.0, 1.0)) == offload.Split(40, (31, 9))


def test_a_padding_slot_is_held_too() -> None:
    one = Cell(10, 10, 0, 0, 0, conv=100, recurrent=300)
    assert held_bytes(Pools(64, 0, 5, 1), one, 16) == (64 + 16) * 20 + 6 * 400


@pytest.mark.parametrize(("block", "window"), [(16, 16), (40, 32), (48, 48), (8, 16)])
def test_a_windowed_layer_takes_the_largest_block_that_its_backend_has(block: int, window: int) -> None:
    backend = next(b for b in BACKENDS.values() if b.multiple and b.sizes[0] == 16)
    assert window_block(backend, block, Rules()) == window
    assert window_block(backend, block, Rules("0.25.0")) == 16


@pytest.mark.parametrize("name", [name for name, value in vars(budget_outside).items() if isinstance(value, Level)])
def test_bounds_hold_their_figure(name: str) -> None:
    level = getattr(budget_outside, name)
    assert 0 <= level.low < level.typical < level.high
    assert level.typical >= MIB


def test_cards_without_a_compute_capability_are_of_no_generation() -> None:
    gpu = load_gpu("h100-sxm")
    assert (major(gpu), major(replace(gpu, compute_capability=None)), major(load_gpu("mi300x"))) == (9, 0, 0)


@pytest.mark.parametrize(("known", "low"), [(None, 0), ("cold", 1), ("warm", None)])
def test_a_copy_of_the_embedding_while_a_cold_start_compiles(known: str | None, low: int | None) -> None:
    given = {} if known is None else {"compile_cache": known}
    chosen, settings = resolved("vllm")
    spec = load_model("llama-3.1-8b")
    stage = evaluate(spec, load_gpu("h200-sxm"), chosen, settings).stages[0]
    found = compile_peak(stage, spec, replace(settings, extra={**settings.extra, **given}), 1000)
    size = 2 * 1000 * 4096
    assert tuple(found)[1:] == ((0, 0, 0) if low is None else (size, size * low, size))


@pytest.mark.parametrize(
    ("flags", "eager"),
    [("-O0", True), ("-O3", None), ("""--compilation-config '{"level": 0}'""", True),
     ("""--compilation-config '{"level": 1}'""", None), ("""--compilation-config '{"level": "0"}'""", True),
     ("""--compilation-config '{"max_cudagraph_capture_size": 0}'""", True),
     ("""--compilation-config '{"max_cudagraph_capture_size": 1}'""", None)],
)  # fmt: skip
def test_level_0_captures_no_graphs(flags: str, eager: bool | None) -> None:
    read = read_command(f"docker run vllm/vllm-openai:v0.11.0 --model meta-llama/Llama-3.1-8B-Instruct {flags}")
    assert read.settings.get("enforce_eager") is eager


@pytest.mark.parametrize(
    ("flags", "warned"),
    [("""--compilation-config '{"cudagraph_capture_sizes": [8]}'""", True), ("--cuda-graph-sizes 8", False),
     ("--cuda-graph-sizes 4 8", True), ("""--compilation-config '{"max_cudagraph_capture_size": 8}'""", False)],
)  # fmt: skip
def test_sizes_to_capture_are_counted_up_to_the_largest(flags: str, warned: bool) -> None:
    read = read_command(f"docker run vllm/vllm-openai:v0.11.0 --model meta-llama/Llama-3.1-8B-Instruct {flags}")
    assert read.settings["max_cudagraph_capture_size"] == 8
    assert any("graphs are counted for all usual sizes up to 8" in text for text in read.warnings) is warned


def test_the_smallest_graphs() -> None:
    _, settings = resolved("vllm", max_cudagraph_capture_size=1)
    assert capture_sizes(settings, load_gpu("h100-sxm")) == [1]


@pytest.mark.parametrize(
    ("release", "runner", "rows", "path", "least"),
    [
        ("0.25.0", 2, 256, "V2 runner, fp32 copy", 6.0), ("0.26.0", 2, 256, "V2 runner, logits only", 2.0),
        ("0.32.0", 2, 256, "V2 runner, logits only", 2.0),
        ("0.33.0", 2, 256, "V2 runner, warm-up pass with top-k and top-p", NO_SORT),
        ("0.20.1", 1, 7, "sort of few rows", SORT_FEW_ROWS), ("0.21.0", 1, 7, "sort of few rows", NO_SORT),
        ("0.20.1", 1, 8, "Triton", NO_SORT), ("0.21.0", 1, 8, "FlashInfer, Triton warmed", NO_SORT),
        ("0.16.0", 1, 7, "sort", SORT_FEW_ROWS),
    ],
)  # fmt: skip
def test_samplers_by_release(release: str, runner: int, rows: int, path: str, least: float) -> None:
    _, settings = resolved(f"vllm@{release}")
    found = sampler(settings, load_gpu("h100-sxm"), runner, rows)
    assert (found.path, found.least_bytes_per_element) == (path, least)


def test_a_latent_row_of_exllamav3_in_16_bits() -> None:
    row = next(r for r in cache_rows(load_model("deepseek-v2-lite")) if r.kind == "mla")
    assert (row.k, row_bytes(row, None)) == (512, (1024, 128))
    assert row_bytes(row, (4, 4)) == (512 // 32 * 18, 128)


def test_intermediates_of_attention_under_llama_cpp_are_floats() -> None:
    """Queries, keys, values and the result of 32 and 8 heads of 128, and the hidden vector."""
    (_, mixer), *_ = load_model("llama-3.1-8b").mixers()
    assert _mixer_bytes(mixer, 4096) == 4 * ((2 * 32 + 8) * 256 + 4096)


def test_a_factor_that_would_do_is_named() -> None:
    """Three times 32,768 are less than 100,000, four are enough."""
    rope = """{"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768}}"""
    with pytest.raises(UnsupportedError) as refused:
        plan(f"vllm serve Qwen/Qwen3-8B --max-model-len 100000 --hf-overrides '{rope}'")
    assert refused.value.hint == 'put "factor": 4 and "max_position_embeddings": 131072 into its JSON'


def test_the_preflight_figure_of_ollama_is_whole_bytes() -> None:
    model = load_model("llama-3.1-8b")
    found = [_estimate(model, "q4_k_m", tokens) for tokens in (0, 8192)]
    assert {type(size) for size in found} == {int}
    assert found[1] - found[0] == 4 * 32 * 8 * (4096 // 32) * 8192


def test_rows_of_logits_that_stay_are_named() -> None:
    made = plan("llama-3.1-8b", gpu="h100-sxm", engine="vllm@0.22.0", max_model_len=4096)
    (kept,) = (term for term in (made.memory or ())[0].terms if term.name == "buffers kept")
    rows = kept.bytes / (4 * 128_256)
    assert f"{rows:.0f} rows of fp32 logits" in kept.source


def test_a_context_of_0_is_what_the_model_was_trained_with() -> None:
    for given in ({"ctx_size": 0}, {}):
        made = plan("llama-3.1-8b", engine="llama.cpp", parallel=1, **given)  # type: ignore[arg-type]
        assert made.inputs["max_model_len"] == 131_072
