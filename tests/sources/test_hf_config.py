"""Reading config.json: dialects, decoys, and what files leave unsaid."""

from __future__ import annotations

from typing import Any

import pytest
from published import FACTS, LLAMA, config

from kvplan.errors import SpecError
from kvplan.sources.hf.read import read_config
from kvplan.spec.formats import get_format
from kvplan.spec.model import ModelSpec


def kinds(spec: ModelSpec) -> list[str]:
    return [spec.blocks[name].mixers[0].kind if spec.blocks[name].mixers else "" for name in spec.layers]


def first(spec: ModelSpec) -> Any:
    return spec.blocks[spec.layers[0]].mixers[0]


# ---- which layers slide ----


def test_gemma_3_in_three_dialects() -> None:
    """layer_types, an interval, and a file that leaves both (and its heads) to the class."""
    listed = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(34)]
    spelled = read_config(config("gemma-3-4b", sliding_window_pattern=None, layer_types=listed))
    interval = read_config(config("gemma-3-4b"))
    bare = read_config(
        config(
            "gemma-3-4b", sliding_window_pattern=None, vocab_size=None, num_attention_heads=None,
            num_key_value_heads=None, head_dim=None, max_position_embeddings=None,
        )
    )  # fmt: skip
    renamed = read_config(config("gemma-3-4b", sliding_window_pattern=None, _sliding_window_pattern=6))
    assert spelled == interval == bare == renamed
    assert kinds(bare).count("full") == 5
    assert bare.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window": 4096}, ["sliding"] * 4),
        ({"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 2}, ["full"] * 4),
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 2}, ["full"] * 2 + ["sliding"] * 2),
        ({"sliding_window": None}, ["full"] * 4),
        ({"sliding_window": 262144}, ["full"] * 4),
        ({"sliding_window": 4096, "sliding_window_pattern": "LLG"}, ["sliding", "sliding", "full", "full"]),
        ({"sliding_window": 4096, "sliding_window_pattern": 2}, ["sliding", "full"] * 2),
        (
            {"sliding_window": 4096, "layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
            ["full"] * 3 + ["sliding"],
        ),
    ],
)  # fmt: skip
def test_windows(changes: dict[str, Any], expected: list[str]) -> None:
    assert kinds(read_config({**LLAMA, "model_type": "mistral", **changes})) == expected


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss"])
def test_families_that_slide_on_even_layers_without_saying_so(model_type: str) -> None:
    data = {**LLAMA, "model_type": model_type, "sliding_window": 128, "num_local_experts": 8, "num_experts_per_tok": 2}
    assert kinds(read_config(data)) == ["sliding", "full"] * 2


def test_llama_4_chunks() -> None:
    """The released file has no no_rope_layers; where a file has it, 1 means rotary and chunked."""
    spec = read_config(config("llama-4-scout"))
    assert kinds(spec)[:4] == ["chunked", "chunked", "chunked", "full"]
    other = read_config(config("llama-4-scout", no_rope_layers=[0] + [1] * 47))
    assert kinds(other) == ["full"] + ["chunked"] * 47


def test_no_rope_layers_of_smollm_change_no_cache() -> None:
    assert set(kinds(read_config(config("smollm3-3b")))) == {"full"}


# ---- heads ----


@pytest.mark.parametrize(
    ("model", "changes", "heads"),
    [
        ("falcon-7b", {}, 1), ("falcon-7b", {"multi_query": False}, 71), ("falcon-7b", {"num_kv_heads": 71}, 1),
        ("falcon-40b", {}, 8), ("falcon-40b", {"multi_query": True}, 8), ("starcoder-15b", {}, 1),
        ("starcoder-15b", {"multi_query": False}, 48), ("mpt-7b", {}, 32),
        ("mpt-7b", {"attn_config": {"alibi": True, "kv_n_heads": 8}}, 8), ("dbrx-132b", {}, 8),
        ("step3-321b", {}, 1), ("step-3.5-flash", {}, 8), ("gpt2", {}, 12), ("phi-2", {}, 32), ("opt-13b", {}, 40),
    ],
)  # fmt: skip
def test_kv_heads(model: str, changes: dict[str, Any], heads: int) -> None:
    assert first(read_config(config(model, **changes))).kv_heads == heads


@pytest.mark.parametrize(
    ("keys", "dim"),
    [({}, 128), ({"head_dim": 64}, 64), ({"head_dim": 0}, 128), ({"head_dim": None}, 128), ({"kv_channels": 96}, 96)],
)
def test_head_dim(keys: dict[str, Any], dim: int) -> None:
    assert first(read_config({**LLAMA, **keys})).head_dim == dim


