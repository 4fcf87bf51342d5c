"""What the names of Ollama's public library stand for: default tags, their storage, and tags with names of their own.

Source: the model table in Ollama's README at cd0094f (2026-01-31) for default sizes, but for deepseek-r1 (8b since May
2025), and otherwise the library's pages (https://ollama.com/library) as remembered from that time, not fetched. The
library may move a tag to another model at any time, so every plan says what was taken.
"""

from __future__ import annotations

from typing import NamedTuple

DATE = "2026-01"


class Meaning(NamedTuple):
    """What a name of the library is."""

    tag: str
    """The tag, spelled out."""
    model: str
    """A name that the catalog may know; empty: a model of another shape."""
    format: str
    """How it is stored; empty: as its publisher stores it."""
    context: int = 0
    """Its longest context where that is not the catalog model's; 0: the same."""


_TABLE = """
    codellama        7b     q4_0    7b= 13b=
    command-a        111b   q4_k_m
    command-r7b      7b     q4_k_m  7b=command-r7b
    dbrx             132b   q4_0
    deepseek-r1      8b     q4_k_m  1.5b= 7b=qwen2.5-7b@131072 8b=qwen3-8b@131072 14b=qwen2.5-14b@131072
                                    32b=deepseek-r1-distill-qwen-32b 70b=deepseek-r1-distill-llama-70b 671b=deepseek-r1
                                    7b-qwen-distill=qwen2.5-7b@131072 8b-0528-qwen3=qwen3-8b@131072
                                    8b-llama-distill=llama-3.1-8b 14b-qwen-distill=qwen2.5-14b@131072
                                    32b-qwen-distill=deepseek-r1-distill-qwen-32b
                                    70b-llama-distill=deepseek-r1-distill-llama-70b 671b-0528=deepseek-r1
    deepseek-v2      16b    q4_0    16b=deepseek-v2-lite 236b=deepseek-v2
    deepseek-v3      671b   q4_k_m  671b=deepseek-v3
    deepseek-v3.1    671b   q4_k_m  671b=deepseek-v3.1
    devstral         24b    q4_k_m  24b=devstral-small-24b-2507
    devstral-2       123b   q4_k_m  123b=devstral-2-123b
    devstral-small-2 24b    q4_k_m  24b=devstral-small-2-24b
    exaone3.5        7.8b   q4_k_m
    falcon           7b     q4_0
    falcon3          7b     q4_k_m  7b=
    gemma            7b     q4_0
    gemma2           9b     q4_0
    gemma3           4b     q4_k_m  270m=gemma-3-270m/q8_0 270m-qat=gemma-3-270m/q4_0 1b-qat=gemma-3-1b/q4_0
                                    4b-qat=gemma-3-4b/q4_0 12b-qat=gemma-3-12b/q4_0 27b-qat=gemma-3-27b/q4_0
    gemma3n          e4b    q4_k_m
    gpt-oss          20b    -
    granite3.3       8b     q4_k_m
    granite4         micro  q4_k_m  micro=granite-4.0-micro 3b=granite-4.0-micro tiny-h=granite-4.0-h-tiny
                                    7b-a1b-h=granite-4.0-h-tiny small-h=granite-4.0-h-small
                                    32b-a9b-h=granite-4.0-h-small
    llama2           7b     q4_0
    llama3           8b     q4_0
    llama3.1         8b     q4_k_m
    llama3.2         3b     q4_k_m  1b=llama-3.2-1b/q8_0
    llama3.2-vision  11b    q4_k_m  11b=llama-3.2-11b-vision 90b=llama-3.2-90b-vision
    llama3.3         70b    q4_k_m
    llama4           scout  q4_k_m  16x17b=llama-4-scout 128x17b=llama-4-maverick
    ministral-3      8b     q4_k_m
    mistral          7b     q4_k_m  7b=mistral-7b-v0.3
    mistral-large    123b   q4_k_m  123b=mistral-large-2407
    mistral-nemo     12b    q4_0    12b=mistral-nemo-12b
    mistral-small    24b    q4_k_m  24b=mistral-small-24b-2501
    mistral-small3.1 24b    q4_k_m  24b=mistral-small-3.1-24b
    mistral-small3.2 24b    q4_k_m  24b=mistral-small-3.2-24b
    mixtral          8x7b   q4_0
    nemotron-3-nano  30b    q4_k_m  30b=nemotron-3-nano-30b-a3b
    olmo2            7b     q4_k_m
    phi              2.7b   q4_0    2.7b=phi-2
    phi3             3.8b   q4_0    3.8b=phi-3-mini-128k mini=phi-3-mini-128k 14b= medium=
    phi3.5           3.8b   q4_0    3.8b=phi-3.5-mini
    phi4             14b    q4_k_m  14b=phi-4
    phi4-mini        3.8b   q4_k_m  3.8b=phi-4-mini
    qwen             4b     q4_0    0.5b=qwen1.5-0.5b 1.8b=qwen1.5-1.8b 4b=qwen1.5-4b 7b=qwen1.5-7b 14b=qwen1.5-14b
                                    32b=qwen1.5-32b 72b=qwen1.5-72b 110b=qwen1.5-110b
    qwen2            7b     q4_0
    qwen2.5          7b     q4_k_m
    qwen2.5-coder    7b     q4_k_m  0.5b=qwen2.5-0.5b 1.5b=qwen2.5-1.5b 3b=qwen2.5-3b 7b=qwen2.5-7b 14b=qwen2.5-14b
                                    32b=qwen2.5-32b
    qwen2.5vl        7b     q4_k_m  3b=qwen2.5-vl-3b 7b=qwen2.5-vl-7b 32b=qwen2.5-vl-32b 72b=qwen2.5-vl-72b
    qwen3            8b     q4_k_m  4b=qwen3-4b-thinking-2507 30b=qwen3-30b-a3b-thinking-2507
                                    235b=qwen3-235b-a22b-thinking-2507
    qwen3-coder      30b    q4_k_m  30b=qwen3-coder-30b-a3b-instruct 480b=qwen3-coder-480b-a35b
    qwen3-next       80b    q4_k_m  80b=qwen3-next-80b-a3b
    qwen3-vl         8b     q4_k_m  30b=qwen3-vl-30b-a3b 235b=qwen3-vl-235b-a22b
    qwq              32b    q4_k_m
    smollm2          1.7b   q8_0    135m=smollm2-135m/fp16 360m=smollm2-360m/fp16
    starcoder2       3b     q4_0
    tinyllama        1.1b   q4_0
    yi               6b     q4_0
"""
"""Name, default tag, its storage (``-``: the publisher's own), then ``TAG=MODEL/STORAGE@CONTEXT`` where the catalog
does not know ``NAME:TAG`` by itself; no model: its shape is not in the catalog."""


