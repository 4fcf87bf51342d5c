"""Flags that an engine does not know: slips of the hand, which it refuses, and what may be newer than kvplan."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from kvplan.engines.command_line import flag_table
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.engines.command_line import Grammar, Reading

SLIP, LIKE = 0.9, 0.7
"""Likeness (`difflib`) from which on a flag is taken for a slip, and from which on another one is named."""


def judge(reading: Reading, grammar: Grammar, version: str) -> tuple[str, ...]:
    """What is unknown, with the nearest flags; a flag that the engine's parser is known to refuse becomes a problem.

    A release whose flags are all in the tables refuses every other one. Where the release is not named, it may be
    newer than the tables: then only what is spelled nearly as a flag is refused.

    Args:
        version: the release, as the source says it; empty: it does not.
    """
    unknown = []
    for shown in reading.unknown:
        flag = next((flag for flag, text in reading.strange.items() if text == shown), "")
        near = _near(grammar, flag, LIKE) if flag else []
        unknown.append(f"{shown} (did you mean {' or '.join(near)}?)" if near else shown)
        if flag and _refuses(grammar, version, flag):
            hint = f"did you mean {', '.join(near)}?" if near else "leave it out"
            error = InputError(f"{grammar.engine} has no such flag, and does not start with it", where=shown, hint=hint)
            entry = flag_table(grammar)[near[0]] if near else None
            option = entry.option if entry is not None else None
            reading.fail(option.setting if option is not None else "max_model_len", error)
    return tuple(unknown)


def _refuses(grammar: Grammar, version: str, flag: str) -> bool:
    """Whether it is known that the engine's parser does not take a flag."""
    if not grammar.complete:
        return False
    from kvplan.engines import get_engine
    from kvplan.engines.versions import at_least

    if version[:1].isdigit():
        return at_least(version, grammar.complete) and at_least(get_engine(grammar.engine).version, version)
    return bool(_near(grammar, flag, SLIP))


def _near(grammar: Grammar, flag: str, likeness: float) -> list[str]:
    """The flags of an engine that are spelled nearly as `flag`, nearest first."""
    known = sorted(name for name in flag_table(grammar) if name.startswith("--") == flag.startswith("--"))
    return get_close_matches(flag, known, 3, likeness)
