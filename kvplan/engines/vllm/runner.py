"""Which model runner serves a deployment, and how many batches it has in flight.

Source: vLLM 0.22.0 to 0.33.0 ``vllm/config/vllm.py``: ``use_v2_model_runner``, ``_is_default_v2_model_runner_model``,
``_get_v2_model_runner_unsupported_features``, ``max_concurrent_batches`` and the rules for asynchronous scheduling in
``__post_init__``. Every release was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.vllm import speculation
from kvplan.engines.vllm.layers import has_states, mamba_mode
from kvplan.engines.vllm.versions import Rules

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.engines.vllm.versions import Version
    from kvplan.spec.model import ModelSpec

_V2_0_25 = frozenset({"DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM"})
_V2_0_26 = _V2_0_25 | {"InklingForCausalLM", "InklingForConditionalGeneration", "LongcatFlashNgramForCausalLM"}
_V2_0_27 = _V2_0_26 | {"KimiK3ForConditionalGeneration"}
V2_BY_NAME: tuple[tuple[Version, frozenset[str]], ...] = (
    ((0, 28, 0), _V2_0_27 | {"DeepseekV4ForCausalLM"}),
    ((0, 27, 0), _V2_0_27),
    ((0, 26, 0), _V2_0_26),
    ((0, 25, 0), _V2_0_25),
    ((0, 24, 0), _V2_0_25 | {"Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"}),
    ((0, 23, 0), frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"})),
    ((0, 22, 0), frozenset({"Qwen3ForCausalLM"})),
)
"""Architectures that run on the V2 runner by default: ``DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES``, newest first. In
0.22 and 0.23 only without quantised weights; from 0.25 every dense model without states does besides."""
V2_WHEN_QUANTISED: Version = (0, 24, 0)
V2_FOR_DENSE: Version = (0, 25, 0)
V2_NAMES_BEFORE_STATES: Version = (0, 27, 0)
"""From here an architecture of the list runs there though it has states."""
V2_FOR_ALL: Version = (0, 29, 0)
V1_ON_ROCM: tuple[tuple[Version, frozenset[str]], ...] = (
    ((0, 32, 0), frozenset()),
    ((0, 30, 0), frozenset({"DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM"})),
    ((0, 29, 0), frozenset({"DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM"})),
    ((0, 28, 0), frozenset({"DeepseekV4ForCausalLM"})),
)
"""Architectures that stay on the V1 runner on AMD devices: ``ROCM_DEFAULT_MRV1_ARCHITECTURES``; in 0.28
``default_v2_model_runner_architectures``. Newest first."""
_V1_0_33 = frozenset({"suffix", "custom_class"})
_V1_0_32 = _V1_0_33 | {"medusa", "mlp_speculator"}
_V1_0_31 = _V1_0_32 | {"ngram", "ngram_gpu"}
_V1_0_30 = _V1_0_31 | {"draft_model"}
V1_DRAFTS: tuple[tuple[Version, frozenset[str]], ...] = (
    ((0, 33, 0), _V1_0_33),
    ((0, 32, 0), _V1_0_32),
    ((0, 31, 0), _V1_0_31),
    ((0, 25, 0), _V1_0_30),
    ((0, 24, 0), _V1_0_30 | {"dspark"}),
    ((0, 22, 0), _V1_0_30 | {"dspark", "dflash"}),
)
"""Methods of drafting that the V2 runner does not have, newest first."""
DSPARK_NEEDS_V2: Version = (0, 25, 0)
"""From here ``dspark`` runs under V2 whatever the model."""
MIXED_DFLASH_NEEDS_V2: Version = (0, 26, 0)
"""From here a ``dflash`` draft of windowed and other layers does too."""
EAGLE3_STAGES_IN_V2: Version = (0, 30, 0)
V1_FOR_MODE_ALL: tuple[Version, Version] = ((0, 30, 0), (0, 32, 0))
"""Releases (from, before) whose V2 runner does not keep a state per block (``--mamba-cache-mode all``)."""
V1_UNTIL: dict[str, Version] = {
    "enable_elastic_ep": (0, 32, 0), "kv_sharing_fast_prefill": (0, 30, 0), "enable_prompt_embeds": (0, 29, 0),
    "enable_return_routed_experts": (0, 28, 0), "enable_dbo": (0, 30, 0), "logits_processors": (0, 31, 0),
    "ec_transfer_config": (0, 28, 0),
}  # fmt: skip
"""Setting -> the first release whose V2 runner has it."""
RAW_LOGPROBS = ("raw_logits", "processed_logits")
RAW_LOGPROBS_IN_V2: Version = (0, 26, 0)
HETEROGENEOUS_IN_V1: Version = (0, 32, 0)
"""From here drafts of another vocabulary need the V1 runner (before, all ``draft_model`` drafts but 0.31's do)."""
ASYNC_DRAFTS = ("mtp", "gemma4_mtp", "eagle", "eagle3", "dflash", "ngram_gpu", "dspark")
"""Methods beside which steps are scheduled ahead; ``draft_model`` since `ASYNC_DRAFT_MODEL`."""
ASYNC_DRAFT_MODEL: Version = (0, 28, 0)
ASYNC_BY_RUNNER: Version = (0, 33, 0)
"""From here only the V1 runner cannot schedule ahead beside the other methods."""
OTHER_DEVICE = "0.0"
"""The compute capability of a device that is none of NVIDIA's."""


def runner(model: ModelSpec, settings: Settings, version: Version) -> int:
    """1 or 2: which model runner serves it. ``VLLM_USE_V2_MODEL_RUNNER`` is the setting ``model_runner``.

    Args:
        model: with the draft layers that run.
    """
    asked = settings.extra.get("model_runner")
    if asked in (1, 2):
        return int(asked)
    if version < V2_BY_NAME[-1][0]:
        return 1
    spoken = speculation.of(settings)
    if version < V2_FOR_ALL:
        if spoken is not None and _needs_v2(model, spoken.method, version):
            return 2
        if not _by_default(model, settings, version):
            return 1
    elif _at(V1_ON_ROCM, version, model, settings):
        return 1
    return 1 if _lacking(model, settings, version) else 2


def batches_in_flight(model: ModelSpec, settings: Settings, version: Version) -> int:
    """Steps that are scheduled and not yet settled at most: ``max_concurrent_batches``."""
    which, stages = runner(model, settings, version), settings.pipeline_parallel_size
    if not _schedules_ahead(settings, version, which):
        return stages
    if which == 2:
        return stages + 1
    return 2 if stages == 1 else stages


def _schedules_ahead(settings: Settings, version: Version, which: int) -> bool:
    """Whether a step is scheduled before the last one is settled (``--no-async-scheduling`` turns that off)."""
    if settings.extra.get("async_scheduling") is False:
        return False
    spoken = speculation.of(settings)
    if spoken is None or (which == 2 and version >= ASYNC_BY_RUNNER):
        return True
    if speculation.asks(settings, "disable_padded_drafter_batch"):
        return False
    return spoken.method in ASYNC_DRAFTS or (spoken.method == "draft_model" and version >= ASYNC_DRAFT_MODEL)


def _at(
    table: tuple[tuple[Version, frozenset[str]], ...], version: Version, model: ModelSpec, settings: Settings
) -> bool:
    """Whether `table` names the architecture, on a device that is none of NVIDIA's."""
    if settings.extra.get("compute_capability") != OTHER_DEVICE:
        return False
    return model.architecture in _row(table, version)


def _row(table: tuple[tuple[Version, frozenset[str]], ...], version: Version) -> frozenset[str]:
    """The names of a table, newest release first, that hold for `version`."""
    return next((names for since, names in table if version >= since), frozenset())


def _needs_v2(model: ModelSpec, method: str, version: Version) -> bool:
    """Whether drafts need the V2 runner, though the model's default were the other one."""
    if method == "dspark":
        return version >= DSPARK_NEEDS_V2
    if method != "dflash" or version < MIXED_DFLASH_NEEDS_V2:
        return False
    windowed = {
        any(s.window is not None for m in model.blocks[name].mixers for s in m.streams()) for name in model.draft_layers
    }
    return len(windowed) == 2


def _by_default(model: ModelSpec, settings: Settings, version: Version) -> bool:
    """Whether the V2 runner is the default for this model, before 0.29."""
    if _at(V1_ON_ROCM, version, model, settings):
        return False
    named = model.architecture in _row(V2_BY_NAME, version)
    if version < V2_WHEN_QUANTISED:
        own = "bf16" if model.checkpoint is None else model.checkpoint.format
        return named and (own if settings.weights == "auto" else settings.weights) in ("bf16", "fp16", "fp32")
    if version < V2_FOR_DENSE:
        return named
    if has_states(model):
        return named and version >= V2_NAMES_BEFORE_STATES
    experts = any(getattr(f, "experts", 0) for name in model.layer_counts for f in model.blocks[name].ffns)
    return named or not experts


def _lacking(model: ModelSpec, settings: Settings, version: Version) -> bool:
    """Whether something is asked for that the V2 runner of this release does not have."""
    extra, spoken = settings.extra, speculation.of(settings)
    if spoken is not None:
        method = spoken.method
        if method in _row(V1_DRAFTS, version):
            return True
        if method == "eagle3" and settings.pipeline_parallel_size > 1 and version < EAGLE3_STAGES_IN_V2:
            return True
        if method not in ("dflash", "dspark") and speculation.asks(settings, "parallel_drafting"):
            return True
        if version >= HETEROGENEOUS_IN_V1 and speculation.asks(settings, "use_heterogeneous_vocab"):
            return True
    if any(extra.get(name) and version < until for name, until in V1_UNTIL.items()):
        return True
    if extra.get("logprobs_mode") in RAW_LOGPROBS and version < RAW_LOGPROBS_IN_V2:
        return True
    since, before = V1_FOR_MODE_ALL
    if extra.get("mamba_cache_mode") != "all" or not since <= version < before:
        return False
    return mamba_mode(model, settings, Rules(".".join(map(str, version)))) == "all"
