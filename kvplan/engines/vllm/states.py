"""Fixed states of recurrent layers as vLLM stores them: columns, element sizes, blocks besides.

Source: vLLM 0.33.0 ``vllm/model_executor/layers/mamba/mamba_utils.py`` (shapes and dtypes),
``vllm/model_executor/models/config.py`` (dtypes that depend on the architecture).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.engines.vllm.versions import Rules
from kvplan.errors import UnsupportedError
from kvplan.spec.formats import element_bytes, get_format

if TYPE_CHECKING:
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import ModelSpec

_FP32, _FP16 = 4, 2

NEMOTRON_H = frozenset({"NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "NemotronH_Nano_VL_V2"})
"""Architectures whose recurrent states follow ``mamba_ssm_cache_dtype`` of the configuration, else fp32
(fp16 from 0.13 to 0.19). Source: ``NemotronHForCausalLMConfig``."""
FROM_CONFIG = frozenset(
    {
        "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration", "Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration", "ColQwen3_5",
        "D3ForSequenceClassification",
    }
)  # fmt: skip
"""Architectures whose recurrent states follow ``mamba_ssm_dtype`` of the configuration where it says
anything. Source: ``Qwen3_5ForConditionalGenerationConfig``."""
KDA_CHECKPOINT = {
    "KimiK3ForConditionalGeneration": 16,
    "Glm5NextForCausalLM": 16,
    "Glm5NextForConditionalGeneration": 16,
}
"""Architectures whose KDA layers export a checkpoint from a prefill (their gate is bounded, which the FlashKDA
kernel needs), and its grid. Source: ``vllm/models/kimi_k3/nvidia/kda.py``, ``vllm/models/glm5next/common/kda.py``."""

GDN_GRID = 64
"""Tokens between checkpoints of FlashInfer's gated delta net prefill (``FLASHINFER_GDN_CHECKPOINT_ALIGNMENT``)."""

DRAFT_COLUMNS = {
    "gated_delta_net": None, "mamba2": "mamba2_draft_columns", "kda": "kda_draft_columns",
    "short_conv": "short_conv_draft_columns",
}  # fmt: skip
"""Kinds whose convolution keeps a column per draft token, and the rule that brought it (None: always)."""
NOT_SERVED = ("rwkv", "rg_lru", "mlstm")
STATE_KINDS = frozenset(NOT_SERVED) | {"mamba1", "mamba2", "gated_delta_net", "kda", "lightning", "short_conv"}
"""Kinds with states of which it is known whether vLLM runs them."""
"""Kinds that vLLM's V1 engine does not run."""


class StateDtypes(NamedTuple):
    """Bytes per element of the states of a deployment."""

    conv: int
    recurrent: int | None
    """None: the kind's own default."""


def state_dtypes(model: ModelSpec, rules: Rules, *, conv: str = "auto", recurrent: str = "auto") -> StateDtypes:
    """Element sizes from flags, the architecture and the configuration, in this order.

    Args:
        conv: ``--mamba-cache-dtype``.
        recurrent: ``--mamba-ssm-cache-dtype``.
    """
    own = get_format(model.dtype).block_bytes
    conv_bytes = own if conv == "auto" else element_bytes(conv, "--mamba-cache-dtype")
    if recurrent != "auto":
        return StateDtypes(conv_bytes, element_bytes(recurrent, "--mamba-ssm-cache-dtype"))
    asked = get_format(model.recurrent_dtype).block_bytes if model.recurrent_dtype else None
    if model.architecture in NEMOTRON_H and rules.has("nemotron_state_fp16"):
        return StateDtypes(conv_bytes, asked or (_FP32 if rules.has("nemotron_state_fp32") else _FP16))
    if model.architecture in FROM_CONFIG and rules.has("config_state_dtype"):
        return StateDtypes(conv_bytes, asked)
    return StateDtypes(conv_bytes, None)


def recurrent_bytes(kind: str, dtypes: StateDtypes, rules: Rules) -> int:
    """Bytes per element of the recurrent state of one kind."""
    if kind == "kda":
        return dtypes.recurrent if dtypes.recurrent and rules.has("kda_state_dtype") else _FP32
    if kind == "gated_delta_net" and not rules.has("gdn_state_dtype"):
        return dtypes.conv
    if kind == "lightning" or dtypes.recurrent is None:
        return dtypes.conv
    return dtypes.recurrent


def state_bytes(mixer: CacheKind, dtypes: StateDtypes, rules: Rules, drafts: int) -> int:
    """Bytes of one state of a layer on the rank that `mixer` describes.

    Args:
        drafts: draft tokens per step; the convolution keeps a column for each.

    Raises:
        UnsupportedError: a kind that vLLM does not run.
    """
    if mixer.kind in NOT_SERVED:
        raise UnsupportedError(
            f"vLLM does not run {mixer.kind} layers", where="--engine vllm", hint="type --engine generic"
        )
    change = DRAFT_COLUMNS.get(mixer.kind, "")
    more = drafts if change is None or (change and rules.has(change)) else 0
    total = 0
    for state in mixer.states():
        if state.name == "recurrent":
            total += state.elements * recurrent_bytes(mixer.kind, dtypes, rules)
        else:
            total += state.channels * (state.columns + more) * dtypes.conv
    return total


def checkpoint_grid(mixer: CacheKind, architecture: str, gdn_backend: str, rules: Rules) -> int | None:
    """Tokens between checkpoints that a layer can export from inside a prefill; None: it exports none."""
    if mixer.kind == "mamba2" and rules.has("mamba2_checkpoint_block"):
        return 1
    if mixer.kind == "gated_delta_net" and gdn_backend == "flashinfer" and rules.has("gdn_checkpoint"):
        return GDN_GRID
    if mixer.kind == "kda" and rules.has("kda_prefill_checkpoint"):
        return KDA_CHECKPOINT.get(architecture)
    return None


def gdn_prefill_backend(capability: str, head_dims: set[int]) -> str:
    """``flashinfer`` or ``triton``: who computes the prefill of gated delta nets.

    FlashInfer on compute capability 9.0, and on 10.x and 12.x with CUDA 13 and 128-wide key heads.
    Source: vLLM 0.33.0 ``qwen_gdn_linear_attn.py``, ``_resolve_gdn_prefill_backend``.
    """
    if capability == "9.0" or (capability.partition(".")[0] in ("10", "12") and head_dims == {128}):
        return "flashinfer"
    return "triton"