def _rows() -> dict[str, tuple[str, str, dict[str, str]]]:
    """name -> (default tag, its storage, tag -> what it stands for)."""
    rows: dict[str, tuple[str, str, dict[str, str]]] = {}
    name = ""
    for line in _TABLE.splitlines():
        words = line.split()
        if words and "=" not in words[0]:
            name, tag, fmt, *words = words
            rows[name] = (tag, fmt.replace("-", ""), {})
        for word in words:
            tag, _, target = word.partition("=")
            rows[name][2][tag] = target
    return rows


def meaning(name: str, tag: str) -> Meaning | None:
    """What ``name:tag`` is in the library; None where this table does not have the name.

    Args:
        tag: without a quantisation; empty or ``latest``: the default one.
    """
    row = _rows().get(name)
    if row is None:
        return None
    default, fmt, tags = row
    tag = default if tag in ("", "latest") else tag
    target = tags.get(tag, f"{name}:{tag}")
    target, _, context = target.partition("@")
    target, _, stored = target.partition("/")
    return Meaning(tag, target, stored or fmt, int(context or 0))


def tag_of(model: str, stored: str) -> str:
    """The name in the library that stands for a model of the catalog in this storage; empty: none that is known.

    Args:
        model: the catalog's id.
        stored: a weight format.
    """
    for name, (default, _, tags) in _rows().items():
        bare = _letters(model).removeprefix(_letters(name))
        if bare == _letters(model):
            continue  # another family; its fine-tunes may have this one's shape
        known = [t for t in {default: "", **tags} if _stands_for(name, t, tags, model)]
        if bare not in map(_letters, tags):
            known += [word for word in model.split("-") if _letters(word) == bare]
        for tag in known:  # a model may be there twice, quantised otherwise
            if (found := meaning(name, tag)) is None or found.format in ("", stored):
                return f"{name}:{tag}"
    return ""


def _stands_for(name: str, tag: str, tags: dict[str, str], model: str) -> bool:
    target = tags.get(tag, "").partition("@")[0].partition("/")[0]
    return target == model if tag in tags else _letters(name + tag) == _letters(model)


def _letters(text: str) -> str:
    """Letters and digits alone: ``llama3.1:8b`` and ``llama-3.1-8b`` are one."""
    return "".join(c for c in text.lower() if c.isalnum())
