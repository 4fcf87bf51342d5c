"""Plain data into specs: layer patterns, kinds, and errors that name their place."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from kvplan.cache.attention import FullAttention
from kvplan.cache.sliding import SlidingAttention
from kvplan.catalog.build import expand_layers, gpu_from_plain, model_from_plain
from kvplan.errors import SpecError
from kvplan.spec.ffn import DenseFfn

ATTENTION = {"kind": "full", "query_heads": 32, "kv_heads": 8, "head_dim": 128}
MODEL: dict[str, Any] = {
    "schema": "kvplan.model/1",
    "id": "tiny",
    "name": "Tiny",
    "family": "tiny",
    "architecture": "TinyForCausalLM",
    "hidden_size": 4096,
    "vocab_size": 1000,
    "blocks": {
        "global": {"mixers": [ATTENTION], "ffns": [{"kind": "dense", "intermediate_size": 14336}]},
        "local": {
            "mixers": [{**ATTENTION, "kind": "sliding", "window": 512}],
            "ffns": [{"kind": "moe", "experts": 8, "experts_per_token": 2, "intermediate_size": 100}],
            "tensors": [{"name": "gate", "shape": [4096, 2]}],
        },
    },
    "layers": [{"repeat": 2, "of": [{"repeat": 3, "of": ["local"]}, "global"]}, "local"],
    "towers": [{"name": "vision", "parameters": 5}],
    "checkpoint": {"format": "fp8_e4m3", "roles": ["attention"]},
    "aliases": ["Tiny-1"],
    "notes": ["made up"],
}
GPU = {
    "schema": "kvplan.gpu/1",
    "id": "g1",
    "name": "G1",
    "vendor": "v",
    "architecture": "a",
    "datasheet_gb": 80,
    "bandwidth_bytes_per_second": 10**12,
}


def test_patterns_expand_in_order() -> None:
    entries = [{"repeat": 2, "of": ["a", {"repeat": 2, "of": ["b"]}]}, "a"]
    assert expand_layers(entries, {"a", "b"}) == ("a", "b", "b", "a", "b", "b", "a")


def test_ten_thousand_layers_are_the_limit() -> None:
    assert len(expand_layers([{"repeat": 10_000, "of": ["a"]}], {"a"})) == 10_000
    for entries in ([{"repeat": 10_001, "of": ["a"]}], [{"repeat": 10_000, "of": ["a"]}, "a"]):
        with pytest.raises(SpecError, match="more than 10,000 layers"):
            expand_layers(entries, {"a"})


def test_a_huge_repeat_costs_nothing() -> None:
    entries: Any = ["a"]
    for _ in range(8):
        entries = [{"repeat": 10**9, "of": entries}] * 50
    with pytest.raises(SpecError, match="more than 10,000 layers"):
        expand_layers(entries, {"a"})


def test_nesting_has_a_limit() -> None:
    entries: Any = ["a"]
    for _ in range(8):
        entries = [{"repeat": 1, "of": entries}]
    assert expand_layers(entries, {"a"}) == ("a",)
    with pytest.raises(SpecError, match="nest deeper than 8"):
        expand_layers([{"repeat": 1, "of": entries}], {"a"})


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"repeat": 0, "of": ["a"]}], r"layers\[0\]\.repeat: repeat should be a whole number from 1, not 0"),
        ([{"repeat": True, "of": ["a"]}], "whole number from 1, not True"),
        ([{"repeat": "3", "of": ["a"]}], "whole number from 1, not '3'"),
        ([{"repeat": 2, "of": []}], r"layers\[0\]\.of: should be a list with at least one entry"),
        ([{"repeat": 2}], r"layers\[0\]: should be a block name or a repetition"),
        ([{"repeat": 2, "of": ["a"], "x": 1}], "should be a block name or a repetition"),
        (["a", "c"], r"layers\[1\]: no block is called 'c'"),
        ("a", "layers: should be a list"),
        ([], "layers: should be a list"),
        ([3], "should be a block name or a repetition, not 3"),
        (["\x1b[31m"], r"no block is called '\\\\x1b\[31m'"),
    ],
)
def test_bad_patterns_say_where(entries: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        expand_layers(entries, ["a", "b"])


def test_a_model_is_built_through_its_kinds() -> None:
    model = model_from_plain(MODEL)
    assert model.layers == ("local", "local", "local", "global") * 2 + ("local",)
    assert model.layer_counts == {"local": 7, "global": 2}
    assert model.blocks["global"].mixers == (FullAttention(query_heads=32, kv_heads=8, head_dim=128),)
    assert model.blocks["local"].mixers == (SlidingAttention(query_heads=32, kv_heads=8, head_dim=128, window=512),)
    assert model.blocks["global"].ffns == (DenseFfn(intermediate_size=14336),)
    assert model.blocks["local"].tensors[0].shape == (4096, 2)
    assert model.towers[0].parameters == 5
    assert model.checkpoint is not None
    assert model.checkpoint.roles == ("attention",)
    assert model.aliases == ("Tiny-1",)
    assert model.notes == ("made up",)


def test_building_leaves_the_data_alone() -> None:
    before = deepcopy(MODEL)
    model_from_plain(MODEL)
    assert before == MODEL


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), "kvplan.model/2", "tiny.yaml: schema is 'kvplan.model/2', not 'kvplan.model/1'"),
        (("hiden_size",), 3, "tiny.yaml: got an unexpected key 'hiden_size'"),
        (("hidden_size",), 0, "hidden_size and vocab_size must be above 0"),
        (("blocks",), {}, "tiny.yaml: blocks should map names to layers"),
        (("blocks", "local"), 5, r"tiny.yaml: blocks\.local: should be a mapping, not 5"),
        (("blocks", "global", "mixers", 0, "kind"), "flul", r"blocks\.global\.mixers\[0\]: unknown kind 'flul'"),
        (("blocks", "global", "mixers", 0, "kind"), [], r"blocks\.global\.mixers\[0\]: unknown kind \[\]"),
        (("blocks", "global", "mixers", 0, "kv_heads"), 5, r"mixers\[0\]: query_heads \(32\) is not a multiple"),
        (("blocks", "local", "mixers", 0, "window"), 0, r"blocks\.local\.mixers\[0\]: window must be above 0"),
        (("blocks", "global", "ffns", 0, "kind"), "dens", r"blocks\.global\.ffns\[0\]: unknown kind 'dens'"),
        (("blocks", "local", "tensors"), 4, r"blocks\.local\.tensors: should be a list"),
        (("layers",), ["global", "x"], r"tiny.yaml: layers\[1\]: no block is called 'x'"),
        (("draft_layers",), ["y"], r"tiny.yaml: draft_layers\[0\]: no block is called 'y'"),
        (("towers", 0, "parameters"), ..., r"tiny.yaml: towers\[0\]: missing 1 required"),
        (("checkpoint", "fromat"), "x", "tiny.yaml: checkpoint: got an unexpected key 'fromat'"),
    ],
)
def test_bad_models_say_where(path: tuple[Any, ...], value: Any, message: str) -> None:
    data = deepcopy(MODEL)
    spot: Any = data
    for step in path[:-1]:
        spot = spot[step]
    if value is ...:
        del spot[path[-1]]
    else:
        spot[path[-1]] = value
    with pytest.raises(SpecError, match=message):
        model_from_plain(data, where="tiny.yaml")


def test_a_list_is_no_model() -> None:
    with pytest.raises(SpecError, match="should be a mapping, not"):
        model_from_plain([1])


def test_a_gpu_is_built() -> None:
    price = {"low_usd_per_hour": 1.0, "high_usd_per_hour": 2.5, "source": "s", "date": "2026-05"}
    gpu = gpu_from_plain({**GPU, "price": price, "aliases": ["G"], "nvml_total_bytes": 5 << 20})
    assert gpu.price is not None
    assert (gpu.price.high_usd_per_hour, gpu.aliases, gpu.device_bytes) == (2.5, ("G",), 5 << 20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "kvplan.model/1"}, "schema is 'kvplan.model/1', not 'kvplan.gpu/1'"),
        ({"bandwith": 3}, "unexpected key 'bandwith'"),
        ({"datasheet_gb": 0}, "must be above 0"),
        ({"nvml_total_bytes": 80}, "80 B, is too little for an accelerator"),
        ({"price": {"date": "x"}}, "price: missing 3 required"),
    ],
)
def test_bad_gpus_say_where(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        gpu_from_plain({**GPU, **change})
