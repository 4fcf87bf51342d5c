"""Reruns the commands shown in README.md and docs/ and puts their output below them.

A block that starts with ```` ```console ```` and a line ``$ kvplan ...`` is followed by what that command
prints when piped (and by its exit status where it is not 0). A filter may follow: ``| head -5``, ``| grep WORD``; the
status is then the filter's, as in a shell. ``--check`` changes nothing and says which blocks differ.
"""

from __future__ import annotations

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
from written import keep_all

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


def examples() -> dict[Path, str]:
    """Page -> its text, with what its commands print now."""
    os.chdir(ROOT)
    os.environ.update(NO_COLOR="1", COLUMNS="100")
    return {page: refreshed(page.read_text(encoding="utf-8")) for page in pages()}


def main() -> int:
    return keep_all(examples, __doc__)


if __name__ == "__main__":
    sys.exit(main())
