"""The command line of Ollama: variables of ``ollama serve``, and the model of ``ollama run``.

Source: Ollama main of 2026-08-21, ``cmd/cmd.go`` and ``envconfig/config.go``.
"""

from __future__ import annotations

import re

from kvplan.engines.command_line import Grammar, Quantization, Reading, pick, words
from kvplan.engines.llama_cpp.flags import OLLAMA
from kvplan.engines.llama_cpp.flags import OPTIONS as LLAMA_CPP
from kvplan.engines.ollama import ENVIRONMENT
from kvplan.engines.options import Option
from kvplan.engines.vllm.flags import OPTIONS as COMMON
from kvplan.errors import printable

_OPTIONS: tuple[Option, ...] = (*OLLAMA, *pick(LLAMA_CPP, "flash_attn"), *pick(COMMON, "kv_cache_dtype"))
_FLAGS = {option.setting: option.flags[0] for option in _OPTIONS}


_QUANTISED = re.compile(r"[-:_](?:i?q[2-8]|fp16|bf16|f16|f32|mxfp4|nvfp4|int[48])", re.IGNORECASE)
FIRST_CHOICE = "q4_k_m"
"""How most models of Ollama's library are stored where a name does not say it."""


def settle(reading: Reading) -> None:
    """Words after the model are a prompt; a model of the Hugging Face hub has its address in front."""
    model = reading.model.removeprefix("hf.co/").removeprefix("huggingface.co/")
    if model and not _QUANTISED.search(model):
        note = f"{printable(model, 60)} does not say how it is quantised: taken as {FIRST_CHOICE}; or add --weights"
        if model.lower().endswith("-gguf"):
            model = f"{model}:{FIRST_CHOICE}"
            reading.warnings.append(note)
        else:
            reading.quantization = Quantization(f"ollama run {printable(model, 60)}", FIRST_CHOICE)
            reading.assumed = note
    reading.model = model
    reading.unknown = [word for word in reading.unknown if word.startswith(("-", "$"))]


GRAMMAR = Grammar(
    engine="ollama",
    programs={"ollama": ("serve", "start", "run", "pull")},
    images=("ollama/ollama",),
    options=_OPTIONS,
    positional=True,
    switches=words("verbose insecure nowordwrap hidethinking think-verbose truncate experimental"),
    values=words("keepalive format dimensions"),
    maybe=words("think"),
    not_values={
        ("num_parallel", "0"): "left to Ollama, which takes its default",
        ("num_ctx", "0"): "left to Ollama, which goes by the memory",
    },
    environment={name: _FLAGS[setting] for name, setting in ENVIRONMENT.items()},
    variables=("OLLAMA_",),
    settle=settle,
)
"""How Ollama is started."""
