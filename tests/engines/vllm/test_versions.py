"""Releases and their rules: where a rule may begin, and which rules a version takes that nobody read."""

from __future__ import annotations

import pytest

from kvplan.engines import get_engine
from kvplan.engines.vllm.versions import CHANGES, LATEST, RELEASES, Rules, nearest, parse
from kvplan.errors import InputError


def test_releases_are_in_order_and_named_as_they_are_read() -> None:
    read = [parse(name) for name in RELEASES]
    assert read == sorted(set(read))
    assert [".".join(map(str, version)) for version in read] == list(RELEASES)
    assert RELEASES[-1] == LATEST


@pytest.mark.parametrize("name", CHANGES)
def test_a_rule_begins_with_a_release_that_was_read_after_one_without_it(name: str) -> None:
    """What began between two releases that were read shows first in the later one: no rule can begin elsewhere."""
    since = [release for release in RELEASES if parse(release) == CHANGES[name].since]
    assert len(since) == 1
    assert RELEASES.index(since[0]) > 0, "what the oldest release has is no change"
    assert [Rules(release).has(name) for release in RELEASES] == [
        RELEASES.index(release) >= RELEASES.index(since[0]) for release in RELEASES
    ]


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.24.0", "0.24.0"), ("0.24.1", "0.24.0"), ("0.23.9", "0.23.0"), ("0.20.1", "0.20.1"), ("0.20.2", "0.20.1"),
        ("0.20", "0.20.0"), ("v0.33.0", "0.33.0"), ("0.33.7", "0.33.0"), ("1", "0.33.0"), ("1.0", "0.33.0"),
        ("0.10.2", "0.11.0"), ("0.1", "0.11.0"), ("0.11.0", "0.11.0"),
    ],
)  # fmt: skip
def test_a_version_takes_the_latest_rules_that_are_not_newer(text: str, release: str) -> None:
    found, warning = nearest(text)
    assert found == release
    assert (warning is None) is (parse(text) == parse(release))


@pytest.mark.parametrize(
    ("typed", "titled", "said"),
    [("0.5", "0.11.0", "vLLM 0.5 is not known; the rules of 0.11.0"), ("9.9", "0.33.0", "the rules of 0.33.0 are"),
     ("0.10.2", "0.10.2", "the cache of vLLM 0.10.2 is laid out by the rules of 0.11.0"), ("0.11.0", "0.11.0", "")],
)  # fmt: skip
def test_an_engine_is_called_by_the_release_whose_rules_it_goes_by(typed: str, titled: str, said: str) -> None:
    engine = get_engine(f"vllm@{typed}")
    assert engine.version == titled
    assert said in " ".join(engine.warnings)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.27.0", (0, 27, 0)), ("0.27", (0, 27, 0)), ("V0.27.3", (0, 27, 3)), (" 0.27.3 ", (0, 27, 3)),
        ("0.27.3.4", (0, 27, 3)), ("0.27.1rc2", (0, 27, 1)), ("0.27rc1.3", (0, 27, 0)), ("0.27.rc1", (0, 27, 0)),
        ("0.27.0+cu128", (0, 27, 0)), ("1", (1, 0, 0)), ("0.9999.1", (0, 9999, 1)), ("0.0", (0, 0, 0)),
    ],
)  # fmt: skip
def test_versions_are_read_to_the_patch(text: str, version: tuple[int, int, int]) -> None:
    assert parse(text) == version


@pytest.mark.parametrize("text", ["", "0", "x", "1.", "1.x", "v", ".1", "10000", "latest", "0.x"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a vLLM version"):
        parse(text)
