"""Reruns the commands shown in README.md and docs/ and puts their output below them.

A block that starts with ```` ```console ```` and a line ``$ kvplan ...`` is followed by what that command
prints when piped (and by its exit status where it is not 0). A filter may follow: ``| head -5``, ``| grep WORD``; the
status is then the filter's, as in a shell. ``--check`` changes nothing and says which blocks differ.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from doc_blocks import pages

from kvplan.cli.main import main as kvplan

BLOCK = re.compile(r"```console\n(\$ kvplan [^\n]*)\n(.*?)```", re.DOTALL)


def output_of(command: str) -> str:
    """What ``$ kvplan ...`` prints on both streams together, and its status where it is not 0."""
    command, pipe, filters = command.partition(" | ")
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        status = kvplan(shlex.split(command.removeprefix("$ kvplan")))
    text = stream.getvalue()
    if pipe:
        done = subprocess.run(["sh", "-c", filters], input=text, capture_output=True, text=True, check=True)
        return done.stdout
    return text + (f"[exit status {status}]\n" if status else "")


def refreshed(text: str) -> str:
    """`text` with the output of every shown command as it is now."""
    return BLOCK.sub(lambda m: f"```console\n{m.group(1)}\n{output_of(m.group(1))}```", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    os.environ.update(NO_COLOR="1", COLUMNS="100")
    stale = []
    for page in pages():
        old = page.read_text(encoding="utf-8")
        new = refreshed(old)
        if new != old:
            stale.append(page.relative_to(ROOT))
            if not arguments.check:
                page.write_text(new, encoding="utf-8")
    for page in stale:
        print(f"{page}: {'differs' if arguments.check else 'refreshed'}")
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
