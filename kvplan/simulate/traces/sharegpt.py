"""ShareGPT-style JSON: an array of conversations, of which the lengths are taken.

A conversation is ``{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}, ...]}``. As
vLLM's benchmark does (``vllm/benchmarks/datasets``), the first two turns make a request: prompt and output. A turn's
length is its ``tokens`` where it has that, else its characters over `chars_per_token`: an estimate, and said so.
Objects with ``prompt_len`` and ``output_len`` (or ``prompt_tokens`` and ``output_tokens``) are taken as they are.
There are no times: all requests arrive at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.simulate.trace import Builder, length

if TYPE_CHECKING:
    from kvplan.simulate.trace import Trace
    from kvplan.simulate.traces import Reading
    from kvplan.simulate.traces.lines import Source

_LENGTHS = (("prompt_len", "output_len"), ("prompt_tokens", "output_tokens"))
_NAMES = frozenset({"conversations", "conversation", *(prompt for prompt, _ in _LENGTHS)})


def read(source: Source, reading: Reading) -> Trace:
    """The lengths of the conversations, in order."""
    made, estimated = Builder(strict=reading.strict, where=source.shown), 0
    for number, item in enumerate(source.objects(_NAMES), start=1):
        try:
            if isinstance(item, ValueError):
                raise item
            prompt, output, guessed = _lengths(item, reading.chars_per_token)
        except ValueError as error:
            made.refuse(f"conversation {number}", str(error))
            continue
        estimated += guessed
        made.add(0.0, prompt, output)
    found = made.build(source.path, "sharegpt", timed=False)
    if not estimated:
        return found
    note = f"lengths of {estimated:,} conversations are estimated: {reading.chars_per_token:g} characters a token"
    return replace(found, notes=(*found.notes, note))


def _lengths(item: Any, chars: float) -> tuple[int, int, bool]:
    """(prompt tokens, output tokens, whether they are estimates) of one element."""
    if not isinstance(item, dict):
        raise ValueError("is no JSON object")
    for prompt, output in _LENGTHS:
        if prompt in item:
            return length(item[prompt], prompt), length(item.get(output), output), False
    turns = item.get("conversations", item.get("conversation"))
    if not isinstance(turns, list) or len(turns) < 2:
        raise ValueError("has fewer than two turns")
    sizes, guessed = [], False
    for turn in turns[:2]:
        if isinstance(turn, dict) and "tokens" in turn:
            sizes.append(length(turn["tokens"], "tokens"))
            continue
        text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        if not isinstance(text, str) or not text:
            raise ValueError("has a turn without text")
        sizes.append(length(max(1, round(len(text) / chars)), "tokens"))
        guessed = True
    return sizes[0], sizes[1], guessed
