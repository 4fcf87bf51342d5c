"""What changed when in vLLM's sizing of the cache: one row a change, read in the releases' own wheels.

Every rule below was looked up in the source of each release in `RELEASES`; a version in between
takes the rules of the nearest release that was read, and says so.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from kvplan.errors import InputError, printable

RELEASES = (
    "0.11.0", "0.12.0", "0.13.0", "0.14.0", "0.15.0", "0.16.0", "0.17.0", "0.18.0", "0.19.0", "0.20.0", "0.20.1",
    "0.21.0", "0.22.0", "0.23.0", "0.24.0", "0.25.0", "0.26.0", "0.27.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0",
    "0.32.0", "0.33.0",
)  # fmt: skip
"""Releases whose rules were read."""

LATEST = RELEASES[-1]

Version = tuple[int, int, int]

BUDGET_FROM: Version = (0, 8, 5)
"""The oldest wheel in which the memory profile was read (`kvplan.engines.vllm.budget_versions`)."""


class Change(NamedTuple):
    """A rule that came (or went) with a release."""

    since: Version
    what: str
    source: str


_PLANNING = "vllm/v1/core/kv_cache_utils.py"
_SPECS = "vllm/v1/kv_cache_interface.py"
_PLATFORM = "vllm/platforms/interface.py"
_STATES = "vllm/model_executor/layers/mamba/mamba_utils.py"
_MODELS = "vllm/model_executor/models/config.py"

CHANGES: dict[str, Change] = {
    "group_of_the_larger": Change((0, 12, 0), "buckets of nearly equal size make groups of the larger", _PLANNING),
    "backends_list_formats": Change(
        (0, 12, 0), "attention backends list the cache formats that they read", "vllm/attention/backends/abstract.py"
    ),
    "states_of_prefixes": Change(
        (0, 12, 0), "models of Mamba layers share prefixes, a state a block (before: none with states did)", _MODELS
    ),
    "bf16_by_name": Change(
        (0, 15, 0), "attention backends list bfloat16 too (before, 0.12 on: auto alone)",
        "vllm/v1/attention/backends/triton_attn.py",
    ),
    "ahead_over_stages": Change(
        (0, 15, 0), "scheduling ahead may be asked for with pipeline stages (before: refused)", "vllm/config/vllm.py"
    ),
    "triton_mla_fp8": Change(
        (0, 18, 0), "Triton MLA reads fp8 caches", "vllm/v1/attention/backends/mla/triton_mla.py"
    ),
    "sparse_past_cutlass": Change(
        (0, 13, 0), "sparse latent attention starts on compute capability 10 (0.12 forces CUTLASS_MLA: refused)",
        "vllm/platforms/cuda.py",
    ),
    "nemotron_state_fp16": Change((0, 13, 0), "Nemotron-H keeps recurrent states in fp16", _MODELS),
    "chunking_may_be_off": Change(
        (0, 12, 0), "--no-enable-chunked-prefill counts: a step takes the longest prompt (before: always cut)",
        "vllm/engine/arg_utils.py",
    ),
    "chunked_in_hybrid_manager": Change((0, 14, 0), "chunked attention uses the hybrid manager", "vllm/envs.py"),
    "v32_auto_is_bf16": Change((0, 14, 0), "DeepSeek-V3.2 keeps bf16 rows unless fp8 is asked for", _MODELS),
    "check_by_first_group": Change(
        (0, 14, 0), "the check at start counts the first group of layers alone (until 0.18)", _PLANNING
    ),
    "quantized_from_sm75": Change(
        (0, 14, 0), "weights in fp8 and nvfp4 begin at compute capability 7.5 (before: 8.0)",
        "vllm/model_executor/layers/quantization/fp8.py",
    ),
    "checkpoint_names_format": Change(
        (0, 14, 0), "the cache format that a checkpoint declares is taken where none is asked for",
        "vllm/utils/torch_utils.py",
    ),
    "mamba_cache_modes": Change((0, 15, 0), "mamba cache modes none, align and all", _SPECS),
    "mamba2_draft_columns": Change((0, 17, 0), "Mamba 2 keeps a convolution column per draft token", _STATES),
    "block_within_step": Change(
        (0, 17, 0), "hybrid blocks above max_num_batched_tokens are refused where states are kept at their ends "
        "(until 0.26)", "vllm/config/vllm.py",
    ),
    "performance_modes": Change(
        (0, 17, 0), "--performance-mode throughput doubles the default batch limits", "vllm/engine/arg_utils.py"
    ),
    "triton_fp8_from_sm89": Change(
        (0, 24, 0), "Triton attention refuses fp8 caches below compute capability 8.9",
        "vllm/v1/attention/backends/triton_attn.py",
    ),
    "triton_mla_fp8_from_sm89": Change(
        (0, 26, 0), "Triton MLA refuses fp8 caches below compute capability 8.9",
        "vllm/v1/attention/backends/mla/triton_mla.py",
    ),
    "stage_by_itself": Change(
        (0, 17, 0), "pipeline stages are checked, and pages that differ counted, by their own layers (before: by all)",
        _PLANNING,
    ),
    "gdn_state_dtype": Change((0, 17, 0), "gated delta nets follow --mamba-ssm-cache-dtype", _STATES),
    "config_state_dtype": Change((0, 17, 0), "Qwen3.5 states follow mamba_ssm_dtype", _MODELS),
    "v32_fp8_by_backend": Change(
        (0, 18, 0), "fp8 rows of sparse attention follow the backend (before: always 656 bytes)",
        _MODELS,
    ),
    "backend_chooses_block": Change((0, 18, 0), "the attention backend chooses the block size", _PLATFORM),
    "group_factor_1_5": Change((0, 18, 0), "the larger counts up to 1.5 times the smaller (before: 1.25)", _PLANNING),
    "state_blocks_cap_seqs": Change(
        (0, 18, 0), "max_num_seqs over the state blocks is refused",
        "vllm/config/compilation.py",
    ),
    "check_by_all_groups": Change((0, 19, 0), "the check at start counts every group of layers", _PLANNING),
    "nemotron_state_fp32": Change((0, 20, 0), "Nemotron-H keeps recurrent states in fp32", _MODELS),
    "mimo_own_values": Change(
        (0, 20, 0), "MiMo-V2 keeps values of their own width (before: padded to that of its keys)",
        "vllm/model_executor/models/mimo_v2_flash.py",
    ),
    "backend_aligns_hybrids": Change(
        (0, 20, 0), "the attention backend's block decides the multiples of which hybrid blocks are too", _PLATFORM
    ),
    "utilization_0_92": Change((0, 20, 0), "default utilisation 0.92 (before: 0.9)", "vllm/config/cache.py"),
    "turboquant": Change((0, 20, 0), "TurboQuant caches", _SPECS),
    "promoted_keep_values": Change(
        (0, 21, 0), "windows that are held whole keep values of their own width (before: as wide as keys)", _SPECS
    ),
    "turboquant_beside_states": Change(
        (0, 21, 0), "TurboQuant beside states (before: refused)", "vllm/engine/arg_utils.py"
    ),
    "v4_caches": Change((0, 20, 0), "DeepSeek-V4 caches in tuples of layers that share slots", _PLANNING),
    "override_in_check": Change((0, 20, 1), "num_gpu_blocks_override counts in the check at start", _PLANNING),
    "tokens_from_concurrency": Change((0, 20, 1), "token line is concurrency x max_model_len", _PLANNING),
    "v4_slots_by_page": Change((0, 23, 0), "DeepSeek-V4 blocks hold as many slots of a page size as needed", _PLANNING),
    "mode_all_drafts_align": Change(
        (0, 20, 0), "drafts turn mamba cache mode all, where it is the default, into align (until 0.21)", _MODELS
    ),
    "mode_all_keeps_drafts": Change(
        (0, 22, 0), "mamba cache mode all is the default beside drafts too, and reserves their states", _SPECS
    ),
    "pages_may_be_padded": Change((0, 24, 0), "pages that do not divide the largest are padded", _PLANNING),
    "mixed_formats_align": Change(
        (0, 25, 0), "blocks grow until a packed page covers an unpacked kernel block",
        _PLATFORM,
    ),
    "window_own_block": Change(
        (0, 25, 0), "windowed layers choose their own block",
        "vllm/model_executor/layers/attention/attention.py",
    ),
    "window_largest_block": Change(
        (0, 30, 0), "windowed layers take the largest kernel block within the model's (before: the smallest)",
        "vllm/model_executor/layers/attention/attention.py",
    ),
    "windows_pack_int4": Change(
        (0, 28, 0), "windowed layers pack int4_per_token_head rows (before: a byte an element)", _SPECS
    ),
    "windows_ask_backend": Change(
        (0, 26, 0), "windowed layers need a backend that reads windows: TurboQuant's does not (before: bytes unpacked)",
        "vllm/v1/attention/backend.py",
    ),
    "context_ranks_cache_prefixes": Change(
        (0, 26, 0), "models with states share prefixes over context ranks", "vllm/v1/core/kv_cache_coordinator.py"
    ),
    "promoted_take_block": Change(
        (0, 27, 0), "windows held whole take the full layers' block (0.25, 0.26: keep their own, refused if unlike)",
        _PLANNING,
    ),
    "in_flight_batches": Change((0, 26, 0), "windows keep every batch in flight", "vllm/config/vllm.py"),
    "states_may_be_padded": Change((0, 26, 0), "state pages are padded to the largest page", _PLANNING),
    "concurrency_by_blocks": Change(
        (0, 27, 0), "the printed concurrency counts blocks (before: bytes over the first group's block)", _PLANNING
    ),
    "block_past_step": Change(
        (0, 27, 0), "hybrid blocks above max_num_batched_tokens start", "vllm/config/vllm.py"
    ),
    "hybrid_mla_128": Change((0, 27, 0), "hybrids with latent attention align blocks to 128", _PLATFORM),
    "kda_draft_columns": Change((0, 27, 0), "KDA keeps a convolution column per draft token", _STATES),
    "fa_e4m3_only": Change(
        (0, 22, 0), "FlashAttention no longer takes fp8_e5m2 caches", "vllm/v1/attention/backends/flash_attn.py"
    ),
    "flashinfer_from_sm80": Change(
        (0, 24, 0), "FlashInfer begins at compute capability 8.0 (before: 7.5)",
        "vllm/v1/attention/backends/flashinfer.py",
    ),
    "fa4_reads_fp8": Change(
        (0, 28, 0), "FlashAttention 4 reads fp8 caches on compute capability 10",
        "vllm/v1/attention/backends/fa_utils.py",
    ),
    "buckets_merge": Change((0, 27, 0), "layers that differ in a window alone share a bucket", _PLANNING),
    "hybrid_prefix_caching": Change(
        (0, 28, 0), "prefix caching on by default for hybrids",
        "vllm/engine/arg_utils.py",
    ),
    "v4_windows_unpadded": Change((0, 27, 0), "DeepSeek-V4 windows keep their own page sizes", _PLANNING),
    "largest_batch_tier": Change((0, 28, 0), "16,384 batched tokens from 160 GiB on", "vllm/engine/arg_utils.py"),
    "window_keeps_drafts": Change((0, 28, 0), "windows keep tokens for multi-module drafts", _SPECS),
    "align_is_default": Change(
        (0, 28, 0), "mamba cache mode align by default (before: all where the model can)",
        _MODELS,
    ),
    "backends_count_packing": Change(
        (0, 28, 0), "blocks of packed and plain layers are aligned by what the first layer's backend packs", _PLATFORM
    ),
    "v4_auto_is_fp8": Change(
        (0, 30, 0), "DeepSeek-V4 starts without --kv-cache-dtype fp8", "vllm/models/deepseek_v4/attention.py"
    ),
    "check_by_blocks": Change(
        (0, 29, 0), "the check at start counts blocks of DeepSeek-V4 (before: its first group's pages, over and over)",
        _PLANNING,
    ),
    "packed_may_be_padded": Change((0, 29, 0), "TurboQuant pages may be padded too", _PLANNING),
    "null_block_in_check": Change((0, 29, 0), "the check at start sets one null block aside", _PLANNING),
    "packed_groups": Change((0, 29, 0), "DeepSeek-V4 caches are packed side by side in a block", _PLANNING),
    "short_conv_draft_columns": Change((0, 29, 0), "short convolutions keep a column per draft token", _STATES),
    "kda_prefill_checkpoint": Change(
        (0, 29, 0), "bounded-gate KDA layers export a checkpoint from a prefill",
        "vllm/models/kimi_k3/nvidia/kda.py",
    ),
    "dsa_fp8_on_sm10": Change(
        (0, 29, 0), "GLM with sparse attention keeps fp8 rows on compute capability 10",
        _MODELS,
    ),
    "drafts_in_one_stage": Change(
        (0, 30, 0), "drafts are not cut into pipeline stages (before: refused where their model cannot be)",
        "vllm/config/speculative.py",
    ),
    "kda_state_dtype": Change((0, 30, 0), "KDA states follow --mamba-ssm-cache-dtype", _STATES),
    "fa4_page_64": Change(
        (0, 31, 0), "fp8 heads of 512 take blocks of 64 on compute capability 9.0",
        "vllm/v1/attention/backends/flash_attn.py",
    ),
    "glm5_next": Change((0, 30, 0), "GLM-5.3-Flash and DeepSeek-V4.1", "vllm/model_executor/models/registry.py"),
    "v41_fused_attention": Change(
        (0, 31, 0), "DeepSeek-V4.1 keeps its compressed entries in nvfp4 on compute capability 10",
        "vllm/models/deepseek_v41/nvidia/model.py",
    ),
    "v41_record_strides": Change(
        (0, 33, 0), "blocks of DeepSeek-V4.1 hold whole rows of both its records on compute capability 10",
        "vllm/models/deepseek_v41/attention.py",
    ),
    "tail_keeps_drafts": Change(
        (0, 31, 0), "the tail of pooled index keys holds draft tokens", "vllm/models/glm5next/common/attention.py"
    ),
    "mimo_reads_format": Change(
        (0, 32, 0), "MiMo-V2 keeps its cache in the format asked for (before: in its own dtype)",
        "vllm/model_executor/models/mimo_v2.py",
    ),
    "sm120_sparse": Change(
        (0, 24, 0), "sparse latent attention runs on compute capability 12", "vllm/platforms/cuda.py"
    ),
    "flash_attn_sparse": Change(
        (0, 25, 0), "16-bit rows of sparse latent attention are FlashAttention's on compute capability 9 (before: "
        "FlashMLA's)", "vllm/platforms/cuda.py",
    ),
    "fa4_sparse": Change(
        (0, 33, 0), "16-bit rows of sparse latent attention, of 16 query heads or fewer on a rank, are FlashAttention "
        "4's on compute capability 10 (before: FlashInfer's)", "vllm/platforms/cuda.py",
    ),
    "sparse_context_ranks": Change(
        (0, 29, 0), "FlashMLA's sparse kernel reads fp8 rows that context ranks share",
        "vllm/v1/attention/backends/mla/flashmla_sparse.py",
    ),
    "dense_context_ranks": Change(
        (0, 12, 0), "FlashAttention and FlashInfer read K and V that context ranks share (before: latent rows alone)",
        "vllm/v1/attention/backends/flash_attn.py",
    ),
    "flashinfer_sparse_context_ranks": Change(
        (0, 25, 0), "FlashInfer's kernels of latent rows read such that context ranks share",
        "vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py",
    ),
    "row_stride_of_one": Change(
        (0, 31, 0), "blocks of sparse latent caches are multiples of a row on compute capability 10 (in 0.31 alone)",
        "vllm/model_executor/layers/attention/mla_attention.py",
    ),
    "row_strides": Change(
        (0, 32, 0), "blocks of packed sparse latent caches are multiples of a row",
        "vllm/v1/attention/backends/mla/sparse_utils.py",
    ),
    "no_mode_all": Change((0, 32, 0), "mamba cache mode all removed", _SPECS),
    "mamba2_checkpoint_block": Change(
        (0, 32, 0), "Mamba 2 reserves a checkpoint block",
        "vllm/model_executor/layers/mamba/mamba_mixer2.py",
    ),
    "every_backend_aligns": Change((0, 32, 0), "hybrid blocks are multiples of every backend's smallest", _PLATFORM),
    "plain_format_is_the_models": Change(
        (0, 33, 0), "a cache format of 16 bits that is not the model's dtype is refused (before: taken)",
        "vllm/config/vllm.py",
    ),
    "gdn_checkpoint": Change(
        (0, 33, 0), "gated delta nets reserve a checkpoint block on a grid of 64 tokens",
        "vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py",
    ),
}  # fmt: skip
"""name -> the release that brought the rule. `Rules.has` asks for a name."""


_FORMAT_UNREAD = {
    **dict.fromkeys(("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM"), "mimo_reads_format"),
    **dict.fromkeys(("FalconForCausalLM", "RWForCausalLM"), None),
}
"""Architectures whose attention layers were built without ``cache_config``, and the rule that ended it (vLLM 0.13.0 to
0.31.0 ``vllm/model_executor/models/mimo_v2.py``, before 0.24 ``mimo_v2_flash.py``; 0.11.0 to 0.33.0 ``falcon.py``)."""


class Rules:
    """The rules of one version: ``rules.has("null_block_in_check")``."""

    def __init__(self, version: str = LATEST) -> None:
        self.name = version
        self.version = parse(version)

    def has(self, change: str) -> bool:
        """Whether this version has the rule.

        Raises:
            KeyError: no such rule.
        """
        return self.version >= CHANGES[change].since

    def pads_values(self, architecture: str) -> bool:
        """Whether the values of this architecture, narrower than its keys, are kept as wide as these."""
        return _FORMAT_UNREAD.get(architecture) == "mimo_reads_format" and not self.has("mimo_own_values")

    def format_unread(self, architecture: str) -> bool:
        """Whether rows of this architecture keep the model's dtype, whatever format is asked for."""
        ended = _FORMAT_UNREAD.get(architecture, "")
        return ended is None or (ended != "" and not self.has(ended))


