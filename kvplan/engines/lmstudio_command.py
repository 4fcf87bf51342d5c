"""The command line of LM Studio: ``lms load``.

Source: lms main of 2026-08-13 (07b7252), ``src/subcommands/load.ts``, ``src/createClient.ts``, ``src/logLevel.ts``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from kvplan.engines.command_line import Grammar, Reading, pick, words
from kvplan.engines.llama_cpp.flags import LMSTUDIO
from kvplan.engines.llama_cpp.flags import OPTIONS as LLAMA_CPP
from kvplan.engines.model_changes import Quantization
from kvplan.engines.vllm.flags import OPTIONS as COMMON
from kvplan.errors import printable

if TYPE_CHECKING:
    from kvplan.engines.base import Settings

FIRST_CHOICE = "q4_k_m"
"""How most files that LM Studio offers first are stored, where the model's key does not say it."""
_QUANTISED = re.compile(r"[-@:_](i?q[2-8]\w*|fp16|bf16|f16|f32|mxfp4|nvfp4)\Z", re.IGNORECASE)
_SETTINGS = {
    "cache_type_k": "llamaKCacheQuantizationType", "cache_type_v": "llamaVCacheQuantizationType",
    "separate_caches": "useUnifiedKvCache", "flash_attn": "flashAttention", "batch_size": "evalBatchSize",
    "ubatch_size": "physicalBatchSize", "kv_offload": "offloadKVCacheToGpu",
}  # fmt: skip
"""Setting -> load setting that the command line does not take, by its name in lmstudio-js."""


def settle(reading: Reading) -> None:
    """A key that does not say how its file is stored gets what is offered first; a checkpoint of 4 bits stays."""
    found = _QUANTISED.search(reading.model)
    if found and "@" in reading.model:
        reading.model = f"{reading.model[: found.start()]}-{found.group(1)}"
    elif reading.model and not found:
        shown = printable(reading.model, 60)
        note = f"{shown} does not say how it is quantised: taken as {FIRST_CHOICE}; or add --weights"
        if reading.model.lower().endswith("-gguf"):
            reading.model = f"{reading.model}:{FIRST_CHOICE}"
            reading.warnings.append(note)
        else:
            reading.quantization, reading.assumed = Quantization(f"a file of {FIRST_CHOICE}", FIRST_CHOICE), note


class Load(NamedTuple):
    """What starts a model in LM Studio."""

    line: str
    beside: str


def load(settings: Settings, name: str) -> Load | None:
    """``lms load``, and the load settings that it does not take; None: LM Studio has none for one that was given.

    Args:
        name: the model's key, as one word of a shell.
    """
    extra = settings.extra
    given = {k: v for k, v in extra.items() if k not in settings.defaults and v is not None}
    parts = ["lms load", name, f"--context-length {settings.max_model_len}", f"--parallel {extra['parallel']}"]
    if "gpu_offload" in given:
        parts.append(f"--gpu {given.pop('gpu_offload')}")
    for setting in ("parallel", "ctx_size"):
        given.pop(setting, None)
    if "kv_cache_dtype" not in settings.defaults:
        k, _, v = settings.kv_cache_dtype.partition(",")
        given |= {"cache_type_k": k, "cache_type_v": v or k}
    if not given.keys() <= _SETTINGS.keys():
        return None
    beside = [f"{_SETTINGS[setting]} {_value(setting, value)}" for setting, value in sorted(given.items())]
    return Load(" ".join(parts), f"with the model's load settings {', '.join(beside)}" if beside else "")


def _value(setting: str, value: object) -> str:
    if setting == "separate_caches":
        return str(not value).lower()
    return str(value).lower() if isinstance(value, bool) else str(value)


GRAMMAR = Grammar(
    engine="lmstudio",
    programs={"lms": ("load",)},
    options=(*LMSTUDIO, *pick(LLAMA_CPP, "parallel"), *pick(COMMON, "max_model_len")),
    aliases={"--context-length": "max_model_len", "-c": "max_model_len", "--gpu": "gpu_offload"},
    positional=True,
    switches=words("""
        -y exact estimate-only local quiet speculative-draft-mtp speculative-draft-simple verbose yes
    """),
    values=words("""
        host identifier log-level port speculative-draft-max-tokens speculative-draft-min-continue-probability
        speculative-draft-min-tokens speculative-draft-model ttl
    """),
    unmodelled=words("speculative-draft-model speculative-draft-mtp speculative-draft-simple"),
    settle=settle,
)
"""How a model is loaded in LM Studio."""
