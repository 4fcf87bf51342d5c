"""Checkpoint folders through the public way in: exact weights, and what is read of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published import FACTS

from kvplan import plan
from kvplan.errors import SpecError
from kvplan.planning.weights import rank_weights, weight_format
from kvplan.sources import find_model, read_model
from kvplan.sources.importing import spec_file
from kvplan.sources.yaml_file import lint_model_file
from kvplan.spec.stored import loaded_bytes, main_parameters, stored_warnings

DATA = Path(__file__).parents[1] / "data"
Folder = Callable[..., Path]


# ---- exact weights ----


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_bytes_of_a_folder_are_those_of_its_files(llama_folder: Folder, shards: int) -> None:
    folder = llama_folder(shards=shards)
    model = find_model(str(folder))
    total = 2 * model.parameters
    assert model.checkpoint is not None
    assert sum(sum(by.values()) for by in model.checkpoint.stored.values()) == total
    assert model.checkpoint.stored["embedding"] == {"BF16": 2 * 512 * 64}
    assert model.checkpoint.stored["attention"] == {"BF16": 2 * 2 * (2 * 64 * 64 + 2 * 32 * 64)}
    assert main_parameters(model) == model.published_parameters == model.parameters
    assert stored_warnings(model) == []
    made = plan(str(folder), gpu="h100-sxm", engine="generic")
    assert made.memory is not None
    assert made.memory[0].weights_bytes == total
    assert made.model.parameters == model.parameters


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_ranks_divide_measured_bytes_as_computed_ones(llama_folder: Folder, tp: int) -> None:
    folder = llama_folder(shards=2)
    settings = {"gpu": "h100-sxm", "engine": "generic", "tensor_parallel_size": tp}
    rows = [plan(where, **settings).memory for where in (str(folder), str(folder / "config.json"))]
    assert rows[0] is not None
    assert rows[1] is not None
    assert [row.weights_by_role for row in rows[0]] == [row.weights_by_role for row in rows[1]]
    assert [row.replicated_bytes for row in rows[0]] == [row.replicated_bytes for row in rows[1]]


def test_stages_add_up_to_the_files(llama_folder: Folder) -> None:
    made = plan(str(llama_folder()), gpu="h100-sxm", engine="generic", pipeline_parallel_size=2)
    assert made.memory is not None
    assert sum(row.weights_bytes for row in made.memory) == 2 * made.model.parameters


def test_a_named_format_is_computed_and_not_measured(llama_folder: Folder) -> None:
    model = find_model(str(llama_folder()))
    formats = weight_format(model, "fp32")
    assert formats.measured is None
    held = rank_weights(model, model, formats, tp=1, vocab_rows=model.vocab_size)
    assert sum(part.num_bytes for part in held) == 4 * model.parameters


def test_quantised_checkpoint(llama_folder: Folder, checkpoints: Any, tmp_path: Path) -> None:
    """Scales are bytes and no parameters; packed integers are as many parameters as they hold."""
    config = checkpoints.LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    tensors: list[Any] = []
    for name, dtype, shape in checkpoints.llama_tensors(config, "F16"):
        if len(shape) == 1 or "layers" not in name:
            tensors.append((name, dtype, shape))
            continue
        base, (out, width) = name.removesuffix(".weight"), shape
        tensors += [
            (f"{base}.qweight", "I32", (width // 8, out)), (f"{base}.qzeros", "I32", (1, out // 8)),
            (f"{base}.scales", "F16", (1, out)), (f"{base}.g_idx", "I32", (width,)),
        ]  # fmt: skip
    folder = checkpoints.write(tmp_path / "q", config, tensors)
    model = find_model(str(folder))
    assert main_parameters(model) == model.parameters
    assert model.checkpoint is not None
    assert model.checkpoint.format == "gptq"
    rows = 2 * (64 + 32 + 32 + 64)
    assert (
        model.checkpoint.stored["attention"]["I32"] == 2 * (2 * 64 * 64 + 2 * 32 * 64) // 2 + rows // 2 + 2 * 4 * 4 * 64
    )
    assert stored_warnings(model) == []


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("hf_quant_config.json", {"producer": {"name": "modelopt"},
                                  "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}, ("nvfp4",
                                  "fp8_e4m3")),
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False}, ("gptq", None)),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "zero_point": True}, ("awq", None)),
    ],
)  # fmt: skip
def test_quantisation_in_a_file_of_its_own(
    llama_folder: Folder, name: str, content: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    folder = llama_folder()
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    checkpoint = find_model(str(folder)).checkpoint
    assert checkpoint is not None
    assert (checkpoint.format, checkpoint.kv_cache_format) == expected
    (folder / name).write_text("[1]", encoding="utf-8")
    with pytest.raises(SpecError, match="JSON object"):
        find_model(str(folder))


def test_mlx_checkpoint(checkpoints: Any, tmp_path: Path) -> None:
    """Every matrix in 4 bits, packed eight to a word, with a scale and a bias for 64; the same twice in the file."""
    said = {"group_size": 64, "bits": 4}
    config = checkpoints.LLAMA | {"quantization": said, "quantization_config": said}
    tensors: list[Any] = []
    for name, dtype, shape in checkpoints.llama_tensors(config):
        if len(shape) == 1:
            tensors.append((name, dtype, shape))
            continue
        base, (out, width) = name.removesuffix(".weight"), shape
        tensors += [
            (name, "I32", (out, width // 8)), (f"{base}.scales", "BF16", (out, -(-width // 64))),
            (f"{base}.biases", "BF16", (out, -(-width // 64))),
        ]  # fmt: skip
    model = find_model(str(checkpoints.write(tmp_path / "mlx", config, tensors)))
    assert model.checkpoint is not None
    assert model.checkpoint.format == "mlx4_g64"
    assert main_parameters(model) == model.parameters
    assert model.checkpoint.stored["embedding"] == {"I32": 512 * 64 // 2, "BF16": 2 * 2 * 512}


def test_half_of_the_values_with_their_places(checkpoints: Any, tmp_path: Path) -> None:
    """Marlin's 2:4 sparsity: two of four values in 4 bits, two bits each on where they stood, a scale for 128."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8}
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    group = {"targets": ["Linear"], "weights": weights}
    said = {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {"a": group},
            "ignore": ["lm_head"]}  # fmt: skip
    config = checkpoints.LLAMA | sizes | {"head_dim": None, "quantization_config": said}
    config = {key: value for key, value in config.items() if value is not None}
    tensors: list[Any] = []
    for name, dtype, shape in checkpoints.llama_tensors(config):
        if ".layers." not in name or len(shape) == 1:
            tensors.append((name, dtype, shape))
            continue
        base, (out, width) = name.removesuffix(".weight"), shape
        tensors += [
            (f"{base}.weight_packed", "I32", (width // 32, 2 * out)), (f"{base}.meta", "I16", (width // 32, 2 * out)),
            (f"{base}.scale_packed", "F16", (width // 128, out)), (f"{base}.weight_shape", "I64", (2,)),
        ]  # fmt: skip
    folder = checkpoints.write(tmp_path / "sparse", config, tensors)
    model = find_model(str(folder))
    assert main_parameters(model) == model.parameters
    stored, computed = (plan(str(path), engine="generic", gpu="h100-sxm") for path in (folder, folder / "config.json"))
    assert stored.memory is not None
    assert computed.memory is not None
    shapes = 16 * 7 * config["num_hidden_layers"]
    assert stored.memory[0].weights_bytes == computed.memory[0].weights_bytes + shapes


def test_an_encoder_that_the_files_lack_is_not_counted(checkpoints: Any, tmp_path: Path) -> None:
    vision = {"model_type": "siglip_vision_model", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64,
              "num_attention_heads": 4, "image_size": 56, "patch_size": 14}  # fmt: skip
    config = checkpoints.LLAMA | {"vision_config": vision}
    tensors = checkpoints.llama_tensors(config)
    folder = checkpoints.write(tmp_path / "text", config, tensors)
    text = find_model(str(folder))
    assert not text.towers
    assert main_parameters(text) == text.parameters
    assert any("no tensor of the vision encoder" in warning for warning in text.file_warnings)
    assert find_model(str(folder / "config.json")).towers[0].parameters > 0
    whole = checkpoints.write(tmp_path / "whole", config, [*tensors, ("vision_tower.conv.weight", "BF16", (32, 588))])
    assert find_model(str(whole)).towers


def test_headers_tell_what_no_rule_counts(checkpoints: Any, tmp_path: Path) -> None:
    """Weights of an unknown encoder: a warning and no exact figure from the configuration, the bytes of its tensors."""
    config = {"model_type": "odd_vl", "text_config": checkpoints.LLAMA, "odd_config": {"depth": 2}}
    eye = ("vision_tower.conv.weight", "BF16", (32, 588))
    folder = checkpoints.write(tmp_path / "odd", config, [*checkpoints.llama_tensors(checkpoints.LLAMA), eye])
    known, guessed = (plan(str(path), engine="generic", gpu="h100-sxm") for path in (folder, folder / "config.json"))
    assert known.memory is not None
    assert guessed.memory is not None
    assert known.memory[0].weights_bytes == guessed.memory[0].weights_bytes + 2 * 32 * 588
    bases = [next(t.basis for t in made.memory[0].terms if t.name == "weights") for made in (known, guessed)]
    assert bases == ["exact", "modelled"]
    said = "the weights of odd_config are not counted"
    assert [any(said in w for w in made.warnings) for made in (known, guessed)] == [False, True]


def test_parts_that_speak_and_adapters_are_left_in_the_files(checkpoints: Any, tmp_path: Path) -> None:
    """Qwen2.5-Omni's talker and the adapters beside Phi-4-multimodal's weights."""
    plain = checkpoints.llama_tensors(checkpoints.LLAMA)
    more = [
        ("talker.model.layers.0.self_attn.q_proj.weight", "BF16", (64, 64)),
        ("token2wav.conv.weight", "BF16", (64, 64)),
        ("model.layers.0.mlp.up_proj.lora_A.vision.weight", "BF16", (8, 64)),
    ]
    folders = [checkpoints.write(tmp_path / n, checkpoints.LLAMA, t) for n, t in (("a", plain), ("b", plain + more))]
    loaded = [plan(str(folder), engine="generic", gpu="h100-sxm").memory for folder in folders]
    assert loaded[0] is not None
    assert loaded[1] is not None
    assert loaded[0][0].weights_bytes == loaded[1][0].weights_bytes


@pytest.mark.parametrize(
    ("more", "changes", "said"),
    [
        ([("model.layers.2.mlp.down_proj.weight", "BF16", (64, 160))], {}, "multi-token-prediction layers +10,240"),
        ([("model.layers.2.embed_tokens.weight", "BF16", (512, 64))], {},
        "second copies of the embedding or head +32,768"),
        ([], {"tie_word_embeddings": True}, "second copies of the embedding or head +32,768"),
        ([("vision_tower.blocks.0.mlp.fc1.weight", "BF16", (512, 64))], {}, "towers +32,768"),
        ([("model.layers.0.strange.thing", "BF16", (64, 64))], {}, "tensors of no known purpose +4,096"),
        ([("model.layers.0.mlp.experts.0.up_proj.weight", "BF16", (160, 64))], {}, "routed_experts +10,240"),
    ],
)  # fmt: skip
def test_a_difference_is_named(llama_folder: Folder, more: list[Any], changes: dict[str, Any], said: str) -> None:
    folder = llama_folder(more=more, **changes)
    warnings = plan(str(folder), engine="generic").warnings
    assert any(said in warning for warning in warnings), warnings


def test_a_tied_matrix_that_is_stored_under_the_name_of_the_head(checkpoints: Any, tmp_path: Path) -> None:
    config = checkpoints.LLAMA | {"tie_word_embeddings": True}
    tensors = [tensor for tensor in checkpoints.llama_tensors(config) if "embed_tokens" not in tensor[0]]
    model = find_model(str(checkpoints.write(tmp_path / "tied", config, tensors)))
    assert loaded_bytes(model)["embedding"] == 2 * 512 * 64
    assert stored_warnings(model) == []


def test_what_nobody_loads_takes_no_memory(llama_folder: Folder) -> None:
    plain = find_model(str(llama_folder("a")))
    more = [
        ("model.layers.2.mlp.down_proj.weight", "BF16", (64, 160)), ("model.layers.2.embed_tokens.weight", "BF16",
        (512, 64)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", (4,)),
    ]  # fmt: skip
    other = find_model(str(llama_folder("b", more=more)))
    held = [weight_format(m, "auto").measured for m in (plain, other)]
    assert held[0] == held[1]
    unknown = find_model(str(llama_folder("c", more=[("strange.thing", "BF16", (64, 64))])))
    assert loaded_bytes(unknown)["other"] == 2 * 64 * 64


def test_files_wider_than_the_model_are_narrowed(llama_folder: Folder) -> None:
    """fp32 files of a bf16 model load as bf16; where nothing says a dtype, the files do."""
    wide = find_model(str(llama_folder("wide", dtype="F32")))
    assert sum(loaded_bytes(wide).values()) == 2 * wide.parameters
    assert any("stored as F32" in w for w in stored_warnings(wide))
    silent = find_model(str(llama_folder("silent", dtype="F32", torch_dtype=None)))
    assert silent.dtype == "fp32"
    assert sum(loaded_bytes(silent).values()) == 4 * silent.parameters
    assert stored_warnings(silent) == []
    assert find_model(str(llama_folder("half", dtype="F16", torch_dtype=None))).dtype == "fp16"


def test_drafts_are_measured_where_they_run(checkpoints: Any, tmp_path: Path) -> None:
    """A draft layer in the files weighs nothing until it runs, and then what it weighs in the files."""
    config = checkpoints.LLAMA | {
        "model_type": "dots1", "num_nextn_predict_layers": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "first_k_dense_replace": 3,
    }  # fmt: skip
    drafts = [
        ("model.layers.2.eh_proj.weight", "BF16", (64, 128)),
        ("model.layers.2.self_attn.q_proj.weight", "BF16", (64, 64)),
    ]
    model = find_model(str(checkpoints.write(tmp_path / "d", config, [*checkpoints.llama_tensors(config), *drafts])))
    assert model.draft_layers
    served = replace(model, draft_layers=(), draft_tensors=())
    assert "draft" not in (weight_format(served, "auto").measured or {})
    formats = weight_format(model, "auto")
    held = rank_weights(model, model, formats, tp=1, vocab_rows=model.vocab_size, drafts=True)
    assert {part.role: part.num_bytes for part in held}["draft"] == 2 * (64 * 128 + 64 * 64)


def test_what_was_stored_is_checked_in_a_spec(llama_folder: Folder, tmp_path: Path) -> None:
    text = spec_file(read_model(str(llama_folder())), "x")
    for wrong, word in (
        (text.replace("embedding: 32768", "embeding: 32768"), "embeding"),
        (text.replace("embedding: {BF16: 65536}", "embedding: {BF16: -1}"), "negative"),
        (text.replace("embedding: {BF16: 65536}", "embedding: 65536"), "mapping"),
    ):
        path = tmp_path / "spec.yaml"
        path.write_text(wrong, encoding="utf-8")
        assert wrong != text
        assert any(word in finding.message for finding in lint_model_file(path)), word


# ---- speed ----


def test_shards_are_read_by_their_headers_alone(
    tmp_path: Path, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """405 B parameters: 811 GB of files that are holes, of which some hundred KiB are read."""
    config = FACTS["llama-3.1-405b"]["config"]
    folder = checkpoints.write(tmp_path / "big", config, checkpoints.llama_tensors(config), shards=190)
    read, plain = [], os.read

    def counted(handle: int, length: int) -> bytes:
        data = plain(handle, length)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "read", counted)
    find_model(str(folder))  # imports what it needs
    read.clear()
    started = time.process_time()
    model = find_model(str(folder))
    assert time.process_time() - started < 60
    index = folder / "model.safetensors.index.json"
    shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    headers = 0
    for shard in shards:
        with (folder / shard).open("rb") as file:
            headers += 8 + int.from_bytes(file.read(8), "little")
    assert sum(read) == headers + index.stat().st_size + (folder / "config.json").stat().st_size
    assert main_parameters(model) == model.parameters == 405_853_388_800


def test_the_page_states_the_limits() -> None:
    from kvplan.sources import strict_json
    from kvplan.sources.checkpoint import index, safetensors

    page = (Path(__file__).parents[2] / "docs" / "reading-models.md").read_text(encoding="utf-8")
    for limit in (
        f"over {index.MAX_SHARDS:,} files", f"over {safetensors.MAX_TENSORS:,} tensors",
        f"{safetensors.MAX_HEADER_BYTES >> 20} MiB", f"{strict_json.MAX_BYTES >> 20} MiB",
        f"{strict_json.MAX_DEPTH} levels", f"{strict_json.MAX_VALUES // 4:,} values",
    ):  # fmt: skip
        assert limit in page, limit
