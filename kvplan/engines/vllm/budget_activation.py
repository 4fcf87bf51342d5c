"""The peak of vLLM's profiling run above the weights: sampler, forward pass, encoder, compilation.

The profile feeds `max_num_batched_tokens` tokens through the model, split over min(that,
`max_num_seqs`) requests, without a cache; runs the sampler on the last token of each; and, for
multimodal models, the encoder on its whole budget before. What counts is the largest of these, not
their sum. Widths are per rank. Sources: see `kvplan.engines.vllm.budget_versions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.common import vision_parameters
from kvplan.engines.vllm import budget_versions

if TYPE_CHECKING:
    from kvplan.engines.base import Settings, Stage
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import ModelSpec

QWEN_ITEM = 16384
ITEM_TOKENS = {
    "Qwen2VLForConditionalGeneration": QWEN_ITEM, "Qwen2_5_VLForConditionalGeneration": QWEN_ITEM,
    "Qwen3VLForConditionalGeneration": QWEN_ITEM, "Qwen3VLMoeForConditionalGeneration": QWEN_ITEM,
    "Qwen3_5ForConditionalGeneration": QWEN_ITEM, "Qwen3_5MoeForConditionalGeneration": QWEN_ITEM,
    "Mistral3ForConditionalGeneration": 3025, "Gemma3ForConditionalGeneration": 256,
    "Gemma4ForConditionalGeneration": 2496,
}  # fmt: skip
"""Tokens of the largest image or video by architecture, which vLLM asks the model's processor for.

Qwen2 and Qwen2.5: 12,845,056 pixels of 28 x 28; Qwen3 and later: 16,777,216 of 32 x 32 (their log says
"Encoder cache will be initialized with a budget of 16384 tokens"); Mistral 3: 1540 x 1540 pixels of 28 x 28;
Gemma 3: 256 a picture; Gemma 4: a video of 2,496 (the same line of its log)."""
PATCHES_PER_TOKEN = 4
"""Encoders merge 2 x 2 patches into a token (Qwen, Pixtral; others merge more)."""
EXPANDED_ITEMS: budget_versions.Version = (0, 11, 0)
"""In this release every item's encoder output is expanded to the whole budget."""
MLA_ROWS = 65536
"""Cap of the context rows that MLA prefill rebuilds at once."""
ONE_BLOCK: budget_versions.Version = (0, 28, 0)
"""Since this release that chunk may have less than a block for every running sequence."""
SPARSE_CHUNKS: budget_versions.Version = (0, 16, 0)
"""Since this release the layer, not its backend, allocates the chunk, and sparse attention does so too."""


class Peak(NamedTuple):
    """Bytes of one part of the profile: most likely, least, most."""

    name: str
    bytes: int
    low: int
    high: int


def rows_and_tokens(settings: Settings) -> tuple[int, int]:
    """(rows of the profile's sampler, batched tokens)."""
    batched = settings.max_num_batched_tokens or 0
    return min(batched, settings.max_num_seqs or 0), batched


def sampler_peak(
    stage: Stage, model: ModelSpec, settings: Settings, path: budget_versions.Sampler, drafts: bool
) -> Peak:
    """Logits and their copies for every row, the final hidden states and the picked rows. Last stage only."""
    if not stage.last:
        return Peak("sampler", 0, 0, 0)
    rows, batched = rows_and_tokens(settings)
    beside = 2 * model.hidden_size * (batched + 2 * rows)
    more = 2.0 if drafts else 0.0
    full = int((path.bytes_per_element + more) * rows * model.vocab_size) + beside
    least = int(path.least_bytes_per_element * rows * model.vocab_size) + beside
    return Peak(f"sampler ({path.path})", full, least, full)


