"""Write the table of imports of ``docs/architecture.md``, from the code.

With ``--check`` nothing is written, and the exit status is 1 where the page is out of date.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import grimp
from written import between, keep

TARGET = ROOT / "docs" / "architecture.md"
START, END = "<!-- imports: written by scripts/make_import_graph.py -->", "<!-- end of imports -->"


def rooms() -> dict[str, set[str]]:
    """Room (a folder or a module of kvplan's own) -> the rooms it imports, wherever the import stands."""
    graph = grimp.build_graph("kvplan", cache_dir=None)  # a cache of another graph's run may be out of date
    found: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        here = room(module)
        found[here] |= {room(other) for other in graph.find_modules_directly_imported_by(module)} - {here}
    del found[""]  # the package itself, which hands on the library's names
    return found


def room(module: str) -> str:
    """The name below kvplan; empty for kvplan itself and what is private to it."""
    name = module.partition(".")[2].partition(".")[0]
    return "" if name == "_version" else name


def table() -> str:
    """A row for every room, from the command line down."""
    found = rooms()
    order = sorted(found, key=lambda name: (-len(reached(name, found)), name))
    place = {name: number for number, name in enumerate(order)}
    lines = ["| room | imports |", "| --- | --- |"]
    for name in order:
        below = sorted(found[name] - {""}, key=lambda other: place[other])
        lines.append(f"| `{name}` | {', '.join(f'`{other}`' for other in below) or 'nothing'} |")
    return "\n".join(["", *lines, "", ""])


def reached(name: str, imports: dict[str, set[str]]) -> set[str]:
    """Every room that a room imports, itself or through another."""
    seen: set[str] = set()
    rest = [name]
    while rest:
        for other in imports[rest.pop()] - seen - {""}:
            seen.add(other)
            rest.append(other)
    return seen


def page() -> str:
    return between(TARGET.read_text(encoding="utf-8"), START, END, table())


def main(argv: Sequence[str] | None = None) -> int:
    return keep(TARGET, page, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
