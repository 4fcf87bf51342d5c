"""What is meant by words that a command does not have: an engine's own flags, a line without quotes, a bare GPU."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.errors import printable

ENGINE_ONLY = ("hf-overrides", "rope-scaling", "rope-theta", "override-kv", "json-model-override-args")
"""Flags of engines that change the model, which kvplan reads in an engine's own line alone."""


def belongs_to_a_line(typed: str) -> bool:
    """Whether `typed` is a flag that an engine's command line may have and kvplan's own may not."""
    return typed.lstrip("-").lower() in ENGINE_ONLY


def before_quotes(words: Sequence[str]) -> bool:
    """Whether words begin an engine's command line that was typed without quotes around it."""
    return words[0] in ("llama-server", "trtllm-serve") or (
        words[0] in ("vllm", "ollama", "python", "python3", "sglang") and words[1] in ("serve", "run", "-m")
    )


def extra_word(path: str, words: Sequence[str]) -> str:
    """What to type in place of an argument too many, where that can be told; else empty."""
    from kvplan.catalog import resolve_gpu_name
    from kvplan.errors import KvplanError

    for word in words[1:]:
        try:
            found = resolve_gpu_name(word)
        except KvplanError:
            found = word
        if found:
            return f"an accelerator is named with a flag: {path} {printable(words[0], 60)} --gpu {printable(word, 60)}"
    return ""
