"""Weights of a rank role by role, counted out of the shapes of a model's matrices by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan import load_model
from kvplan.cache.sharding import shard_model
from kvplan.planning import weights as of
from kvplan.planning.weights import RoleWeights, WeightFormat, rank_weights, total_bytes, weight_format
from kvplan.spec.formats import get_format
from kvplan.spec.kind import Tensor
from kvplan.spec.model import Checkpoint, ModelSpec

LLAMA = load_model("llama-3.1-8b")
ATTENTION = ((4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096))
FFN = ((14_336, 4096), (14_336, 4096), (4096, 14_336))
TABLE = 128_256 * 4096


def held(model: ModelSpec = LLAMA, fmt: str = "bf16", tp: int = 1, **more: Any) -> dict[str, RoleWeights]:
    rank, layers = shard_model(model, tp=tp), more.pop("layers", None)
    if layers is not None:
        rank = shard_model(model, tp=tp, layers=layers)
    given = {"vocab_rows": -(-model.vocab_size // tp), **more}
    return {each.role: each for each in rank_weights(model, rank, weight_format(model, fmt), tp=tp, **given)}


def sizes(found: dict[str, RoleWeights]) -> dict[str, tuple[int, int, int]]:
    return {role: (each.parameters, each.num_bytes, each.replicated_bytes) for role, each in found.items()}


def elements(shapes: tuple[tuple[int, int], ...]) -> int:
    return sum(rows * row for rows, row in shapes)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_matrices_are_divided_and_norms_are_copied(tp: int) -> None:
    attention, ffn = 32 * elements(ATTENTION) // tp, 32 * elements(FFN) // tp
    norms = (2 * 32 + 1) * 4096
    assert sizes(held(tp=tp)) == {
        "attention": (attention, 2 * attention, 0), "dense_ffn": (ffn, 2 * ffn, 0),
        "norm": (norms, 2 * norms, 2 * norms if tp > 1 else 0),
        "embedding": (TABLE // tp, 2 * TABLE // tp, 0), "head": (TABLE // tp, 2 * TABLE // tp, 0),
    }  # fmt: skip


def test_heads_that_ranks_share_are_copied() -> None:
    """16 ranks for 8 KV heads: each rank has a whole head of K and V, which its neighbour has too."""
    found = held(tp=16)["attention"]
    assert found.parameters == 32 * (2 * 4096 * 4096 // 16 + 2 * 128 * 4096)


@pytest.mark.parametrize(
    ("fmt", "of_matrix"),
    [
        ("fp8_channel", lambda rows, row: rows * row + 4 * rows),
        ("fp8_block", lambda rows, row: rows * row + 4 * -(-rows // 128) * -(-row // 128)),
        ("awq", lambda rows, row: rows * (row // 128) * 133 // 2),
        ("nvfp4", lambda rows, row: rows * (row // 16) * 9),
    ],
)  # fmt: skip
def test_scales_stand_by_rows_of_a_matrix(fmt: str, of_matrix: Any) -> None:
    found = held(fmt=fmt)
    assert found["attention"].num_bytes == 32 * sum(of_matrix(*shape) for shape in ATTENTION)
    assert found["dense_ffn"].num_bytes == 32 * sum(of_matrix(*shape) for shape in FFN)
    assert found["head"].num_bytes == found["embedding"].num_bytes == 2 * TABLE
    assert found["norm"].num_bytes == 2 * 65 * 4096


@pytest.mark.parametrize(
    ("first", "last", "tied", "roles"),
    [
        (True, True, False, {"embedding", "head", "norm"}), (True, False, False, {"embedding", "norm"}),
        (False, True, False, {"head", "norm"}), (False, False, False, {"norm"}),
        (True, True, True, {"embedding", "norm"}), (False, True, True, {"embedding", "norm"}),
        (False, False, True, {"norm"}),
    ],
)  # fmt: skip
def test_ends_of_a_pipeline(first: bool, last: bool, tied: bool, roles: set[str]) -> None:
    found = held(replace(LLAMA, tie_word_embeddings=tied), first=first, last=last, layers=LLAMA.layers[:3])
    assert set(found) == {"attention", "dense_ffn", *roles}
    assert found["attention"].parameters == 3 * elements(ATTENTION)
    assert found["norm"].parameters == (3 * 2 + last) * 4096


def test_what_belongs_to_no_layer_is_on_the_first_stage_and_divided() -> None:
    gemma = load_model("gemma-3-4b")
    tower = next(t.elements for t in gemma.tensors_outside_layers() if t.role == "tower")
    for tp in (1, 2, 4):
        found = held(gemma, tp=tp)["tower"]
        assert (found.parameters, found.replicated_bytes) == (-(-tower // tp), 0)
    assert "tower" not in held(gemma, first=False)


@pytest.mark.parametrize(("rows", "tp", "part"), [(8, 2, 4), (9, 2, 5), (9, 4, 3), (1, 2, 1), (8, 1, 8)])
def test_the_largest_of_the_parts_of_rows(rows: int, tp: int, part: int) -> None:
    tensor = Tensor("x", "tower", (rows, 7, 3), 2)
    assert of._divided(tensor, tp) == Tensor("x", "tower", (part, 7, 3), 2)


@pytest.mark.parametrize("name", ["whisper-large-v3", "apertus-8b", "rwkv-7-g1-7.2b"])
def test_loose_tensors_of_a_layer_are_divided_by_their_rows(name: str) -> None:
    model = load_model(name)
    block = next(each for each in model.blocks if model.blocks[each].tensors)
    loose = model.blocks[block].tensors
    pairs = list(of._pairs(model, shard_model(model, tp=2), block, 2, shared=False))
    assert len(pairs) == len(model.block_tensors(block, shared=False)) > len(loose)
    assert [part.shape for part, _ in pairs[-len(loose) :]] == [(-(-t.shape[0] // 2), *t.shape[1:]) for t in loose]
    assert not any(whole for _, whole in pairs[-len(loose) :])
    rest = zip(pairs, model.block_tensors(block, shared=False)[: -len(loose)], strict=False)
    assert all(whole is (part.elements == full.elements) for (part, whole), full in rest)


# ---- formats ----


def test_formats_of_roles() -> None:
    plain = weight_format(LLAMA, "auto")
    assert (plain.source, plain.roles, plain.of("attention").name) == ("dtype of llama-3.1-8b", frozenset(), "bf16")
    wide = weight_format(LLAMA, "fp32")
    assert (wide.source, wide.roles, wide.of("norm").name, wide.overrides) == ("--weights", frozenset(), "fp32", None)
    eight = weight_format(LLAMA, "fp8_e4m3")
    assert {role: eight.of(role).name for role in ("attention", "dense_ffn", "head", "norm")} == {
        "attention": "fp8_e4m3", "dense_ffn": "fp8_e4m3", "head": "bf16", "norm": "bf16",
    }  # fmt: skip
    assert eight.overrides is None
    gguf = weight_format(LLAMA, "q8_0")
    assert {role: gguf.of(role).name for role in ("attention", "head", "norm", "tower")} == {
        "attention": "q8_0", "head": "q8_0", "norm": "fp32", "tower": "fp16",
    }  # fmt: skip


def test_formats_that_a_checkpoint_declares() -> None:
    checkpoint = Checkpoint(format="nvfp4", roles=("dense_ffn",), overrides={"attention": "fp8_e4m3"})
    model = replace(LLAMA, checkpoint=checkpoint)
    found = weight_format(model, "auto")
    assert {role: found.of(role).name for role in ("attention", "dense_ffn", "head", "norm")} == {
        "attention": "fp8_e4m3", "dense_ffn": "nvfp4", "head": "bf16", "norm": "bf16",
    }  # fmt: skip
    assert (found.source, found.measured) == ("checkpoint of llama-3.1-8b", None)
    assert weight_format(model, "bf16").of("dense_ffn").name == "bf16"


# ---- files ----


def role(name: str, size: int, replicated: int = 0, *parts: RoleWeights) -> RoleWeights:
    return RoleWeights(name, 100, size, replicated, parts)


def test_a_role_is_scaled_to_what_its_files_hold() -> None:
    part = role("x", 100, 30, role("y", 50, 7))
    assert of._scaled(part, 11, 10) == role("x", 110, 33, role("y", 55, 8))
    assert of._scaled(part, 1, 3) == role("x", 34, 10, role("y", 17, 3))  # rounded up
    assert of._scaled(part, 5, 0) == role("x", 0, 0, role("y", 0, 0))


@pytest.mark.parametrize("tp", [1, 2])
def test_roles_of_files_that_the_specification_has_not(tp: int) -> None:
    """On the first stage: an encoder over the ranks, anything else whole on each."""
    measured = {"attention": (110, 100), "tower": (11, 0), "other": (7, 0), "none": (0, 0)}
    found = of._as_measured([role("attention", 50), role("norm", 9, 9)], measured, tp, True)
    assert found == [
        role("attention", 55), role("norm", 9, 9), RoleWeights("tower", 0, -(-11 // tp), 0),
        RoleWeights("other", 0, 7, 7 if tp > 1 else 0),
    ]  # fmt: skip
    assert of._as_measured([role("attention", 50)], measured, tp, False) == [role("attention", 55)]


def test_measured_bytes_are_those_of_the_files() -> None:
    """Role by role, beside what the formats give; drafts only where both know of them."""
    size = 64 * elements(ATTENTION)
    checkpoint = Checkpoint(format="bf16", stored={"attention": {"BF16": size + 64}, "draft": {"BF16": 9}})
    found = weight_format(replace(LLAMA, checkpoint=checkpoint), "auto")
    assert found.measured == {
        "attention": (size + 64, size), "dense_ffn": (0, 64 * elements(FFN)), "embedding": (0, 2 * TABLE),
        "head": (0, 2 * TABLE), "norm": (0, 2 * 65 * 4096),
    }  # fmt: skip
    assert found.source == "tensors in the files of llama-3.1-8b"
    rank = rank_weights(LLAMA, shard_model(LLAMA, tp=2), found, tp=2, vocab_rows=64_128)
    assert {each.role: each.num_bytes for each in rank}["attention"] == size // 2 + 32
    deep = load_model("deepseek-v3")
    assert deep.checkpoint is not None
    with_drafts = replace(deep, checkpoint=replace(deep.checkpoint, stored={"draft": {"BF16": 9}}))
    drafts = (weight_format(with_drafts, "auto").measured or {})["draft"]
    assert drafts == (9, held(deep, "auto", drafts=True)["draft"].num_bytes)


def test_drafts_are_one_role_of_their_parts() -> None:
    parts = [role("attention", 50, 5), role("dense_ffn", 70, 1)]
    assert of._drafts(parts) == RoleWeights("draft", 200, 120, 6, tuple(parts))
    assert total_bytes(parts) == 120
    assert of.draft_weights(LLAMA, 1, 9) is None


def test_own_draft_layers_are_loaded_where_they_are_asked_for() -> None:
    model = load_model("deepseek-v3")
    assert "draft" not in held(model, tp=8)
    assert "draft" not in held(model, tp=8, drafts=True, last=False)
    draft = held(model, tp=8, drafts=True)["draft"]
    names = {part.role for part in draft.parts}
    assert {"attention", "routed_experts", "router", "norm"} <= names
    assert draft.num_bytes == sum(part.num_bytes for part in draft.parts)
    assert draft.replicated_bytes == 0
    assert draft.parameters == sum(part.parameters for part in draft.parts)


def test_layers_of_a_mix_are_stored_by_their_place() -> None:
    """q4_k_m keeps the first eighth, the last eighth and every third between of some matrices in q6_k."""
    whole = {r: each.num_bytes for r, each in held(fmt="q4_k_m").items()}
    count = {"attention": 0, "dense_ffn": 0}
    for start in range(0, 32, 4):
        part = held(fmt="q4_k_m", layers=LLAMA.layers[start : start + 4], first_layer=start, first=False, last=False)
        for name in count:
            count[name] += part[name].num_bytes
    assert count == {name: whole[name] for name in count}
    ends, middle = (
        held(fmt="q4_k_m", layers=LLAMA.layers[:2], first_layer=start, first=False, last=False)["dense_ffn"].num_bytes
        for start in (0, 5)
    )
    assert ends > middle
    four, six = (get_format(name) for name in ("q4_k", "q6_k"))
    gate, down = 2 * 14_336 * 4096, 4096 * 14_336
    assert ends == 2 * (gate * 144 + down * 210) // 256 == 2 * (gate * four.block_bytes + down * six.block_bytes) // 256


def test_a_format_of_its_own_goes_before_that_of_all() -> None:
    bf16, fp8, fp32 = (get_format(name) for name in ("bf16", "fp8_e4m3", "fp32"))
    made = WeightFormat(fp8, frozenset({"attention"}), bf16, "", {"attention": fp32, "norm": fp32})
    assert [made.of(name) for name in ("attention", "norm", "head")] == [fp32, fp32, bf16]
    assert made._replace(overrides=None).of("attention") == fp8
