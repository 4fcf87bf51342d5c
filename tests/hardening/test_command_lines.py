"""A short slice of what `command_lines` does for hours: whatever is typed, an answer or one line that says why not."""

from __future__ import annotations

from collections import Counter

import pytest
from command_lines import Ran, commands, failures, fault
from command_values import BY_NAME, BY_PLACEHOLDER

from kvplan.cli.app import VERBS

FINE = Ran(2, b"", "error: a\nhint: b\n", 0.1, 0, "", False)


def test_any_command_line_is_answered_or_refused_in_one_line() -> None:
    tally: Counter[str] = Counter()
    found = [
        f"{which}: {why}\n{words}" for which, why, words in failures(1500, seed=1, tally=tally) if "after" not in why
    ]
    assert found == []
    assert tally["status 0"] > 150
    assert tally["status 1"] > 20
    assert tally["status 2"] > 500


def test_every_verb_and_every_placeholder_has_values() -> None:
    known = commands()
    assert {command.words[0] for command in known} == set(VERBS)
    placeholders = {f.placeholder for c in known for f in (*c.arguments, *c.options) if not f.is_switch}
    assert placeholders <= set(BY_PLACEHOLDER), placeholders - set(BY_PLACEHOLDER)
    names = {name for command in known for option in command.options for name in option.names}
    assert set(BY_NAME) <= names, set(BY_NAME) - names


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"status": 3}, "status 3"),
        ({"raised": "Hangs: "}, "raised Hangs"),
        ({"err": "error: internal error: KeyError: 'a'\n"}, "internal error"),
        ({"err": "error: a\nhint: b\nhint: c\n"}, "standard error"),
        ({"err": "error: a\n\x1b[1m\n"}, "unprintable"),
        ({"err": ""}, "standard error"),
        ({"out": b"half"}, "standard output"),
        ({"changed": True}, "a file has changed"),
        ({"seconds": 9.0}, "after 9.0 s"),
        ({"grown_bytes": 1 << 30}, "bytes"),
        ({"status": 0, "out": b'{"a": NaN}', "err": ""}, "no JSON"),
    ],
)
def test_what_a_command_line_may_not_do_is_a_failure(how: dict[str, object], said: str) -> None:
    assert fault(["plan", "--json"], FINE) == ""
    assert said in fault(["plan", "--json"], FINE._replace(**how))  # type: ignore[arg-type]
