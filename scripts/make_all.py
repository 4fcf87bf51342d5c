"""Run every script that writes a page or a module, those first that others read.

python scripts/make_all.py                   write all
python scripts/make_all.py catalog           only what a new model or accelerator changes
python scripts/make_all.py --check           change nothing; exit 1 where something is out of date
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent

FACTS = {"make_catalog": "tests/data/models.jsonl", "make_gpus": "tests/data/gpus.jsonl"}
"""Scripts that check files against recorded facts, and where these are."""
CATALOG = ("make_catalog", "make_gpus", "make_index", "make_summary", "make_catalog_page", "make_readme")
"""What a model or an accelerator changes, in this order: the summary is read through the index, pages through both."""


def every() -> list[str]:
    """All scripts, those of the catalog first and what other pages quote before them."""
    found = sorted(path.stem for path in SCRIPTS.glob("make_*.py") if path.stem != Path(__file__).stem)
    ahead = [name for name in CATALOG if name != "make_readme"]
    return [*ahead, *(name for name in found if name not in CATALOG), "make_readme"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("all", "catalog"), default="all")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where a file is out of date")
    arguments = parser.parse_args(argv)
    failed = []
    for name in every() if arguments.what == "all" else CATALOG:
        print(f"== {name}.py", flush=True)
        facts = [FACTS[name]] if name in FACTS else []
        command = [sys.executable, str(SCRIPTS / f"{name}.py"), *facts, *(["--check"] if arguments.check else [])]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
            if not arguments.check:
                break  # what comes next may read it
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
