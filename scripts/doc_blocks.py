"""The code blocks of README.md, SKILL.md and docs/, as the tests and `make_examples.py` read them.

A block that cannot be run says so in a comment on the line above its fence, with the reason:
``<!-- not run: needs two GPUs -->``. A comment behind a shell line may state another exit status than 0: ``# exit 1``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- not run: (.+?) -->\n$")
SPAN = re.compile(r"(?<!`)`(kvplan [^`]+)`(?!`)")
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_0-9]*\b|\.\.\.|\[|~")
"""What stands for something else in a command: ``MODEL``, ``[FILE]``, ``~/.ollama/...``."""


class Block(NamedTuple):
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str
    """Why it is not run; empty where it is."""

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


class Line(NamedTuple):
    """One command of a shell block."""

    words: list[str]
    status: int
    into: str
    """The file that its output goes to, or nothing."""


def pages() -> list[Path]:
    """Every page that people and programs read."""
    return [ROOT / "README.md", ROOT / "SKILL.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        before = text[: found.start()]
        mark = MARK.search(before)
        yield Block(page, before.count("\n") + 1, found["language"], found["text"], mark[1] if mark else "")


def spans(page: Path) -> Iterator[str]:
    """The commands in the running text of a page."""
    for found in SPAN.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        yield " ".join(found[1].split()).replace("\\|", "|")


def lines(text: str) -> Iterator[Line]:
    """The commands of a shell block: lines joined at ``\\``, split at ``&&``, without comments."""
    for whole in text.replace("\\\n", " ").splitlines():
        stated = re.search(r"\s#.*\bexit (\d)", whole)
        words = shlex.split(whole, comments=True)
        parts: list[list[str]] = [[]]
        for word in words:
            if word == "&&":
                parts.append([])
            else:
                parts[-1].append(word)
        for part in filter(None, parts):
            into = part[-1] if len(part) > 2 and part[-2] == ">" else ""
            yield Line(part[:-2] if into else part, int(stated[1]) if stated else 0, into)
