"""Every model of the catalog against the published facts: layers, caches, states, and parameter counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvplan.catalog.build import model_from_plain
from kvplan.sources.dump import dump_model
from kvplan.spec.kind import CacheKind
from kvplan.spec.model import ModelSpec

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "models.jsonl"
FACTS: dict[str, dict[str, Any]] = {
    fact["id"]: fact for fact in map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
}
KIND_OF = {
    "gated_delta_net": "linear", "kda": "linear", "lightning": "linear", "rwkv": "linear", "mamba1": "mamba",
    "mamba2": "mamba", "short_conv": "conv", "rg_lru": "rglru",
}  # fmt: skip
"""Cache kinds in the words of the facts, where those differ."""

Groups = Counter[tuple[Any, ...]]


def load(model: str) -> ModelSpec:
    path = ROOT / "models" / FACTS[model]["family"] / f"{model}.yaml"
    data = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return model_from_plain(data, where=path.name)


SPECS = {model: load(model) for model in FACTS}


def described(mixer: CacheKind) -> tuple[Any, ...]:
    """A mixer in the words of the facts: (kind, head_dim, kv_heads, elements, window) or what its kind has instead."""
    kind = KIND_OF.get(mixer.kind, mixer.kind)
    streams = {s.name: s for s in mixer.streams()}
    if kind == "mla":
        return (kind, streams["latent"].heads * streams["latent"].head_dim)
    if kind == "compressed":
        entry, index = streams.get("compressed"), streams.get("index")
        assert index is None or (entry is not None and index.ratio == entry.ratio)
        return (
            kind, streams["window"].head_dim, streams["window"].window, entry and entry.head_dim, entry and entry.ratio,
            index and index.head_dim,
        )  # fmt: skip
    if "k" in streams:
        k, v = streams["k"], streams["v"]
        return (kind, k.head_dim, k.heads, k.heads * k.head_dim + v.heads * v.head_dim, k.window)
    return (kind,)


def fact_group(group: dict[str, Any]) -> tuple[Any, ...]:
    kind = group["kind"]
    if kind == "mla":
        return (kind, group["elems_per_token"])
    if kind == "compressed":
        return (
            kind, group["window_elems_per_token"], group["window"], group.get("elems_per_entry"), group.get("ratio"),
            group.get("index_elems_per_entry"),
        )  # fmt: skip
    if "kv_heads" in group:
        return (kind, group["head_dim"], group["kv_heads"], group["elems_per_token"], group.get("window"))
    return (kind,)


def groups(spec: ModelSpec) -> Groups:
    found: Groups = Counter()
    for count, mixer in spec.mixers():
        if mixer.kind not in ("shared", "none"):
            found[described(mixer)] += count
    return found


def test_every_fact_has_a_file() -> None:
    files = {p.stem: p.parent.name for p in (ROOT / "models").glob("*/*.yaml")}
    assert files.items() >= {model: fact["family"] for model, fact in FACTS.items()}.items()


@pytest.mark.parametrize("model", FACTS)
def test_layers_and_caches_equal_the_facts(model: str) -> None:
    spec, resolved = SPECS[model], FACTS[model]["resolved"]
    expected: Groups = Counter()
    for group in resolved["kv_groups"]:
        expected[fact_group(group)] += group["layers"]
    found = groups(spec)
    if spec.architecture.startswith("Whisper"):  # the facts leave the cross layers to us
        found = Counter({g: n for g, n in found.items() if g[0] != "cross"})
    assert found == expected
    assert spec.hidden_size == resolved["hidden_size"]


@pytest.mark.parametrize("model", FACTS)
def test_layer_count(model: str) -> None:
    """Every main layer is there, those without a cache included."""
    spec, config = SPECS[model], FACTS[model]["config"]
    text = config.get("text_config", config)
    keys = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    stated = next((text[k] for k in keys if text.get(k)), None) or len(text["layers_block_type"])
    assert spec.num_layers == stated


@pytest.mark.parametrize("model", FACTS)
def test_indexers_and_shared_layers(model: str) -> None:
    spec, resolved = SPECS[model], FACTS[model]["resolved"]
    found: Counter[int] = Counter()
    for count, mixer in spec.mixers():
        if mixer.kind != "compressed":
            for stream in mixer.streams():
                if stream.role == "index":
                    found[stream.heads * stream.head_dim] += count
    indexer = resolved.get("indexer")
    assert dict(found) == ({indexer["elems_per_token"]: indexer["layers"]} if indexer else {})
    shared = sum(count for count, mixer in spec.mixers() if mixer.kind == "shared")
    assert shared == resolved.get("kv_shared_layers", 0)


@pytest.mark.parametrize("model", FACTS)
def test_states(model: str) -> None:
    found = {"recurrent": 0, "conv": 0}
    for count, mixer in SPECS[model].mixers():
        for state in mixer.states():
            found["recurrent" if state.name == "recurrent" else "conv"] += count * state.elements
    expected = dict(FACTS[model]["resolved"].get("state_elems_per_sequence", {"recurrent": 0, "conv": 0}))
    kernel = FACTS[model]["config"].get("conv_L_cache")
    if kernel:  # these facts count the kernel's columns; the cache holds one fewer, as in every other convolution
        expected["conv"] = expected["conv"] // kernel * (kernel - 1)
    assert found == expected


@pytest.mark.parametrize("model", FACTS)
def test_slope_beyond_every_window(model: str) -> None:
    """Bytes that one more token costs at 2 bytes an element, once all windows are full."""
    slope = 0
    for count, mixer in SPECS[model].mixers():
        for stream in mixer.streams():
            if stream.role != "index" and stream.ratio == 1 and mixer.kind != "compressed" and stream.grows_at(2**40):
                slope += count * stream.heads * stream.head_dim * 2
    assert slope == FACTS[model]["resolved"]["bytes_per_token_bf16_unbounded"]


@pytest.mark.parametrize("model", [m for m, f in FACTS.items() if f.get("total_params")])
def test_parameters_within_one_percent_or_explained(model: str) -> None:
    spec, published = SPECS[model], FACTS[model]["total_params"]
    assert spec.published_parameters == published
    off = abs(spec.parameters - published) / published
    assert (off > 0.01) == (spec.parameters_note is not None), f"{spec.parameters:,} of {published:,}: {off:.2%}"


def test_at_most_35_need_a_reason() -> None:
    assert sum(spec.parameters_note is not None for spec in SPECS.values()) <= 35


def test_most_counts_are_exact() -> None:
    """A reader that forgets a bias or a norm stays within 1 %; this notices."""
    exact = sum(spec.parameters == spec.published_parameters for spec in SPECS.values())
    assert exact >= 215


@pytest.mark.parametrize("model", ["mixtral-8x7b", "llama-4-scout", "deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b"])
def test_active_parameters(model: str) -> None:
    spec = SPECS[model]
    assert spec.published_active_parameters
    assert spec.active_parameters == pytest.approx(spec.published_active_parameters, rel=0.15)


def test_whisper_caches_the_encoder_in_every_decoder_layer() -> None:
    spec = SPECS["whisper-large-v3"]
    cross = [(count, m.streams()) for count, m in spec.mixers() if m.kind == "cross"]
    assert [(n, [(s.heads, s.head_dim, s.fixed_entries) for s in streams]) for n, streams in cross] == [
        (32, [(20, 64, 1500), (20, 64, 1500)])
    ]


def test_images_of_llama_vision() -> None:
    """Four tiles of 40 x 40 patches and a class token each."""
    (streams,) = [m.streams() for _, m in SPECS["llama-3.2-11b-vision"].mixers() if m.kind == "cross"]
    assert {s.fixed_entries for s in streams} == {4 * 1601}


@pytest.mark.parametrize(
    ("model", "per_token", "sequence"),
    [
        ("llama-3.1-8b", 131_072, 4 * 2**30), ("llama-3.1-70b", 327_680, 10 * 2**30), ("qwen3-32b", 262_144, 8 * 2**30),
        ("deepseek-v3", 70_272, 2_302_672_896), ("gemma-3-27b", 507_904, 81_920 * 32_768 + 425_984 * 1024),
        ("gpt-oss-120b", 73_728, 36_864 * 32_768 + 36_864 * 128), ("falcon-7b", 8_192, 2**28),
        ("gemma-3n-e4b", 40_960, 8_192 * 32_768 + 32_768 * 512), ("opt-13b", 819_200, 819_200 * 32_768),
        ("opt-66b", 2_359_296, 2_359_296 * 32_768),
    ],
)  # fmt: skip
def test_bytes_of_a_sequence(model: str, per_token: int, sequence: int) -> None:
    """bf16, one sequence of 32,768 tokens: arithmetic, exact."""

    def size(tokens: int) -> int:
        return sum(
            count * stream.entries(tokens) * stream.heads * stream.head_dim * 2
            for count, mixer in SPECS[model].mixers()
            for stream in mixer.streams()
        )

    assert size(2) - size(1) == per_token
    assert size(32_768) == sequence


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("falcon-7b", 2048), ("command-r-35b", 131_072), ("deepseek-v3", 163_840), ("gpt2", 1024), ("mpt-7b", 2048),
        ("whisper-large-v3", 448), ("devstral-small-2-24b", 393_216), ("qwen2.5-vl-7b", 128_000), ("bloom-7b1", 2048),
    ],
)  # fmt: skip
def test_longest_context(model: str, limit: int) -> None:
    assert SPECS[model].max_position_embeddings == limit


def test_files_are_what_the_script_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_catalog.py"), str(DATA), "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("model", FACTS)
def test_a_dump_reads_back_equal(model: str) -> None:
    text = dump_model(SPECS[model])
    assert model_from_plain(yaml.safe_load(text)) == SPECS[model]
    assert all(len(line) <= 400 for line in text.splitlines())


def test_where_the_numbers_come_from() -> None:
    for spec in SPECS.values():
        assert spec.source
        assert spec.repo
        assert spec.confidence in ("seen", "derived", "recalled")
    assert [s.id for s in SPECS.values() if s.confidence == "recalled"] == ["mamba2-2.7b"]
