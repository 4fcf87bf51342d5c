"""How long a context vLLM takes: what it derives from the configuration and its rule of rotary positions, by version.

Source: vLLM 0.11.0 to 0.33.0 ``vllm/config/model.py``, ``_get_and_verify_max_len``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.engines.versions import at_least

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec

_NEVER_MULTIPLIED = ("su", "longrope", "llama3")
YARN = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Rules whose factor no longer multiplies since 0.30: the configuration counts it already."""
_YARN_SINCE, _LONGROPE_SINCE = "0.30.0", "0.12.0"


def _kind(rope: dict[str, Any]) -> str:
    return str(rope.get("type") or rope.get("rope_type") or "default")


def counts_factor(kind: str, family: str, version: str) -> bool:
    """Whether the factor of a rotary rule makes the context longer; never for Gemma 3."""
    if kind in _NEVER_MULTIPLIED or family.replace("-", "").startswith("gemma3"):
        return False
    return kind not in YARN or not at_least(version, _YARN_SINCE)


def derived(length: int, kind: str, factor: float, original: int, family: str, version: str) -> int:
    """The longest context of a rule.

    Args:
        length: tokens that the configuration states.
        original: tokens before stretching; 0: not said, which YaRN takes for `length`.
    """
    if not counts_factor(kind, family, version):
        return length
    return int((original if kind == "yarn" and original else length) * factor)


def longest(model: ModelSpec, version: str) -> int | None:
    """The longest context of a model; None: its configuration states none."""
    length, rope = model.stated_positions or model.max_position_embeddings, model.rope
    if not length or not rope:
        return length
    original, factor = rope.get("original_max_position_embeddings") or 0, rope.get("factor") or 1
    return derived(length, _kind(rope), factor, int(original), model.family, version)


def default(model: ModelSpec, version: str) -> int | None:
    """The context where nobody asks for one: with LongRoPE, since 0.12, the length before stretching."""
    found, rope = longest(model, version), model.rope
    if rope and _kind(rope) == "longrope" and at_least(version, _LONGROPE_SINCE):
        return int(rope.get("outer_original") or 0) or found
    return found
