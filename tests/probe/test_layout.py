"""Tensors of a layout hold exactly the bytes that the planner counts, for every kind and format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cache.bytes import KvFormats, sequence_bytes
from kvplan.catalog import load_model
from kvplan.probe.layout import PROBE_FORMATS, entry_parts, model_layout
from kvplan.spec.formats import format_names, get_format

MODELS = (
    "llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "falcon-h1-7b", "qwen3-next-80b-a3b", "llama-4-scout",
    "gpt-oss-120b", "rwkv-7-g1-7.2b", "whisper-large-v3", "llama-3.2-11b-vision",
)  # fmt: skip
"""Grouped, windowed, latent, with states, chunked, with an encoder's rows."""


def formats_of(name: str) -> KvFormats:
    """K, V and index key in one format, 16-bit convolutions and 32-bit states."""
    fmt = get_format(name, use="cache")
    return KvFormats(fmt, fmt, fmt, 2, 4)


@pytest.mark.parametrize("model", MODELS)
def test_tensors_add_up_to_the_planners_bytes(model: str) -> None:
    spec = load_model(model)
    crossed = any(s.fixed_entries for _, m in spec.mixers() for s in m.streams())
    for name in format_names("cache"):
        fmt = get_format(name)
        if fmt.residual_tokens or (fmt.edge_layers and crossed):
            continue  # the newest tokens in 16 bits; outer layers in 16 bits beside an encoder's rows
        layout = model_layout(spec, formats_of(name), block_size=16)
        for tokens in (1, 127, 4096):
            rows = sum(
                stream.entries(tokens) * sum(part.num_bytes for part in stream.parts)
                for layer in layout.layers
                for stream in layer.streams
            )
            states = sum(state.num_bytes for layer in layout.layers for state in layer.states)
            assert rows + states == sequence_bytes(spec, tokens, layout.formats), name


@given(
    st.sampled_from([n for n in format_names("cache") if get_format(n).block_elements <= 256]),
    st.integers(1, 64), st.sampled_from([16, 64, 80, 96, 128, 192, 256, 576]), st.booleans(),
)  # fmt: skip
def test_parts_of_an_entry_have_the_formats_bytes(name: str, heads: int, head_dim: int, v: bool) -> None:
    fmt = get_format(name)
    parts = entry_parts(fmt, heads, head_dim, v=v)
    assert sum(p.num_bytes for p in parts) == fmt.row_bytes(heads, head_dim, v=v)


def test_formats_of_the_probe_have_the_bytes_that_kernels_read() -> None:
    """Bytes a token, head and stream of 128 elements."""
    sizes = [sum(p.num_bytes for p in entry_parts(get_format(name), 1, 128)) for name in PROBE_FORMATS]
    assert sizes == [256, 128, 132, 72]


def test_pages_of_windows_and_compressed_entries() -> None:
    gemma = model_layout(load_model("gemma-3-27b"), formats_of("bf16"), block_size=16)
    sliding = next(layer for layer in gemma.layers if layer.kind == "sliding").streams[0]
    assert sliding.blocks(100_000, 16) == 1024 // 16
    assert sliding.blocks(17, 16) == 2
    assert len(gemma.kinds()) == 2
    assert sum(gemma.alike(layer) for layer in gemma.kinds()) == len(gemma.layers) == 62
