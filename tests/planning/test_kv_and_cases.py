"""Single figures that few plans show: compressed streams, padded vocabularies, devices that are alike."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.cache.bytes import state_bytes, stream_rows
from kvplan.cli.sweep import SweepVerb
from kvplan.engines import get_engine
from kvplan.engines.base import Settings
from kvplan.errors import KvplanError
from kvplan.planning.fit.candidates import Layout
from kvplan.planning.fit.cases import Case, Cases
from kvplan.planning.kv import kv_groups
from kvplan.planning.sweep_axes import read_axes

from .round_rates import made

SETTINGS = Settings(engine="generic", engine_version="", max_model_len=4096)


@pytest.mark.parametrize(
    "name", ["deepseek-v4-flash", "deepseek-v3", "gemma-3-27b", "qwen3-next-80b-a3b", "whisper-large-v3"]
)
def test_groups_of_layers_by_the_streams_of_one(name: str) -> None:
    """Bytes of a token are those of an entry over the tokens that share it, added up and then rounded up."""
    model = load_model(name)
    formats = get_engine("generic").kv_formats(model, SETTINGS)
    expected: dict[Any, int] = {}
    for layers, mixer in model.mixers():
        rows = stream_rows(mixer, formats)
        if not rows and not mixer.states():
            continue
        growing = sum((Fraction(size, s.ratio) for s, size, _ in rows if s.fixed_entries is None), Fraction(0))
        fixed = state_bytes(mixer, formats) + sum(size * (s.fixed_entries or 0) for s, size, _ in rows)
        ratio = next((s.ratio for s, _, _ in rows if s.ratio > 1), None)
        window = rows[0][0].window or rows[0][0].fixed_entries if rows else None
        value = next((s.head_dim for s, _, _ in rows if s.role == "v"), 0) if rows else None
        key = (mixer.kind, ceil(growing), fixed, ratio, window, value)
        expected[key] = expected.get(key, 0) + layers
    found = [
        ((g.kind, g.bytes_per_token_per_layer, g.fixed_bytes_per_layer, g.ratio, g.window, g.head_dim_v), g.layers)
        for g in kv_groups(model, formats)
    ]
    assert found == list(expected.items())


def test_a_tied_head_multiplies_its_rows_and_no_padding() -> None:
    """Whisper's 51,866 rows are 25,933 on each of two ranks; vLLM stores 25,952 of them."""
    (work,) = made("whisper-large-v3", "vllm", tensor_parallel_size=2, max_model_len=448).works
    assert work.head_parameters == 25_933 * 1280
    assert work.vocab_rows == 25_933
    (whole,) = made("whisper-large-v3", "vllm", max_model_len=448).works
    assert whole.head_parameters == 51_866 * 1280


def test_a_range_stays_a_range() -> None:
    (axis,) = read_axes(["concurrency=1..1000000"], SweepVerb.flags, {})
    assert axis.values == range(1, 1_000_001)
    (single,) = read_axes(["concurrency=7"], SweepVerb.flags, {})
    assert list(single.values) == [7]
    (mixed,) = read_axes(["concurrency=1..3,2,9"], SweepVerb.flags, {})
    assert mixed.values == [1, 2, 3, 9]


# ---- devices that are planned alike ----

GPUS = [load_gpu(name) for name in ("l4", "l40s", "h100-sxm", "h200-sxm", "mi300x")]


def cases(engine: str) -> Cases:
    sizes = {"max_model_len": 4096, "prompt_tokens": 1000, "output_tokens": 100}
    return Cases(load_model("llama-3.1-8b"), engine, get_engine(engine), GPUS, sizes)


def test_devices_are_alike_where_their_engine_sees_no_more_of_them() -> None:
    l4, l40s, h100, h200, mi300x = cases("vllm").keys
    assert all(isinstance(key, tuple) for key in (l4, l40s, h100, h200, mi300x))
    assert h100 == h200 or h100[3] != h200[3]  # apart only where the engine chose otherwise
    assert l4[:3] == l40s[:3] == ((False, False), "nvidia", "8")
    assert h100[:3] == h200[:3] == ((True, False), "nvidia", "9")
    assert mi300x[1] == "amd"
    apart = next(name for name in ("llama.cpp", "generic", "transformers", "exllamav3")
                 if not get_engine(name).alike_by_generation)  # fmt: skip
    assert cases(apart).keys == list(range(5))


def test_a_layout_that_is_refused_is_refused_alone() -> None:
    known, key = cases("vllm"), ("some", "kind")
    wide = Case("vllm", "auto", "auto", Layout(3))
    one = Case("vllm", "auto", "auto", Layout())
    assert isinstance(known.settings(wide, GPUS[0], key), KvplanError)
    assert isinstance(known.settings(one, GPUS[0], key), Settings)
    two = known.settings(Case("vllm", "auto", "auto", Layout(2)), GPUS[0], key)
    assert isinstance(two, Settings)
    assert (two.tensor_parallel_size, two.gpus, two.world_size) == (2, 2, 2)


def test_ranks_that_share_tokens_are_settled_by_themselves() -> None:
    """Rows of a latent cache stand once for four ranks, or are dealt to them."""
    sizes = {"max_model_len": 4096, "prompt_tokens": 1000, "output_tokens": 100}
    known = Cases(load_model("deepseek-v2-lite"), "vllm", get_engine("vllm"), GPUS, sizes)
    for _ in range(2):
        for dcp in (1, 4):
            found = known.settings(Case("vllm", "auto", "auto", Layout(4, dcp=dcp)), GPUS[2], ("some", "kind"))
            assert isinstance(found, Settings)
            assert (found.tensor_parallel_size, found.decode_context_parallel_size) == (4, dcp)


def test_the_rank_that_reads_most_is_told() -> None:
    """Of 32 layers over three stages the last has 10 and the head: it has more weights, the others more cache."""
    given = {"gpu": "h200-sxm", "engine": "generic", "max_model_len": 9000, "pipeline_parallel_size": 3}
    layer = 2 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14_336 * 4096 + 2 * 4096)
    for concurrency, weights, layers in ((192, 11 * layer, 11), (3, 10 * layer + 2 * (128_256 + 1) * 4096, 10)):
        decode = plan("llama-3.1-8b", **given, concurrency=concurrency, prompt_tokens=8000, output_tokens=2).decode
        assert decode is not None
        assert decode.weight_bytes == weights
        assert decode.kv_bytes == concurrency // 3 * 8001 * layers * 4096


def test_settings_of_a_case() -> None:
    assert Case("vllm", "auto", "auto", Layout()).settings() == {}
    assert Case("vllm", "fp8", "auto", Layout(2)).settings() == {"weights": "fp8", "tensor_parallel_size": 2}
    assert Case("vllm", "auto", "fp8", Layout()).settings() == {"kv_cache_dtype": "fp8"}
