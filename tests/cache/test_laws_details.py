"""Layers without a cache, vectors of RWKV, V in a format of its own, and models too short for two edges."""

from __future__ import annotations

from dataclasses import replace

from kvplan import load_model
from kvplan.cache.bytes import KvFormats, edge_surplus, stream_rows
from kvplan.cache.none import NoCache
from kvplan.cache.rwkv import VECTORS, Rwkv
from kvplan.spec.formats import get_format


def test_a_layer_without_a_cache_has_weights_where_it_is_linear() -> None:
    assert NoCache().tensors(10) == ()
    assert [t.shape for t in NoCache(linear=True).tensors(10)] == [(10, 10)]


def test_vectors_of_rwkv_are_those_of_its_parts() -> None:
    """Token mixing, decay and bonus, norm."""
    assert VECTORS == {5: 4 + 2 + 2, 6: 6 + 2 + 2, 7: 6 + 6 + 2}
    assert Rwkv(heads=2, head_dim=64, hidden_size=128, version=6).low_rank == 0


def test_v_in_a_format_of_its_own_takes_its_own_bytes() -> None:
    plain, packed = get_format("bf16"), get_format("turboquant_k3v4_nc")
    (_, mixer), *_ = load_model("llama-3.1-8b").mixers()
    (_, k, _), (_, v, _) = stream_rows(mixer, KvFormats(plain, packed, plain, 2, 4))
    assert packed.row_bytes(8, 128, v=True) != packed.row_bytes(8, 128, v=False)
    assert (k, v) == (8 * 128 * 2, packed.row_bytes(8, 128, v=True))


def test_edges_of_a_model_of_three_layers_are_one_each() -> None:
    packed = get_format("turboquant_4bit_nc")
    assert packed.edge_layers >= 2
    formats = KvFormats(packed, packed, packed, 2, 4)
    model = load_model("llama-3.1-8b")
    short, four = (replace(model, layers=model.layers[:n]) for n in (3, 4))
    assert edge_surplus(short, formats) == edge_surplus(four, formats) // 2 > 0