@lru_cache(maxsize=128)
def parse(text: str) -> Version:
    """``0.27.0`` -> (0, 27, 0); a missing patch is 0, anything after it is cut off.

    Raises:
        InputError: not a version number.
    """
    parts: list[int] = []
    for part in text.strip().lstrip("vV").split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits or len(digits) > 4:
            break
        parts.append(int(digits))
        if digits != part:
            break
    if not parts or (len(parts) == 1 and ("." in text or not parts[0])):
        raise InputError(
            f"{printable(text, 40)!r} is not a vLLM version",
            where="--engine",
            hint=f"type vllm@{LATEST}; {RELEASES[0]} to {LATEST} are known (kvplan engines)",
        )
    major, minor, patch, *_ = [*parts, 0, 0]
    return major, minor, patch


def nearest(text: str) -> tuple[str, str | None]:
    """(release whose rules apply, warning or None) for a version that somebody typed.

    The latest release that was read and is not newer; the oldest one where all are newer.

    Raises:
        InputError: not a version number.
    """
    wanted = parse(text)
    older = [name for name in RELEASES if parse(name) <= wanted]
    found = older[-1] if older else RELEASES[0]
    if parse(found) == wanted:
        return found, None
    return found, f"vLLM {printable(text, 40)} is not known; the rules of {found} are used"
