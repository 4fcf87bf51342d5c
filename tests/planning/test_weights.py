"""Weight bytes against what engines printed, and the laws of splitting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvplan import load_model, plan
from kvplan.cache.sharding import shard_model
from kvplan.catalog import model_ids
from kvplan.engines import get_engine
from kvplan.errors import UnsupportedError
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import build_stages
from kvplan.planning.settings import resolve
from kvplan.planning.weights import RoleWeights, rank_weights, total_bytes, weight_format
from kvplan.spec.model import ModelSpec

GIB = 2**30


def weights_gib(name: str, tp: int, pp: int = 1) -> float:
    found = plan(
        name, gpu="h200-sxm", engine="generic", max_model_len=64, prompt_tokens=8, output_tokens=8,
        tensor_parallel_size=tp, pipeline_parallel_size=pp,
    )  # fmt: skip
    assert found.memory is not None
    return max(row.weights_bytes for row in found.memory) / GIB


@pytest.mark.parametrize(
    ("name", "tp", "printed"),
    [
        # "Model loading took" lines of vLLM; sources in the list of public logs that ships with the tests of engines
        ("Qwen/Qwen3-0.6B", 1, 1.12),
        ("Qwen/Qwen3-32B", 1, 61.03),
        ("Qwen/Qwen3-32B", 2, 30.59),
        ("Qwen/Qwen2-7B-Instruct", 2, 7.12),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", 1, 44.76),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", 2, 33.88),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 2, 74.28),
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 15.00),
    ],
)
def test_against_printed_weights(name: str, tp: int, printed: float) -> None:
    """Engines add rotary tables and small buffers: never less than the file, at most 0.1 GiB more."""
    assert printed - 0.1 <= weights_gib(name, tp) <= printed


@pytest.mark.parametrize("name", model_ids())
def test_unsharded_bytes_are_parameters_times_bytes(name: str) -> None:
    model = load_model(name)
    whole = rank_weights(model, model, weight_format(model, "fp32"), tp=1, vocab_rows=model.vocab_size)
    assert sum(r.parameters for r in whole) == model.parameters
    assert total_bytes(whole) == 4 * model.parameters


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "qwen3-30b-a3b", "gemma-3-27b"])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_what_ranks_hold_is_the_whole_and_the_copies(name: str, tp: int) -> None:
    model = load_model(name)
    stored = weight_format(model, "bf16")
    whole = total_bytes(rank_weights(model, model, stored, tp=1, vocab_rows=model.vocab_size))
    roles = rank_weights(model, shard_model(model, tp=tp), stored, tp=tp, vocab_rows=-(-model.vocab_size // tp))
    rank, copies = total_bytes(roles), sum(r.replicated_bytes for r in roles)
    # the copies are counted tp times, everything else once (k and v heads may be copied too, vocabulary is rounded up)
    assert whole <= rank * tp <= whole + copies * tp + tp * 2 * 2 * model.hidden_size * 8 + rank_kv_copies(model, tp)
    assert copies > 0


def rank_kv_copies(model, tp: int) -> int:
    """Bytes of k and v projections that exceed one copy because tp exceeds the KV heads."""
    extra = 0
    for layers, mixer in model.mixers():
        heads = getattr(mixer, "kv_heads", 0)
        if heads and tp > heads:
            extra += layers * (tp - heads) * 2 * mixer.head_dim * (model.hidden_size + 2) * 2
    return extra


def test_pipeline_stages_hold_the_whole_once() -> None:
    model = load_model("llama-3.1-8b")
    found = plan(
        model,
        gpu="h200-sxm",
        engine="generic",
        max_model_len=64,
        prompt_tokens=8,
        output_tokens=8,
        pipeline_parallel_size=3,
    )
    assert found.memory is not None
    assert sum(row.weights_bytes for row in found.memory) == 2 * model.parameters
    first, middle, last = found.memory
    ends = [sorted({"embedding", "head"} & set(row.weights_by_role)) for row in (first, middle, last)]
    assert ends == [["embedding"], [], ["head"]]


def test_a_tied_embedding_is_on_both_ends() -> None:
    found = plan(
        "gemma-3-27b",
        gpu="h200-sxm",
        engine="generic",
        max_model_len=64,
        prompt_tokens=8,
        output_tokens=8,
        pipeline_parallel_size=2,
    )
    assert found.memory is not None
    assert [("embedding" in row.weights_by_role) for row in found.memory] == [True, True]


def test_expert_parallelism_deals_whole_experts() -> None:
    def routed(**layout: object) -> int:
        found = plan(
            "deepseek-v3",
            gpu="h200-sxm",
            engine="generic",
            max_model_len=64,
            prompt_tokens=8,
            output_tokens=8,
            **layout,
        )
        assert found.memory is not None
        return found.memory[0].weights_by_role["routed_experts"]

    whole = routed()
    assert routed(tensor_parallel_size=8) == whole // 8
    assert routed(tensor_parallel_size=8, enable_expert_parallel=True) == whole // 8
    assert routed(data_parallel_size=8) == whole
    assert routed(data_parallel_size=8, enable_expert_parallel=True) == whole // 8


def test_a_format_leaves_what_it_does_not_quantise() -> None:
    model = load_model("llama-3.1-8b")
    by_role = {}
    for name in ("bf16", "awq_int4"):
        roles = rank_weights(model, model, weight_format(model, name), tp=1, vocab_rows=model.vocab_size)
        by_role[name] = {r.role: r.num_bytes for r in roles}
    for role in ("embedding", "head", "norm"):
        assert by_role["awq_int4"][role] == by_role["bf16"][role]
    for role in ("attention", "dense_ffn"):
        # 4 bits, and per 128 weights an fp16 scale and a 4-bit zero point
        assert by_role["awq_int4"][role] * 128 * 2 == by_role["bf16"][role] * (64 + 2 + 0.5)


@pytest.mark.parametrize("weights", ["auto", "fp8"])
@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3.1-8b"])
def test_a_draft_of_another_checkpoint_weighs_what_it_weighs_alone(name: str, weights: str) -> None:
    """Its own widths, embedding and head in its own dtype, however wide or narrow the model is stored."""
    config = json.dumps({"model": name, "num_speculative_tokens": 4})
    draft = load_model(name)
    for tp in (1, 4):
        model, roles = served("llama-3.1-70b", weights=weights, speculative_config=config, tensor_parallel_size=tp)
        assert model.draft_model is not None
        held = {r.role: r for r in roles}["draft"]
        norms = next(r.num_bytes for r in held.parts if r.role == "norm")
        assert tp * (held.num_bytes - norms) + norms == 2 * draft.parameters
        assert sum(r.num_bytes for r in held.parts) == held.num_bytes
        plain = {r.role: r.num_bytes for r in served("llama-3.1-70b", weights=weights, tensor_parallel_size=tp)[1]}
        assert {r.role: r.num_bytes for r in roles if r.role != "draft"} == plain


def test_a_draft_of_the_eagle_family_takes_the_ends_of_a_model_as_wide() -> None:
    config = {"method": "eagle", "num_speculative_tokens": 4}
    same = load_model("llama-3.1-8b")
    for name, shared in (("llama-3.1-8b", True), ("llama-3.2-1b", False)):
        _, roles = served(name, speculative_config=json.dumps({**config, "model": "llama-3.1-8b"}))
        parts = {r.role: r for r in {r.role: r for r in roles}["draft"].parts}
        assert ({"embedding", "head"} & set(parts) == set()) is shared
        left = same.parameters - (2 * same.vocab_size * same.hidden_size if shared else 0)
        assert sum(r.parameters for r in parts.values()) == left


def test_a_draft_that_ranks_do_not_divide_is_refused() -> None:
    config = json.dumps({"model": "qwen2.5-0.5b", "num_speculative_tokens": 4})
    with pytest.raises(UnsupportedError, match=r"qwen2\.5-0\.5b"):
        served("qwen2.5-72b", speculative_config=config, tensor_parallel_size=8)


def served(name: str, **given: Any) -> tuple[ModelSpec, tuple[RoleWeights, ...]]:
    """A model as vLLM serves it, and the weights of a rank."""
    model, engine = load_model(name), get_engine("vllm")
    settings, _ = resolve(model, None, engine, {"max_model_len": 4096, **given})
    model = served_model(model, engine, settings)
    _, roles = build_stages(model, engine, settings, weight_format(model, settings.weights))
    return model, roles[-1]
