"""Draw the pictures that the pages show: ``docs/assets/*.svg``, each what one command writes with ``-o``.

With ``--check`` nothing is written, and the exit status is 1 where a picture is out of date.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from written import keep_all

from kvplan.cli.main import main as kvplan

TARGET = ROOT / "docs" / "assets"
PICTURES = {
    "plan.svg": "plan llama-3.1-70b --gpu h100-sxm -tp 4 --max-model-len 32K --concurrency 8",
    "explain.svg": "explain gemma-3-27b --max-model-len 32K",
    "grid.svg": "sweep llama-3.1-8b --gpu h100-sxm --vary prompt-tokens=1K..64K*2 --vary concurrency=1..256*2 "
    "--figure decode.tokens_per_second",
}
"""Picture -> the command that draws it."""


def drawn(command: str, name: str) -> str:
    """What a command draws.

    Raises:
        SystemExit: it cannot.
    """
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        with contextlib.redirect_stderr(said):
            status = kvplan([*shlex.split(command), "-o", str(path)])
        if status or not path.exists():
            raise SystemExit(f"kvplan {command} ended with {status}: {said.getvalue()}")
        return path.read_text(encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    return keep_all(lambda: {TARGET / name: drawn(line, name) for name, line in PICTURES.items()}, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
