"""Words out of shell text: as `shlex` splits them, with variables only from the text itself."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import KvplanError
from kvplan.sources.commands import raw
from kvplan.sources.commands.script import Script
from kvplan.sources.commands.shell import Scope, split


def words_of(text: str) -> list[list[str]]:
    """The words of every command in a script, unknown values as they are written."""
    return [[raw.plain(word) for word in command.words] for command in Script(text, "x.sh").commands]


def unknown_in(text: str) -> list[str]:
    """Why words are not known, over all commands."""
    words = [raw.word(word) for command in Script(text, "x.sh").commands for word in command.words]
    return [word.missing for word in words if word.missing]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a 'b c' \"d e\" f\\ g", ["a", "b c", "d e", "f g"]),
        ("a --x='{\"k\": [1, 2]}' # no", ["a", '--x={"k": [1, 2]}']),
        ("a \\\n  b\\\n c", ["a", "b", "c"]),
        ("a x#y '' \"\"", ["a", "x#y", "", ""]),
        ("a\tb\r\n", ["a", "b"]),
        ('a "b\\"c\\$d\\e"', ["a", 'b"c$d\\e']),
        ("a 2>&1 >log b </dev/null", ["a", "b"]),
        ("a $ $'x' ${", None),
    ],
)
def test_quotes_comments_and_continuations(text: str, words: list[str] | None) -> None:
    if words is None:
        with pytest.raises(KvplanError, match="does not end"):
            words_of(text)
    else:
        assert words_of(text) == [words]


@given(st.text(alphabet="ab \t'\"\\=-{}:,.\n", max_size=40))
@settings(max_examples=300, deadline=None)
def test_splits_as_shlex_does(text: str) -> None:
    try:
        expected = shlex.split(text)
    except ValueError:
        return
    # a backslash before a newline joins lines in a shell; shlex keeps the newline
    if "\\\n" not in text:
        assert split(text, "x") == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("M=x; a $M ${M} '$M' \"$M y\"", ["a", "x", "x", "$M", "x y"]),
        ('A="--tp 4  --x"; a $A "$A"', ["a", "--tp", "4", "--x", "--tp 4  --x"]),
        ("A=(--tp 4 'b c'); A+=(--z); a \"${A[@]}\"", ["a", "--tp", "4", "b c", "--z"]),
        ("a ${TP:-4} ${X:=9} $X ${X:+yes} ${Y:+no}z", ["a", "4", "9", "9", "yes", "z"]),
        ("A=${B:-${C:-deep}}; a $A", ["a", "deep"]),
        ('A=1; A="$A --more 2"; a $A', ["a", "1", "--more", "2"]),
        ("export A=1 B=2; readonly C=3; a $A $B $C", ["a", "1", "2", "3"]),
        ('E=; a $E x"$E"y', ["a", "xy"]),
        ("for i in 1 2; do a $i; done", ["a", "$i"]),
        ("if true; then T=4; fi\na $T", ["a", "4"]),
    ],
)
def test_variables_the_text_sets(text: str, words: list[str]) -> None:
    assert words in words_of(text)


def test_what_the_text_does_not_set_stays_and_says_why() -> None:
    assert unknown_in("a $NO ${NO} b") == ["$NO is not set here", "${NO} is not set here"]
    assert unknown_in('a "$(nproc)" `id`') == [
        "$(nproc) is a command, and none is run",
        "`id` is a command, and none is run",
    ]
    assert unknown_in("if x; then L=1; else L=2; fi; a $L") == ["$L is set in more than one way"]
    assert unknown_in("L=1; if x; then L=2; fi; a $L") == ["$L is set in more than one way"]
    assert unknown_in("L=1; if x; then L=1; fi; a $L") == []
    assert unknown_in("L=1; L=2; a $L") == []
    assert unknown_in("A=(x); if y; then A+=(--b); fi; a ${A[@]}") == ["--b is added in a branch"]
    assert unknown_in("A=$N; B=--x=$A; a $B") == ["$N is not set here"]
    assert unknown_in("a ${M%%:*}") == ["${M%%:*} is not worked out"]


def test_this_machine_fills_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "secret")
    assert words_of("a $MODEL $HOME ~/x") == [["a", "$MODEL", "$HOME", "~/x"]]


def test_environment_of_a_command() -> None:
    script = Script("A=1; export B=2; C=3 run; env", "x.sh")
    assert [c.environment for c in script.commands] == [{"B": "2", "C": "3"}, {"B": "2"}]
    assert [c.line for c in Script("a\n\n# x\nb \\\n c\nd", "x.sh").commands] == [1, 4, 6]


def test_here_documents_are_files_not_commands() -> None:
    script = Script(
        "P=5\ncat > /tmp/x.yml <<EOF\nport: $P\nvllm serve x\nEOF\ncat <<'E' | tee y\na $P\nE\nlast", "x.sh"
    )
    assert script.files["/tmp/x.yml"] == "port: 5\nvllm serve x"
    assert [c.words[0] for c in script.commands] == ["cat", "cat", "tee", "last"]
    odd = Script("cat <<E A=(a\nb <<F\nc)\ntext\nE\nlast", "x.sh")
    assert [c.words[0] for c in odd.commands] == ["cat", "last"]


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a `b", "a $(b", "a ${b", "A=(b"])
def test_what_does_not_end_says_where(text: str) -> None:
    with pytest.raises(KvplanError, match=r"x\.sh:2: .* does not end"):
        Script("\n" + text, "x.sh")


def test_values_do_not_grow_without_bound() -> None:
    doubling = "A=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 60 + "a $A"
    with pytest.raises(KvplanError, match="grows beyond"):
        Script(doubling, "x.sh")
    nested = "${A:-" * 200 + "x" + "}" * 200
    assert len(Script(f"a {nested}", "x.sh").commands) == 1


@given(st.text(alphabet="ab$(){}[]'\"`\\#;&|<>\n =-:~0\ue000\ue001\ue002", max_size=80))
@settings(max_examples=500, deadline=None)
def test_any_text_gives_words_or_one_error(text: str) -> None:
    said = ""
    try:
        Script(raw.clean(text), "x.sh")
        split(text, "x.sh", Scope({"a": "b"}))
    except KvplanError as error:
        said = str(error)
    assert "\n" not in said