def mixer_width(mixer: CacheKind) -> int:
    """Elements per token that a token mixer holds beside the hidden states: projections in and result out."""
    query, kv = getattr(mixer, "query_heads", 0), getattr(mixer, "kv_heads", 0)
    dim = getattr(mixer, "head_dim", 0)
    if mixer.kind == "gated_delta_net":
        keys: int = mixer.key_heads * mixer.key_head_dim  # type: ignore[attr-defined]
        values: int = mixer.value_heads * mixer.value_head_dim  # type: ignore[attr-defined]
        return 2 * (2 * keys + values) + 3 * values
    if mixer.kind == "mla":
        inner: int = mixer.query_heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)  # type: ignore[attr-defined]
        return 2 * inner
    return (2 * query + 2 * kv) * dim if dim and query else 0


def forward_peak(stage: Stage, model: ModelSpec, settings: Settings, block_size: int) -> Peak:
    """The widest point of one layer for a full batch, 2 bytes an element.

    ``2 (3 I + 4 H)`` bytes a token, I the width of the MLP on this rank and H the hidden size, measured to
    the byte on five shapes under torch.compile; 3 H without compilation.
    """
    batched = settings.max_num_batched_tokens or 0
    widest = 0
    for name in stage.spec.layer_counts:
        block = stage.spec.blocks[name]
        for ffn in block.ffns:
            shared = getattr(ffn, "shared_intermediate_size", None)
            wide = ffn.intermediate_size if shared is None else shared  # type: ignore[attr-defined]
            widest = max(widest, 3 * wide)
        widest = max([widest, *(mixer_width(m) for m in block.mixers)])
    streams = 3 if settings.enforce_eager else 4
    size = 2 * batched * (widest + streams * model.hidden_size)
    size += latent_prefill_bytes(stage, settings, block_size)
    return Peak("forward pass", size, size * 3 // 4, size + size // 4)


def latent_prefill_bytes(stage: Stage, settings: Settings, block_size: int) -> int:
    """K and V rebuilt from latent rows for the largest chunk of context, which the profile allocates on purpose.

    Up to 0.27 the chunk has a block for every running sequence at least, whatever the cap: beside recurrent states,
    whose blocks are large, that is gigabytes.

    Args:
        block_size: tokens of a block as it is laid out, grown to the pages of states where there are any.

    Source: vLLM 0.11.0 to 0.33.0 ``MLACommonImpl`` and ``MLAAttention``, ``determine_chunked_prefill_workspace_size``.
    """
    version, seqs, peak = budget_versions.version_of(settings), settings.max_num_seqs or 0, 0
    for name in stage.spec.layer_counts:
        for mixer in stage.spec.blocks[name].mixers:
            if mixer.kind == "mla":
                latent: Any = mixer
                rows = min(max(8 * settings.max_model_len, 4 * seqs * block_size), MLA_ROWS)
                if latent.index_topk and version < SPARSE_CHUNKS:
                    continue
                rows = max(rows, seqs * block_size if version < ONE_BLOCK else block_size)
                width = latent.query_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
                peak = max(peak, 2 * rows * width)
    return peak


class Workspace(NamedTuple):
    """Bytes of the fused expert kernels."""

    shared: int
    """The two intermediate buffers, one grow-only allocation from 0.14 on."""
    beside: int
    """What DeepGEMM allocates besides: the permuted rows and the activated ones, in fp8."""


def expert_workspace(stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec, fmt: str) -> Workspace:
    """The largest layer's buffers for a full batch.

    Every token goes to `experts_per_token` rows; DeepGEMM (fp8 in tiles of 128 x 128 on compute capability
    9.x and 10.x) pads the rows of every expert to 128.
    Source: vLLM ``vllm/model_executor/layers/fused_moe/``, ``workspace_shapes`` of ``fused_moe.py`` and
    ``deep_gemm_moe.py``.

    Args:
        fmt: the format the routed experts are stored in.
    """
    shared = beside = 0
    deep = (
        fmt == "fp8_block"
        and major(gpu) in (9, 10)
        and budget_versions.version_of(settings) >= budget_versions.DEEP_GEMM
    )
    for name in stage.spec.layer_counts:
        for ffn in stage.spec.blocks[name].ffns:
            if not getattr(ffn, "experts", None):
                continue
            wide: int = ffn.intermediate_size  # type: ignore[attr-defined]
            width: int = ffn.expert_hidden_size or model.hidden_size  # type: ignore[attr-defined]
            rows = (settings.max_num_batched_tokens or 0) * ffn.experts_per_token  # type: ignore[attr-defined]
            if deep and 2 * wide % 128 == 0 and width % 128 == 0:
                rows = -(-(rows + 127 * ffn.experts) // 128) * 128  # type: ignore[attr-defined]
                beside = max(beside, rows * (width + wide))
            shared = max(shared, 2 * rows * (max(2 * wide, width) + max(wide, width)))
    return Workspace(shared, beside)


def encoder_off(model: ModelSpec, settings: Settings) -> bool:
    """Whether no encoder is profiled: a text model, ``--language-model-only`` or ``--skip-mm-profiling``."""
    asked = settings.extra.get("language_model_only") or settings.extra.get("skip_mm_profiling")
    return bool(asked) or not vision_parameters(model)


ENCODER_SQUARES = 310
"""Parameters of an image encoder over the square of its width H: those of SigLIP SO400M, 27 layers of 4 H^2 for
attention and 2 x 4,304/1,152 H^2 for the MLP (``google/siglip-so400m-patch14-384``, ``config.json``)."""
CUBLAS_BYTES = 2 * 4096 * 1024
"""``:4096:2:16:8``: two buffers of 4 MiB; eight of 16 KiB besides are not counted."""
CUBLAS_BYTES_SINCE_HOPPER = 8 * 4096 * 1024
"""Compute capability 9.0 and later."""


def encoder_peaks(stage: Stage, model: ModelSpec, settings: Settings) -> tuple[Peak, int]:
    """(peak of the encoder, bytes of its outputs that stay during the forward pass). First stage only.

    The encoder's width is derived from its parameters (`ENCODER_SQUARES`); its peak is one layer's: twice its MLP and
    three hidden states, 2 bytes an element, for every patch.
    """
    if encoder_off(model, settings) or not stage.first:
        return Peak("encoder", 0, 0, 0), 0
    batched = settings.max_num_batched_tokens or 0
    item = ITEM_TOKENS.get(model.architecture, 0)
    budget = max(batched, item)
    hidden = int((vision_parameters(model) / ENCODER_SQUARES) ** 0.5)
    per_token = PATCHES_PER_TOKEN * 2 * (2 * hidden * 15 // 4 + 3 * hidden)
    items = -(-budget // item) if item and budget_versions.version_of(settings) == EXPANDED_ITEMS else 1
    held = items * budget * model.hidden_size * 2
    most = max(budget, item or QWEN_ITEM)
    return Peak("encoder", budget * per_token, batched * per_token // 2, most * per_token * 5 // 4), held


def compile_peak(stage: Stage, model: ModelSpec, settings: Settings, vocab_rows: int) -> Peak:
    """A copy of this rank's embedding, alive while a start without a compile cache compiles.

    Models that take images embed their tokens outside the compiled graph: they have none.
    """
    version = budget_versions.version_of(settings)
    outside = bool(model.towers) and not settings.extra.get("language_model_only")
    if settings.enforce_eager or version < budget_versions.COLD_COMPILE or not stage.first or outside:
        return Peak("compilation", 0, 0, 0)
    size = 2 * vocab_rows * model.embedding_width
    known = settings.extra.get("compile_cache")
    if known == "warm":
        return Peak("compilation", 0, 0, 0)
    return Peak("compilation without a cache", size, size if known == "cold" else 0, size)


def cublas_bytes(gpu: GpuSpec) -> int:
    """cuBLAS workspace, which torch's allocator holds; what `CUBLAS_WORKSPACE_CONFIG` would be if it were set.

    Source: torch 2.11 ``aten/src/ATen/cuda/CublasHandlePool.cpp``, ``parseChosenWorkspaceSize``.
    """
    if gpu.vendor != "nvidia":
        return 0
    return CUBLAS_BYTES_SINCE_HOPPER if major(gpu) >= 9 else CUBLAS_BYTES


def major(gpu: GpuSpec) -> int:
    """Major compute capability of an NVIDIA card; 0 for others."""
    head = (gpu.compute_capability or "").partition(".")[0]
    return int(head) if head.isdigit() else 0
