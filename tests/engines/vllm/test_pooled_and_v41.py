"""GLM-5.3-Flash (pooled index keys beside states) and DeepSeek-V4.1: pages by hand, groups as vLLM makes them.

The group sizes and blocks per request are what the planner code of vLLM 0.32.0 and 0.33.0 gave for these pages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan.cache.compressed import CompressedAttention
from kvplan.catalog import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.engines.base import Stage
from kvplan.engines.vllm.layout import Layout
from kvplan.engines.vllm.v41 import entry_bytes
from kvplan.errors import UnsupportedError
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import build_stages
from kvplan.planning.plan import Plan
from kvplan.planning.planner import plan_deployment
from kvplan.planning.settings import resolve
from kvplan.planning.weights import weight_format

TOKENS = 131_072


def laid_out(name: str, gpu: str, version: str = "0.33.0", **given: Any) -> tuple[Layout, Stage]:
    model, engine = load_model(name), get_engine(f"vllm@{version}")
    settings, _ = resolve(model, load_gpu(gpu), engine, {"max_model_len": TOKENS, **given})
    engine.check(model, settings, load_gpu(gpu))
    served = served_model(model, engine, settings)
    stages, _ = build_stages(served, engine, settings, weight_format(served, "auto"))
    return engine.layout(stages[0], settings), stages[0]  # type: ignore[attr-defined]


def sizes(laid: Layout) -> list[tuple[int, str]]:
    return sorted((len(g.members), g.first.family) for g in laid.groups)


def planned(name: str, gpu: str, version: str, **given: Any) -> Plan:
    asked = {"max_model_len": TOKENS, **given}
    return plan_deployment(load_model(name), load_gpu(gpu), f"vllm@{version}", asked)


@pytest.mark.parametrize(
    ("gpu", "row", "block", "step"),
    [("h200-sxm", 2 * 512, 1152, 1024), ("b200", 512, 2176, 32 * 512)],
)
def test_pooled_index_keys_share_a_block_with_latent_rows_and_states(gpu: str, row: int, block: int, step: int) -> None:
    """A block: 11 latent pages, 11 of a key for 4 tokens, in whole rows of the kernel; a state fills a latent page."""
    laid, stage = laid_out("glm-5.3-flash", gpu, tensor_parallel_size=4)
    state = 3 * 3 * 16 * 128 * 2 + 16 * 128 * 128 * 4
    assert laid.block_size == block == 128 * -(-state // (128 * row))
    pages = 11 * (block * row + block // 4 * 132)
    assert laid.block_bytes(stage) == -(-pages // step) * step
    assert sizes(laid) == [(8, "mamba"), (8, "mamba"), (9, "mamba"), (9, "mamba"), (11, "ring"), (22, "mla")]
    # prefix caching: two states and a checkpoint in each of the four groups, and one block for the tail
    assert laid.blocks(TOKENS) == -(-TOKENS // block) + 4 * 3 + 1


def test_the_tail_of_pooled_keys_holds_draft_tokens_since_031() -> None:
    drafts = '{"method": "mtp", "num_speculative_tokens": 3}'
    for version, rows in (("0.30.0", 4), ("0.31.0", 8)):
        laid, _ = laid_out("glm-5.3-flash", "h200-sxm", version, tensor_parallel_size=4, speculative_config=drafts)
        assert {c.block_size for _, c in laid.caches if c.family == "ring"} == {rows}


WINDOWS, SOURCES = 40, 4
"""Layers of DeepSeek-V4.1-Flash, and those whose entries others read: three of ratio 2, one of ratio 1."""


def page(entries: int, row: int, align: int) -> int:
    return -(-entries * row // align) * align


@pytest.mark.parametrize(
    ("gpu", "version", "block", "row", "entry", "align", "stride"),
    [
        ("h200-sxm", "0.30.0", 64, 584, 584, 576, 1),
        ("h200-sxm", "0.33.0", 64, 584, 584, 576, 1),
        ("b200", "0.30.0", 128, 528, 528, 512, 1),
        ("b200", "0.32.0", 128, 528, 288, 512, 1),
        ("b200", "0.33.0", 128, 528, 288, 512, 3168),
    ],
)
def test_v41_keeps_entries_in_the_layers_that_others_read(
    gpu: str, version: str, block: int, row: int, entry: int, align: int, stride: int
) -> None:
    laid, stage = laid_out("deepseek-v4.1-flash", gpu, version, tensor_parallel_size=8)
    assert laid.block_size == block
    far, near = (page(block // ratio, entry, align) + page(block // ratio, 132, align) for ratio in (2, 1))
    pages = 3 * far + near
    ring = 3 * page(8, 2 * 512 * 4, 1)
    assert ring <= pages
    assert laid.block_bytes(stage) == -(-pages // stride) * stride
    window = {c.page_bytes for _, c in laid.caches if c.shape == ("window",)}
    assert window == {page(32, row, align)}
    per_block = pages // page(32, row, align)
    groups = -(-WINDOWS // per_block)
    assert len([g for g in laid.groups if g.first.family == "sliding_mla"]) == groups
    flying = laid.limits.in_flight_tokens
    assert laid.blocks(TOKENS) == TOKENS // block + groups * (-(-(127 + flying) // 32) + 1) + 1


def test_v41_without_eight_heads_a_group_falls_back_to_fp8_entries() -> None:
    """The fused kernel needs eight query heads of a whole output group on each rank."""
    _, stage = laid_out("deepseek-v4.1-flash", "b200", tensor_parallel_size=8)
    rules = get_engine("vllm@0.33.0").rules  # type: ignore[attr-defined]
    mixer = next(m for _, m in stage.spec.mixers() if m.kind == "compressed")
    assert isinstance(mixer, CompressedAttention)
    assert (mixer.query_heads, mixer.o_groups) == (8, 1)
    assert entry_bytes(mixer, "10.0", rules) == 288
    assert entry_bytes(replace(mixer, o_groups=2), "10.0", rules) == 528


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4.1-flash"])
def test_more_ranks_than_output_groups_do_not_start(name: str) -> None:
    """Eight groups over sixteen ranks are none a rank, by which vLLM divides."""
    with pytest.raises(UnsupportedError, match=r"output groups \(8\) cannot be divided by .* size 16") as caught:
        laid_out(name, "b200", tensor_parallel_size=16)
    assert caught.value.hint == "sizes that work: 1, 2, 4, 8"


@pytest.mark.parametrize("name", ["glm-5.3-flash", "deepseek-v4.1-flash"])
def test_releases_without_the_model_name_the_one_that_has_it(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"0\.29\.0 does not have") as caught:
        planned(name, "h200-sxm", "0.29.0", tensor_parallel_size=8)
    assert caught.value.hint == "type --engine vllm@0.30.0 or later"


def test_v41_blocks_that_its_kernels_do_not_take() -> None:
    with pytest.raises(UnsupportedError, match="multiple of 64") as caught:
        planned("deepseek-v4.1-flash", "h200-sxm", "0.33.0", tensor_parallel_size=8, block_size=96)
    assert caught.value.hint == "type --block-size 64"


def test_windows_do_not_go_with_context_ranks() -> None:
    for name in ("deepseek-v4-flash", "deepseek-v4.1-flash"):
        with pytest.raises(UnsupportedError, match="windowed"):
            planned(name, "h200-sxm", "0.33.0", tensor_parallel_size=8, decode_context_parallel_size=2)