def test_latent_attention_ignores_its_decoys() -> None:
    plain = read_config(config("deepseek-v3"))
    decoys = read_config(config("deepseek-v3", head_dim=56, num_key_value_heads=1))
    assert plain == decoys
    (stream,) = first(plain).streams()
    assert (stream.heads, stream.head_dim) == (1, 576)


def test_shared_indexers_store_no_key() -> None:
    spec = read_config(config("glm-5.2"))
    own = [name for name in spec.layers if len(spec.blocks[name].mixers[0].streams()) == 2]
    assert len(own) == 21


def test_indexers_by_a_frequency_or_by_letters() -> None:
    """GLM-5.2's rule and its list say the same; without an offset, two layers come before the count begins."""
    data = config("glm-5.2")
    listed = data.pop("indexer_types")
    layers = read_config(config("glm-5.2")).layers
    assert read_config(data).layers == layers
    letters = "".join("F" if kind == "full" else "S" for kind in listed)
    assert read_config(data | {"index_topk_pattern": letters, "index_topk_freq": 1}).layers == layers
    assert {n.split("_")[0] for n in read_config(data | {"index_topk_freq": None}).layers} == {"dense", "moe"}
    few = {"num_hidden_layers": 8, "mlp_layer_types": data["mlp_layer_types"][:8]}
    short = read_config(data | few | {"index_skip_topk_offset": None}).layers
    assert [i for i, name in enumerate(short) if name.startswith("indexed")] == [0, 1, 5]


def test_draft_layers_may_follow_in_layer_types() -> None:
    data = {**LLAMA, "sliding_window": 4096, "num_nextn_predict_layers": 2}
    kinds = ["full_attention", "sliding_attention"] * 3
    assert read_config(data | {"layer_types": kinds}).num_layers == 4
    with pytest.raises(SpecError, match="layer_types has 7 entries for 4 layers and 2 draft layers"):
        read_config(data | {"layer_types": [*kinds, "full_attention"]})


def test_layers_that_share_a_cache_name_a_block_before_them() -> None:
    for model, count in (("gemma-3n-e4b", 15), ("gemma-4-e2b", 20)):  # num_kv_shared_layers
        spec = read_config(config(model))
        mixers = [spec.blocks[name].mixers[0] for name in spec.layers]
        shared = [(position, mixer) for position, mixer in enumerate(mixers) if mixer.kind == "shared"]
        assert len(shared) == count
        for position, mixer in shared:
            assert getattr(mixer, "source") in spec.layers[:position]  # noqa: B009
            assert mixer.streams() == ()


def test_sharing_everything_is_refused() -> None:
    with pytest.raises(SpecError, match="num_kv_shared_layers"):
        read_config(config("gemma-3n-e4b", num_kv_shared_layers=35))


def test_compress_ratios_leave_out_the_draft_layers() -> None:
    spec = read_config(config("deepseek-v4-flash"))
    assert spec.num_layers == 43
    assert spec.draft_layers == ("window",)
    words = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    listed = FACTS["deepseek-v4-flash"]["config"]["compress_ratios"]
    types = [words[r] for r in listed]
    assert read_config(config("deepseek-v4-flash", compress_ratios=None, layer_types=types)) == spec


def test_architecture_decides_where_the_model_type_lies() -> None:
    assert read_config(config("grok-2")).num_layers == 64
    with pytest.raises(SpecError, match="'git' is not known"):
        read_config({**config("grok-2"), "architectures": ["GitForCausalLM"]})


# ---- around the layers ----


@pytest.mark.parametrize(
    ("model_type", "stated", "tied"),
    [
        ("llama", None, False),
        ("gemma", None, True),
        ("gpt2", None, True),
        ("llama", True, True),
        ("gemma", False, False),
    ],
)
def test_tied_embeddings(model_type: str, stated: bool | None, tied: bool) -> None:
    data = {**LLAMA, "model_type": model_type, "tie_word_embeddings": stated, "n_positions": 1024}
    assert read_config(data).tie_word_embeddings is tied


def test_the_outer_level_of_a_wrapper_decides_about_ties() -> None:
    data = config("mistral-small-3.1-24b", tie_word_embeddings=True)
    assert data["tie_word_embeddings"] is False
    assert not read_config(data).tie_word_embeddings


