"""The command line of Ollama: variables of ``ollama serve``, and the model of ``ollama run``.

Source: Ollama main of 2026-08-21, ``cmd/cmd.go`` and ``envconfig/config.go``.
"""

from __future__ import annotations

import re

from kvplan.engines.command_line import Grammar, Reading, pick, words
from kvplan.engines.llama_cpp.flags import OLLAMA
from kvplan.engines.llama_cpp.flags import OPTIONS as LLAMA_CPP
from kvplan.engines.model_changes import ModelChanges, Quantization
from kvplan.engines.ollama import ENVIRONMENT
from kvplan.engines.ollama_library import DATE, meaning
from kvplan.engines.options import Option
from kvplan.engines.vllm.flags import OPTIONS as COMMON
from kvplan.errors import InputError, printable

_OPTIONS: tuple[Option, ...] = (*OLLAMA, *pick(LLAMA_CPP, "flash_attn"), *pick(COMMON, "kv_cache_dtype"))
_FLAGS = {option.setting: option.flags[0] for option in _OPTIONS}


_QUANTISED = re.compile(r"[-:_](i?q[2-8]\w*|fp16|bf16|f16|f32|mxfp4|nvfp4|int[48])\Z", re.IGNORECASE)
FIRST_CHOICE = "q4_k_m"
"""How most models of Ollama's library are stored where neither a name nor the library's table says it."""
SHOW = "`ollama show NAME --modelfile` prints the path of its file (FROM): kvplan plan PATH"
"""How to plan a model that is on this machine and in no catalog."""


def settle(reading: Reading) -> None:
    """Words after the model are a prompt; a model of the Hugging Face hub has its address in front."""
    reading.unknown = [word for word in reading.unknown if word.startswith(("-", "$"))]
    model = reading.model.removeprefix("hf.co/").removeprefix("huggingface.co/")
    model = model.removeprefix("registry.ollama.ai/").removeprefix("library/")
    if not model:
        return
    reading.model = model
    found = _QUANTISED.search(model)
    if "/" not in model:
        _library(reading, model[: found.start()] if found else model, found.group(1).lower() if found else "")
    elif not found:
        note = f"{printable(model, 60)} does not say how it is quantised: taken as {FIRST_CHOICE}; or add --weights"
        if model.lower().endswith("-gguf"):
            reading.model = f"{model}:{FIRST_CHOICE}"
            reading.warnings.append(note)
        else:
            reading.quantization = Quantization(f"ollama run {printable(model, 60)}", FIRST_CHOICE, True)
            reading.assumed = note


def _library(reading: Reading, model: str, stored: str) -> None:
    """A name of the public library: its default tag, and what its tags stand for.

    Raises:
        InputError: a tag whose model has a shape that nobody here knows.
    """
    name, _, tag = model.lower().partition(":")
    shown = printable(reading.model, 60)
    tag = re.sub(r"-(?:instruct|chat|text|it|base|thinking|code)(?=-|\Z)", "", tag)
    if tag.endswith("cloud"):
        raise InputError("runs in Ollama's cloud, not on a GPU of yours", where=shown, hint=f"ollama run {name}")
    known = meaning(name, tag)
    if known is None:
        if not stored:
            reading.quantization = Quantization(f"ollama run {shown}", FIRST_CHOICE, True)
            reading.assumed = f"{shown} does not say how it is quantised: taken as {FIRST_CHOICE}; or add --weights"
        return
    if not known.model:
        raise InputError(f"the catalog has no model of the shape of {name}:{known.tag}", where=shown, hint=SHOW)
    reading.model = known.model
    if known.context:
        reading.changes = ModelChanges(f"ollama run {shown}", None, known.context)
    if stored or known.format:
        reading.quantization = Quantization(
            f"ollama run {shown}", {"f16": "fp16", "f32": "fp32"}.get(stored, stored) or known.format, True
        )
    if not stored:
        same = "" if known.model == f"{name}:{known.tag}" else f", planned as {known.model}"
        tag = "" if shown == f"{name}:{known.tag}" else f" {name}:{known.tag}"
        how = f"is{tag} in {known.format or 'its own format'} in Ollama's library as of {DATE}"
        note = f"{shown} {how}{same}; or add --weights"
        reading.assumed = note if known.format else ""
        reading.warnings += [] if known.format else [note]


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
