"""Version numbers of engines, and which rules a version takes that was not read."""

from __future__ import annotations

import pytest

from kvplan.engines import get_engine
from kvplan.engines.versions import at_least, version_key
from kvplan.errors import InputError


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("4.57.6", (4, 57, 6)), ("0.5.6.post1", (0, 5, 6)), ("0.5.6rc1", (0, 5, 6)), ("1.2rc1.9", (1, 2)), ("5", (5,)),
        ("", ()), ("x", ()), ("1..2", (1,)), ("0.1234567890", (0, 123_456_789)),
    ],
)  # fmt: skip
def test_what_is_no_number_ends_a_version(text: str, key: tuple[int, ...]) -> None:
    assert version_key(text) == key


def test_a_version_is_as_late_as_one_with_zeros_behind() -> None:
    assert at_least("5.0", "5.0.0")
    assert at_least("5.0.0", "5.0")
    assert at_least("5.0.1", "5.0")
    assert not at_least("5.0", "5.0.1")
    assert not at_least("4.99.9", "5")
    assert at_least("10.0", "9.9")


def test_versions_that_were_not_read() -> None:
    """Outside of what was read the nearest release's rules, in between those that had begun; each says so."""
    known = type(get_engine("sglang")).versions  # type: ignore[attr-defined]
    oldest, newest = known[0], known[-1]
    for asked, taken in (("0.0.1", oldest), ("99", newest), (newest + ".1", newest)):
        engine = get_engine(f"sglang@{asked}")
        assert engine.version == taken
        assert engine.warnings == (f"sglang {asked} was not read; the rules of {taken} are used",)
    for name in known:
        assert (get_engine(f"sglang@{name}").version, get_engine(f"sglang@{name}").warnings) == (name, ())
    key = version_key(oldest)
    between = ".".join(map(str, (*key[:-1], key[-1] + 1)))
    assert between not in known
    engine = get_engine(f"sglang@{between}")
    assert engine.version == between
    assert engine.warnings == (
        f"sglang {between} was not read; its rules follow from {oldest} and the releases after it",
    )
    with pytest.raises(InputError, match="not a version"):
        get_engine("sglang@x")
    with pytest.raises(InputError, match="not a version"):
        get_engine("sglang@0." + "1" * 39)
