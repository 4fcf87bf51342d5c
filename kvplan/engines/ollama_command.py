"""The command line of Ollama: variables of ``ollama serve``, and the model of ``ollama run``.

Source: Ollama main of 2026-08-21, ``cmd/cmd.go`` and ``envconfig/config.go``.
"""

from __future__ import annotations

from kvplan.engines.command_line import Grammar, Reading, pick, words
from kvplan.engines.llama_cpp.flags import OPTIONS as LLAMA_CPP
from kvplan.engines.llama_cpp.flags import OLLAMA
from kvplan.engines.ollama import ENVIRONMENT
from kvplan.engines.options import Option
from kvplan.engines.vllm.flags import OPTIONS as COMMON

_OPTIONS: tuple[Option, ...] = (*OLLAMA, *pick(LLAMA_CPP, "flash_attn"), *pick(COMMON, "kv_cache_dtype"))
_FLAGS = {option.setting: option.flags[0] for option in _OPTIONS}


def settle(reading: Reading) -> None:
    """Words after the model are a prompt."""
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
