"""What the scripts that write a page or a module share: write it, or say whether it is as it should be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def keep(target: Path, content: Callable[[], str], doc: str | None, argv: Sequence[str] | None = None) -> int:
    """Write `content` to `target`; with ``--check`` compare only, and return 1 where they differ."""
    return keep_all(lambda: {target: content()}, doc, argv)


def keep_all(made: Callable[[], Mapping[Path, str]], doc: str | None, argv: Sequence[str] | None = None) -> int:
    """Write texts to their paths; with ``--check`` compare only, and return 1 where one differs."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only; status 1 where a file is out of date")
    check, stale = parser.parse_args(argv).check, 0
    for target, text in made().items():
        same = target.is_file() and target.read_text(encoding="utf-8") == text
        stale += not same
        if not check and not same:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        now = "up to date" if same else f"out of date: run {sys.argv[0]}" if check else "written"
        print(f"{target.relative_to(ROOT)}: {now}")
    return 1 if check and stale else 0


def between(text: str, start: str, end: str, part: str) -> str:
    """`text` with `part` in place of the lines between the two marks.

    Raises:
        SystemExit: a mark is missing.
    """
    before, found, rest = text.partition(f"{start}\n")
    _, closed, after = rest.partition(f"{end}\n")
    if not (found and closed):
        raise SystemExit(f"the marks {start} and {end} are missing")
    return f"{before}{start}\n{part}{end}\n{after}"
