"""Releases and their rules: where a rule may begin, and which rules a version takes that nobody read."""

from __future__ import annotations

import pytest

from kvplan.engines import get_engine
from kvplan.engines.vllm.versions import CHANGES, LATEST, RELEASES, Rules, nearest, parse
from kvplan.errors import InputError


def test_releases_are_in_order_and_named_as_they_are_read() -> None:
    read = [parse(name) for name in RELEASES]
    assert read == sorted(set(read))
    assert [".".join(map(str, version)) for version in read] == list(RELEASES)
    assert RELEASES[-1] == LATEST


@pytest.mark.parametrize("name", CHANGES)
def test_a_rule_begins_with_a_release_that_was_read_after_one_without_it(name: str) -> None:
    """What began between two releases that were read shows first in the later one: no rule can begin elsewhere."""
    since = [release for release in RELEASES if parse(release) == CHANGES[name].since]
    assert len(since) == 1
    assert RELEASES.index(since[0]) > 0, "what the oldest release has is no change"
    assert [Rules(release).has(name) for release in RELEASES] == [
        RELEASES.index(release) >= RELEASES.index(since[0]) for release in RELEASES
    ]


BEGAN = {
    "0.12.0": "backends_list_formats states_of_prefixes chunking_may_be_off dense_context_ranks group_of_the_larger",
    "0.13.0": "nemotron_state_fp16 sparse_past_cutlass",
    "0.14.0": "check_by_first_group checkpoint_names_format chunked_in_hybrid_manager quantized_from_sm75 "
    "v32_auto_is_bf16",
    "0.15.0": "ahead_over_stages bf16_by_name mamba_cache_modes",
    "0.17.0": "block_within_step config_state_dtype gdn_state_dtype mamba2_draft_columns performance_modes "
    "stage_by_itself",
    "0.18.0": "backend_chooses_block group_factor_1_5 state_blocks_cap_seqs triton_mla_fp8 v32_fp8_by_backend",
    "0.19.0": "check_by_all_groups",
    "0.20.0": "backend_aligns_hybrids mimo_own_values mode_all_drafts_align nemotron_state_fp32 turboquant "
    "utilization_0_92 v4_caches",
    "0.20.1": "override_in_check tokens_from_concurrency",
    "0.21.0": "promoted_keep_values turboquant_beside_states",
    "0.22.0": "fa_e4m3_only mode_all_keeps_drafts",
    "0.23.0": "v4_slots_by_page",
    "0.24.0": "flashinfer_from_sm80 pages_may_be_padded sm120_sparse triton_fp8_from_sm89",
    "0.25.0": "flash_attn_sparse flashinfer_sparse_context_ranks mixed_formats_align window_own_block",
    "0.26.0": "context_ranks_cache_prefixes in_flight_batches states_may_be_padded "
    "triton_mla_fp8_from_sm89 windows_ask_backend",
    "0.27.0": "block_past_step buckets_merge concurrency_by_blocks hybrid_mla_128 kda_draft_columns "
    "promoted_take_block v4_windows_unpadded",
    "0.28.0": "align_is_default backends_count_packing fa4_reads_fp8 hybrid_prefix_caching largest_batch_tier "
    "window_keeps_drafts windows_pack_int4",
    "0.29.0": "check_by_blocks dsa_fp8_on_sm10 kda_prefill_checkpoint null_block_in_check packed_groups "
    "packed_may_be_padded short_conv_draft_columns sparse_context_ranks",
    "0.30.0": "drafts_in_one_stage glm5_next kda_state_dtype v4_auto_is_fp8 window_largest_block",
    "0.31.0": "fa4_page_64 row_stride_of_one tail_keeps_drafts v41_fused_attention",
    "0.32.0": "every_backend_aligns mamba2_checkpoint_block mimo_reads_format no_mode_all row_strides",
    "0.33.0": "fa4_sparse gdn_checkpoint plain_format_is_the_models v41_record_strides",
}
"""Release -> the rules that its wheel has and the one before it has not."""


def test_rules_begin_where_the_wheels_have_them() -> None:
    """Read again beside the planner's answers of each release (``test_planner_wide.py``), which name no rules."""
    assert {name: parse(release) for release, names in BEGAN.items() for name in names.split()} == {
        name: change.since for name, change in CHANGES.items()
    }


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.24.0", "0.24.0"), ("0.24.1", "0.24.0"), ("0.23.9", "0.23.0"), ("0.20.1", "0.20.1"), ("0.20.2", "0.20.1"),
        ("0.20", "0.20.0"), ("v0.33.0", "0.33.0"), ("0.33.7", "0.33.0"), ("1", "0.33.0"), ("1.0", "0.33.0"),
        ("0.10.2", "0.11.0"), ("0.1", "0.11.0"), ("0.11.0", "0.11.0"),
    ],
)  # fmt: skip
def test_a_version_takes_the_latest_rules_that_are_not_newer(text: str, release: str) -> None:
    found, warning = nearest(text)
    assert found == release
    assert (warning is None) is (parse(text) == parse(release))


@pytest.mark.parametrize(
    ("typed", "titled", "said"),
    [("0.5", "0.11.0", "vLLM 0.5 is not known; the rules of 0.11.0"), ("9.9", "0.33.0", "the rules of 0.33.0 are"),
     ("0.10.2", "0.10.2", "the cache of vLLM 0.10.2 is laid out by the rules of 0.11.0"), ("0.11.0", "0.11.0", "")],
)  # fmt: skip
def test_an_engine_is_called_by_the_release_whose_rules_it_goes_by(typed: str, titled: str, said: str) -> None:
    engine = get_engine(f"vllm@{typed}")
    assert engine.version == titled
    assert said in " ".join(engine.warnings)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.27.0", (0, 27, 0)), ("0.27", (0, 27, 0)), ("V0.27.3", (0, 27, 3)), (" 0.27.3 ", (0, 27, 3)),
        ("0.27.3.4", (0, 27, 3)), ("0.27.1rc2", (0, 27, 1)), ("0.27rc1.3", (0, 27, 0)), ("0.27.rc1", (0, 27, 0)),
        ("0.27.0+cu128", (0, 27, 0)), ("1", (1, 0, 0)), ("0.9999.1", (0, 9999, 1)), ("0.0", (0, 0, 0)),
    ],
)  # fmt: skip
def test_versions_are_read_to_the_patch(text: str, version: tuple[int, int, int]) -> None:
    assert parse(text) == version


@pytest.mark.parametrize("text", ["", "0", "x", "1.", "1.x", "v", ".1", "10000", "latest", "0.x"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a vLLM version"):
        parse(text)
