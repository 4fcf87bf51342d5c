"""What the scripts that write a page or a module share: write it, or say whether it is as it should be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def keep(target: Path, content: Callable[[], str], doc: str | None, argv: Sequence[str] | None = None) -> int:
    """Write `content` to `target`; with ``--check`` compare only, and return 1 where they differ."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only; status 1 where the file is out of date")
    check, text = parser.parse_args(argv).check, content()
    same = target.is_file() and target.read_text(encoding="utf-8") == text
    if check:
        print(f"{target.relative_to(ROOT)}: {'up to date' if same else f'out of date: run {sys.argv[0]}'}")
        return 0 if same else 1
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target.relative_to(ROOT)}")
    return 0


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
