"""A model as YAML: short, in the order in which a person reads it, with layers written as patterns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from kvplan.spec.model import SCHEMA, ModelSpec

_ORDER = (
    "id", "name", "family", "repo", "aliases", "released", "license", "architecture", "source", "confidence",
    "published_parameters", "published_active_parameters", "parameters_note", "dtype", "recurrent_dtype", "checkpoint",
    "max_position_embeddings", "stated_positions", "rope", "hidden_size", "vocab_size", "tie_word_embeddings",
    "embedding_size", "position_embeddings", "final_norms", "tensors", "towers", "blocks", "layers", "draft_layers",
    "draft_tensors", "notes",
)  # fmt: skip
_WIDTH = 120
_PLAIN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9 _./()+-]*\Z")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))

Pattern = list[Any]
"""Block names, and (repeat, pattern) pairs."""


def dump_model(spec: ModelSpec) -> str:
    """The YAML file of `spec`: fields at their defaults are left out, everything else reads back equal."""
    data = _changed(spec)
    lines = [f"schema: {SCHEMA}"]
    for key in (*_ORDER, *(k for k in data if k not in _ORDER)):
        if key in data:
            lines += _entry(key, data[key], 0)
    return "\n".join(lines) + "\n"


def _changed(obj: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults; ``kind`` always, and first."""
    found: dict[str, Any] = {}
    for field in fields(obj):
        value = getattr(obj, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.name == "kind":
            found = {"kind": value, **found}
        elif default is MISSING or value != default:
            found[field.name] = value
    return found


def _entry(key: str, value: Any, indent: int) -> list[str]:
    """The lines of ``key: value``."""
    pad = "  " * indent
    if key in ("layers", "draft_layers") and isinstance(value, tuple):
        return [f"{pad}{key}:", *(f"{pad}  - {_pattern_text(entry)}" for entry in find_pattern(value))]
    plain = _plain(value)
    flow = _flow(plain)
    opened = key == "blocks" or (key in ("mixers", "ffns") and indent)
    if len(pad) + len(key) + len(flow) + 2 <= _WIDTH and not opened:
        return [f"{pad}{key}: {flow}"]
    if isinstance(plain, dict):
        lines = [f"{pad}{key}:"]
        for name, inner in plain.items():
            lines += _entry(name, inner, indent + 1)
        return lines
    if isinstance(plain, list):
        return [f"{pad}{key}:", *(line for item in plain for line in _item(item, indent + 1))]
    return [f"{pad}{key}: {flow}"]


def _item(value: Any, indent: int) -> list[str]:
    """The lines of one list entry; a mapping too long for a line is spread over several."""
    pad = "  " * indent
    flow = _flow(value)
    if not isinstance(value, dict) or len(pad) + len(flow) + 2 <= _WIDTH:
        return [f"{pad}- {flow}"]
    lines: list[str] = []
    for key, inner in value.items():
        lines += _entry(key, inner, indent + 1)
    lines[0] = f"{pad}- {lines[0].lstrip()}"
    return lines


def _plain(value: Any) -> Any:
    """Dataclasses and tuples as mappings and lists."""
    if hasattr(value, "__dataclass_fields__"):
        return {k: _plain(v) for k, v in _changed(value).items()}
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(v) for v in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return f"{value:.15f}".rstrip("0") if "e" in text else text
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if _PLAIN_TEXT.match(text) and text.lower() not in _WORDS and not text.endswith(" "):
        return text
    return '"' + "".join(_escaped(c) for c in text) + '"'


def _escaped(char: str) -> str:
    """A character inside YAML's double quotes; what does not print is written as its code."""
    if char in '"\\':
        return "\\" + char
    if char.isprintable() and char != "\ufeff":
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _pattern_text(entry: Any) -> str:
    if isinstance(entry, str):
        return _scalar(entry)
    times, inner = entry
    return f"{{repeat: {times}, of: [{', '.join(_pattern_text(e) for e in inner)}]}}"


def find_pattern(names: Sequence[str]) -> Pattern:
    """The shortest way to write a sequence with nested repetitions.

    Runs are folded first; then the cheapest of all splits and repetitions of what is left, where a name
    costs 1 and a repetition 1 more than its inside. Very long irregular sequences keep their runs only.
    """
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    if len(runs) > 160:
        return [_run(run) for run in runs]
    best: dict[tuple[tuple[str, int], ...], tuple[int, Pattern]] = {}
    return _shortest(tuple(runs), best)[1]


def _run(run: tuple[str, int]) -> Any:
    return run[0] if run[1] == 1 else (run[1], [run[0]])


def _shortest(
    runs: tuple[tuple[str, int], ...], best: dict[tuple[tuple[str, int], ...], tuple[int, Pattern]]
) -> tuple[int, Pattern]:
    """(cost, pattern) of a sequence of runs."""
    if runs in best:
        return best[runs]
    if len(runs) == 1:
        return (1 if runs[0][1] == 1 else 2), [_run(runs[0])]
    # one repetition from the left, then the rest: every split need not be tried
    found: tuple[int, Pattern] | None = None
    for period in range(1, len(runs) // 2 + 1):
        times = 1
        while runs[times * period : (times + 1) * period] == runs[:period]:
            times += 1
        if times > 1:
            cost, inside = _shortest(runs[:period], best)
            rest_cost, rest = _shortest(runs[times * period :], best) if times * period < len(runs) else (0, [])
            if found is None or cost + 1 + rest_cost < found[0]:
                found = cost + 1 + rest_cost, [(times, inside), *rest]
    alone, rest = _shortest(runs[1:], best)
    first = 1 if runs[0][1] == 1 else 2
    if found is None or first + alone < found[0]:
        found = first + alone, [_run(runs[0]), *rest]
    best[runs] = found
    return found