@pytest.mark.parametrize(
    ("keys", "limit"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}}, 32768),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 4096}}, 8192),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 8192),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 8192),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 8192),
        ({"model_max_length": 131072}, 131072), ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": None, "max_seq_len": 4096}, 4096),
    ],
)  # fmt: skip
def test_context(keys: dict[str, Any], limit: int | None) -> None:
    assert read_config({**LLAMA, **keys}).max_position_embeddings == limit


@pytest.mark.parametrize(
    ("keys", "limit", "stated", "rope"),
    [
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 32768}}, 131072, 32768, {"factor": 4}),
        ({"max_position_embeddings": 131072, "rope_parameters": {"rope_type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 32768}}, 131072, None, {"original_max_position_embeddings": 32768}),
        ({"max_position_embeddings": 262144, "rope_scaling": {"type": "yarn", "factor": 32,
          "original_max_position_embeddings": 4096}}, 262144, None, {"factor": 32}),
        ({"max_position_embeddings": 16384, "rope_scaling": {"type": "linear", "factor": 4}}, 16384, None,
         {"factor": 4}),
        ({"max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
          "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}},
         131072, None, {"outer_original": 4096}),
        ({"max_position_embeddings": 32768, "rope_scaling": {"rope_type": "longrope",
          "original_max_position_embeddings": 16384}}, 32768, None, {"original_max_position_embeddings": 16384}),
        ({"max_position_embeddings": 32768, "seq_length": 8192}, 32768, 8192, {}),
    ],
)  # fmt: skip
def test_what_engines_make_the_context_of(
    keys: dict[str, Any], limit: int, stated: int | None, rope: dict[str, Any]
) -> None:
    """The length that the file itself states, and the rule's numbers: engines differ in what they make of them."""
    model = read_config({**LLAMA, **keys})
    assert (model.max_position_embeddings, model.stated_positions) == (limit, stated)
    assert rope.items() <= (model.rope or {}).items()


def test_rope_rule_is_kept() -> None:
    rope = read_config(config("llama-3.1-8b")).rope
    assert rope is not None
    assert rope["type"] == "llama3"
    assert rope["original_max_position_embeddings"] == 8192


@pytest.mark.parametrize(
    ("quantization", "name", "roles"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", 4),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8_e4m3", 4),
        ({"quant_method": "mxfp4"}, "mxfp4", 1),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 4),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "gptq_g32", 4),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", 4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, "nvfp4", 4),
        (
            {
                "quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}},
                "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp.(gate|up|down)_proj.*"],
            },
            "int4_g32", 1,
        ),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}, "fp8_e4m3", 4),
        ({"quant_method": "fp8", "modules_to_not_convert": ["self_attn"]}, "fp8_e4m3", 3),
    ],
)  # fmt: skip
def test_checkpoint_formats(quantization: dict[str, Any], name: str, roles: int) -> None:
    checkpoint = read_config({**LLAMA, "quantization_config": quantization}).checkpoint
    assert checkpoint is not None
    assert checkpoint.format == get_format(name, use="weights").name == name
    assert len(checkpoint.roles) == roles
    assert checkpoint.kv_cache_format == ("fp8_e4m3" if "kv_cache_quant_algo" in quantization else None)


def test_every_checkpoint_format_of_the_facts_is_in_the_table() -> None:
    for fact in FACTS.values():
        checkpoint = read_config(fact["config"]).checkpoint
        for name in (checkpoint.format, *checkpoint.overrides.values()) if checkpoint else ():
            assert get_format(name, use="weights").name == name


def test_experts_stored_apart() -> None:
    checkpoint = read_config(config("deepseek-v4-flash")).checkpoint
    assert checkpoint is not None
    assert (checkpoint.format, checkpoint.overrides) == ("fp8_block", {"routed_experts": "mxfp4"})


@pytest.mark.parametrize(
    "model", [m for m, f in FACTS.items() if f.get("tower_params") and "vision_config" in f["config"]]
)
def test_towers_from_their_own_sizes(model: str) -> None:
    """Exact for the families with a rule; a plain transformer's count is the right order for the rest."""
    found = sum(t.parameters for t in read_config(FACTS[model]["config"]).towers)
    exact = {
        "mistral3",
        "gemma3",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen2_5_vl",
        "mllama",
        "llama4",
    }
    if FACTS[model]["config"]["model_type"] in exact:
        assert found == pytest.approx(FACTS[model]["tower_params"], rel=1e-3)
    else:
        assert 0.3 * FACTS[model]["tower_params"] < found < 1.5 * FACTS[model]["tower_params"]
