"""From key/values to layers: the kinds that llama.cpp sees, bytes per device, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import pytest
from files import ARCHITECTURES, metadata_of, write
from hypothesis import given as fuzz
from hypothesis import settings as fuzzing
from hypothesis import strategies as st

from kvplan import load_gpu
from kvplan.errors import KvplanError, SpecError
from kvplan.planning.planner import plan_deployment
from kvplan.sources import find_model
from kvplan.sources.gguf import architectures as arch
from kvplan.sources.gguf.metadata import GgufModelSpec, read_file, read_metadata
from kvplan.sources.importing import spec_file
from kvplan.sources.reading import Reading
from kvplan.sources.yaml_file import model_from_text

KINDS: dict[str, dict[str, int]] = {
    "llama": {"full": 4}, "qwen2": {"full": 4}, "phi3": {"full": 4}, "starcoder2": {"full": 4},
    "gemma2": {"sliding": 2, "full": 2}, "gemma3": {"sliding": 4}, "gemma3n": {"sliding": 16, "full": 4, "shared": 10},
    "cohere2": {"sliding": 3, "full": 1}, "gpt-oss": {"sliding": 2, "full": 2}, "llama4": {"chunked": 3, "full": 1},
    "step35": {"sliding": 3, "full": 1}, "gemma4": {"sliding": 3, "shared": 1}, "deepseek2": {"mla": 4},
    "mamba": {"mamba1": 4}, "mamba2": {"mamba2": 4}, "jamba": {"mamba1": 2, "full": 2},
    "granitehybrid": {"mamba2": 2, "full": 2}, "falcon-h1": {"mamba2": 4, "full": 4},
    "nemotron_h": {"mamba2": 1, "full": 2, "none": 1}, "qwen3next": {"gated_delta_net": 3, "full": 1},
    "lfm2": {"short_conv": 2, "full": 2}, "kimi-linear": {"kda": 2, "mla": 2}, "rwkv7": {"rwkv": 4},
    "minimax-01": {"lightning": 3, "full": 1}, "minimax-m3": {"full": 4},
}  # fmt: skip


def spec(architecture: str, **changed: Any) -> GgufModelSpec:
    keys = {**metadata_of(architecture), "vocab_size": 300, **changed}
    return read_metadata(architecture, {k: v for k, v in keys.items() if v is not None})


def kinds(model: GgufModelSpec) -> dict[str, int]:
    found: Counter[str] = Counter()
    for layers, mixer in model.mixers():
        found[mixer.kind] += layers
    return dict(found)


@pytest.mark.parametrize("architecture", KINDS)
def test_kinds(architecture: str) -> None:
    assert kinds(spec(architecture)) == KINDS[architecture]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_file_of_every_architecture_plans(architecture: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", architecture, metadata_of(architecture))
    model = find_model(str(path))
    assert kinds(read_file(path)) == kinds(spec(architecture))
    found = plan_deployment(model, load_gpu("rtx-4090"), "llama.cpp", {"ctx_size": 4096, "parallel": 1})
    assert found.verdict.fits
    assert found.allocation is not None
    assert found.allocation.bytes > 0
    assert found.model.id == f"test-{architecture}".replace("_", "-")


def test_prefixed_keys_are_the_same() -> None:
    keys = {f"gemma3.{k}": v for k, v in metadata_of("gemma3").items()} | {"gemma3.vocab_size": 300}
    assert read_metadata("gemma3", keys).blocks == spec("gemma3").blocks


def test_windows_by_pattern_key() -> None:
    by_array = spec("gemma3", **{"attention.sliding_window_pattern": [False, True, True, False]})
    assert [by_array.blocks[n].mixers[0].kind for n in by_array.layers] == ["full", "sliding", "sliding", "full"]
    assert kinds(spec("gemma3", **{"attention.sliding_window_pattern": 2})) == {"sliding": 2, "full": 2}
    assert kinds(spec("gemma3", **{"attention.sliding_window": 0})) == {"full": 4}
    wide = {**metadata_of("llama"), "vocab_size": 9, "attention.sliding_window": 512}
    assert kinds(read_metadata("exaone4", wide)) == {"full": 4}
    assert kinds(read_metadata("exaone4", {**wide, "block_count": 64})) == {"sliding": 48, "full": 16}
    first = read_metadata("smallthinker", {**metadata_of("llama"), "vocab_size": 9, "attention.sliding_window": 512})
    assert [first.blocks[n].mixers[0].kind for n in first.layers] == ["full", "sliding", "sliding", "sliding"]
    assert next(m.window for _, m in first.mixers() if m.kind == "sliding") == 4096  # type: ignore[attr-defined]


def test_prediction_layers_are_not_part_of_the_main_context() -> None:
    assert spec("qwen3moe", nextn_predict_layers=1).num_layers == 3
    assert spec("qwen35", nextn_predict_layers=1).num_layers == 3


def test_indexers_of_sparse_attention() -> None:
    def indexed(model: GgufModelSpec) -> list[bool]:
        return [bool(getattr(model.blocks[n].mixers[0], "index_head_dim", None)) for n in model.layers]

    assert indexed(spec("deepseek32")) == [True] * 4
    assert indexed(spec("glm-dsa")) == [True] * 4
    assert indexed(spec("glm-dsa", **{"attention.indexer.types": [True, False, True, False]})) == [True, False] * 2
    assert indexed(spec("glm-dsa", context_length=1 << 20, block_count=8)) == [True] * 3 + [False] * 3 + [True, False]
    assert indexed(spec("minimax-m3")) == [False, True, True, True]


def test_latent_attention_without_rows_is_said_to_be_larger() -> None:
    changed = {"attention.head_count_kv": 8, "attention.key_length": 192, "attention.value_length": 128}
    rows = {"attention.key_length_mla": None, "attention.value_length_mla": None}
    legacy = spec("deepseek2", **changed, **rows)
    assert kinds(legacy) == {"full": 4}
    assert "without latent (MLA) rows" in legacy.file_warnings[0]
    found = plan_deployment(legacy, None, "llama.cpp", {"ctx_size": 4096})
    assert any("MLA" in w for w in found.warnings)
    assert not spec("deepseek2").file_warnings


def test_loops_and_a_router_layer() -> None:
    looped = read_metadata("nanbeige", {**metadata_of("llama"), "vocab_size": 9, "num_loops": 3})
    assert looped.num_layers == 12
    routed = read_metadata("graniteswitch", {**metadata_of("llama"), "vocab_size": 9})
    assert routed.num_layers == 5
    assert kinds(routed) == {"full": 5}


# ---- bytes ----


def test_bytes_of_layers_and_devices(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "llama", metadata_of("llama"))
    model = read_file(path)
    layer = 256 * 4 + 64 * 256 // 32 * 34
    table = 300 * 256 * 2
    assert model.layer_bytes == (layer,) * 4
    assert (model.input_bytes, model.output_bytes) == (table, table)  # no head of its own
    assert model.file_bytes == 4 * layer + table
    assert model.parameters == 300 * 256 + 4 * (256 + 64 * 256)
    gpu = load_gpu("rtx-4090")

    def weights(**given: Any) -> list[int]:
        memory = plan_deployment(model, gpu, "llama.cpp", {"ctx_size": 4096, **given}).memory
        assert memory is not None
        return [row.weights_bytes for row in memory]

    assert weights() == [4 * layer + table]
    assert weights(n_gpu_layers=3) == [2 * layer + table]
    assert weights(n_gpu_layers=0) == [0]
    assert weights(tensor_split="1,1") == [3 * layer, layer + table]


def test_parameters_do_not_count_rotary_tables() -> None:
    from kvplan.sources.gguf.header import TensorInfo
    from kvplan.sources.gguf.metadata import _unique

    assert _unique((TensorInfo("rope_freqs.weight", (64,), "F32", 64, 256), TensorInfo("a", (2,), "F32", 2, 8))) == 2


# ---- refusals ----


@pytest.mark.parametrize("architecture", sorted(arch.NO_CACHE | set(arch.NOT_MODELLED)))
def test_models_without_a_cache_of_their_own(architecture: str) -> None:
    with pytest.raises(SpecError) as error:
        read_metadata(architecture, {})
    assert error.value.hint


def test_an_unknown_architecture_names_its_neighbours() -> None:
    with pytest.raises(KvplanError) as error:
        read_metadata("qwen33", {})
    assert "qwen3" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("architecture", "changed", "said"),
    [
        ("llama", {"block_count": None}, "block_count"),
        ("llama", {"block_count": 0}, "block_count is 0"),
        ("llama", {"block_count": 1 << 30}, "more than the 512"),
        ("llama", {"block_count": "many"}, "not a size"),
        ("llama", {"embedding_length": -1}, "not a size"),
        ("llama", {"attention.head_count": float("nan")}, "not a size"),
        ("llama", {"attention.head_count_kv": [2, 2]}, "2 entries for 4 layers"),
        ("llama", {"attention.head_count_kv": 3}, "not a multiple"),
        ("llama", {"vocab_size": 0}, "vocab_size is 0"),
        ("llama", {"vocab_size": None}, "vocab_size"),
        ("gemma4", {"attention.sliding_window_pattern": None}, "which layers have a window"),
        ("gemma4", {"attention.shared_kv_layers": 4}, "shares the cache"),
        ("qwen3next", {"full_attention_interval": 0}, "full_attention_interval is 0"),
        ("qwen3next", {"ssm.time_step_rank": 7}, "not a multiple"),
        ("mamba2", {"ssm.state_size": None}, "ssm.state_size"),
        ("deepseek2", {"attention.kv_lora_rank": 4096}, "narrower than kv_lora_rank"),
        ("deepseek32", {"attention.indexer.key_length": None}, "indexer.key_length"),
        ("rwkv7", {"wkv.head_size": 60}, "not a multiple"),
        ("qwen3moe", {"expert_used_count": 9}, "exceeds experts"),
    ],
)
def test_keys_that_do_not_fit(architecture: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        spec(architecture, **changed)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


_values = st.one_of(
    st.integers(-5, 5000),
    st.floats(),
    st.text(max_size=5),
    st.booleans(),
    st.lists(st.integers(-2, 99), max_size=6),
    st.none(),
)


@fuzzing(max_examples=300, deadline=None)
@fuzz(st.sampled_from(sorted(ARCHITECTURES)), st.data())
def test_any_values_give_a_model_or_one_line(architecture: str, data: Any) -> None:
    keys = {**metadata_of(architecture), "vocab_size": 300}
    for name in data.draw(st.lists(st.sampled_from(sorted(keys)), max_size=3)):
        keys[name] = data.draw(_values)
    try:
        found = read_metadata(architecture, keys)
        plan_deployment(found, None, "llama.cpp", {"ctx_size": 4096})
        said = found.id
    except KvplanError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize(("architecture", "said"), [("llama", False), ("llama4", True), ("gemma3", True)])
def test_an_encoder_in_a_file_of_its_own_is_mentioned(architecture: str, said: bool) -> None:
    assert any("mmproj" in note for note in spec(architecture).notes) is said


@pytest.mark.parametrize("kind", ["adapter", "imatrix", "mmproj"])
def test_files_of_other_things_than_models_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(SpecError, match="not a model"):
        read_file(path)


def test_a_spec_written_from_a_file_keeps_the_count_of_its_tensors(tmp_path: Path) -> None:
    """Where the layers as llama.cpp runs them are not those of the file, the spec says so."""
    model = read_file(write(tmp_path / "model.gguf", "llama", metadata_of("llama")))
    written = model_from_text(spec_file(Reading(model, {}), "model.gguf"), "spec")
    assert written.published_parameters == model.parameters == model.file_parameters
    assert written.parameters != written.published_parameters
    assert f"{model.parameters:,}" in (written.parameters_note or "")
