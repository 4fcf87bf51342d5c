"""What a command line changes of the model itself: keys of its configuration, and the dtype that it runs in.

Engines derive the longest request that they accept from the configuration, and each has its own rule for a stretched
rotary embedding. A grammar brings that rule as a function; everything else here is the same for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.options import quoted
from kvplan.errors import InputError, printable

if TYPE_CHECKING:
    from kvplan.engines.command_line import Reading, Word
    from kvplan.spec.model import ModelSpec

_MOST = 1 << 40
NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
"""Where a configuration with encoders keeps its language model."""
_ROPE = ("rope_scaling", "rope_parameters")
_LENGTH = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length",
)  # fmt: skip
_NO_BEARING = (
    "rope_theta", "rotary_base", "partial_rotary_factor", "rotary_pct", "rope_local_base_freq", "attention_bias",
    "original_max_position_embeddings", "num_labels", "id2label", "label2id", "is_causal", "transformers_version",
)  # fmt: skip
"""Keys that change neither the cache nor the weights."""

DTYPES = {
    "half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32",
}  # fmt: skip
"""``--dtype`` of vLLM and SGLang -> storage.

Source: vLLM 0.33.0 ``vllm/config/model.py`` (``ModelDType``), SGLang 0.5.23 ``srt/server_args.py``."""


class Quantization(NamedTuple):
    """A weight format that the command asks for, where the model's name does not say one."""

    words: str
    """What asks for it."""
    format: str
    """Empty where kvplan has none for it."""
    always: bool = False
    """Whether the engine runs files of its own, so that the published checkpoint says nothing."""


class Rope(NamedTuple):
    """How positions are stretched, as the engine is told."""

    kind: str
    """``yarn``, ``linear``, ``llama3``, ...; ``default``: not at all."""
    factor: float = 1.0
    original: int = 0
    """Tokens before stretching; 0: not said."""


class ModelChanges(NamedTuple):
    """What the words of a command line change of its model."""

    words: str
    """The flags, for messages."""
    rope: Rope | None = None
    length: int = 0
    """In place of ``max_position_embeddings``; 0: left as it is."""
    legacy: bool = False
    """Whether a flag of old releases says so, whose rule then counts."""
    given: str = ""
    """The flag with its JSON, to repeat; empty: it cannot be."""


def read_json(text: Word, flag: str) -> dict[str, Any]:
    """The JSON object behind a flag.

    Raises:
        InputError: it is none, or nests without end, or stands in a variable that nobody sets.
    """
    if text.missing:
        raise InputError(text.missing, where=flag, hint="write the JSON there")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        example = '{"rope_type": "yarn", "factor": 4.0}' if "rope" in flag else '{"max_position_embeddings": 131072}'
        raise InputError(f"{printable(text, 40)!r} is not a JSON object", where=flag, hint=f"{flag} '{example}'")
    return found


def factor_rule(changes: ModelChanges, model: ModelSpec, version: str, asked: int) -> tuple[int, str]:
    """The longest context where the factor counts unless the rule says how long the context was before.

    Source: SGLang 0.5.23 ``srt/utils/hf_transformers/common.py``, ``get_context_length``.
    """
    length, rope = changes.length or model.stated_positions or model.max_position_embeddings or 0, changes.rope
    if rope is None:
        return length, ""
    return (length if rope.original or rope.kind == "llama3" else int(length * rope.factor)), ""


def factor_context(model: ModelSpec) -> int | None:
    """The longest context of a model by that rule; None: its configuration states none."""
    length, rope = model.stated_positions or model.max_position_embeddings, model.rope
    if not length or not rope or "original_max_position_embeddings" in rope or rope.get("type") == "llama3":
        return length
    return int(length * (rope.get("factor") or 1))


def json_flag(flag: str, data: Mapping[str, Any]) -> str:
    """A flag and its JSON object, as a shell takes them."""
    return f"{flag} {quoted(json.dumps(data))}"


def from_config(data: Mapping[str, Any], flag: str) -> tuple[ModelChanges | None, list[str]]:
    """(what replaced keys of a configuration change, the names of keys whose effect is not modelled).

    Raises:
        InputError: a rule or a length that no configuration has.
    """
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat.update(value if key in NESTED and isinstance(value, dict) else {key: value})
    rope = next((flat[key] for key in _ROPE if flat.get(key) is not None), None)
    lengths = [_count(flat[key], flag, key) for key in _LENGTH if flat.get(key) is not None]
    others = [key for key in flat if key not in (*_ROPE, *_LENGTH, *_NO_BEARING)]
    rule, length = _rope(rope, flag) if rope is not None else None, min(lengths, default=0)
    changes = ModelChanges(flag, rule, length, given=json_flag(flag, data))
    return (changes if changes.rope or changes.length else None), others


def _rope(value: Any, flag: str) -> Rope:
    if isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):  # by kind of layer
        value = value.get("full_attention") or next(iter(value.values()))
    kind = value.get("rope_type") or value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise InputError(
            "the rope rule has no rope_type", where=flag,
            hint='{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, for example',
        )  # fmt: skip
    factor, original = value.get("factor"), value.get("original_max_position_embeddings")
    if factor is not None and (
        isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1 << 20
    ):
        raise InputError(
            f"the rope factor {printable(str(factor), 40)} is not a number from 1 on", where=flag, hint='"factor": 4.0'
        )
    return Rope(kind, float(factor or 1), _count(original, flag, "original_max_position_embeddings") if original else 0)


def _count(value: Any, flag: str, key: str) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not 0 < value <= _MOST:
        raise InputError(
            f"{key} {printable(str(value), 40)} is not a number of tokens", where=flag, hint=f'"{key}": 131072'
        )
    return int(value)


def read_dtype(reading: Reading) -> str:
    """The storage that ``--dtype`` asks for; empty: as the checkpoint says. float32 makes unquantised weights so."""
    text = reading.other.get("--dtype")
    if text is None or (name := text.strip().lower().removeprefix("torch.")) == "auto":
        return ""
    if text.missing:
        reading.fail("weights", InputError(text.missing, where="--dtype", hint="write the dtype there"))
    elif name not in DTYPES:
        what = f"{printable(text, 40)!r} is no dtype"
        reading.fail("weights", InputError(what, where="--dtype", hint=f"one of auto, {', '.join(DTYPES)}"))
    elif DTYPES[name] == "fp32" and reading.quantization is None:
        reading.use("--dtype")
        reading.quantization = Quantization("--dtype float32", "fp32")
        reading.warnings.append("--dtype float32: activations in float32 are not modelled")
    return DTYPES.get(name, "")


def replaced_keys(reading: Reading, *flags: str) -> dict[str, Any]:
    """The keys that JSON flags replace, the later flags over the earlier; ``--flag.key VALUE`` too."""
    found: dict[str, Any] = {}
    for flag in flags:
        text = reading.use(flag)
        if text:
            _merge(found, read_json(text, flag))
        for name in [n for n in reading.other if n.startswith(f"{flag}.")]:
            value = reading.use(name) or ""
            part: Any = _scalar(value)
            for key in reversed(name[len(flag) + 1 :].split(".")[:8]):
                part = {key.replace("-", "_"): part}
            _merge(found, part)
    return found


def _scalar(text: str) -> Any:
    try:
        return json.loads(text) if len(text) < 1000 else text
    except (ValueError, RecursionError):
        return text


def _merge(into: dict[str, Any], data: dict[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def unmodelled(flag: str, keys: list[str]) -> str:
    """The warning about keys that are not modelled."""
    return f"{flag} {', '.join(printable(key, 40) for key in keys[:6])}: changes what the memory holds, not modelled"
