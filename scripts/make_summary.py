"""Write ``kvplan/catalog/_summary.py``: the figures that ``kvplan models list`` shows.

python scripts/make_summary.py            write it
python scripts/make_summary.py --check    exit 1 where it would change
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from written import keep

from kvplan.catalog import load_model, model_ids
from kvplan.catalog.summary import summarise

TARGET = ROOT / "kvplan" / "catalog" / "_summary.py"
HEAD = '''"""The figures of every model in one line each. Written by scripts/make_summary.py; do not edit."""
# fmt: off

from __future__ import annotations

from typing import Any

# the fields of kvplan.catalog.summary.ModelSummary
ROWS: tuple[tuple[Any, ...], ...] = (
'''


def content() -> str:
    """The module's text, from the YAML files as they are now."""
    rows = (tuple(summarise(load_model(model))) for model in model_ids())
    lines = [f"    ({', '.join(map(literal, row))}),\n" for row in rows]
    return HEAD + "".join(line if len(line) <= 120 else folded(line) for line in lines) + ")\n"


def literal(value: object) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else repr(value)


def folded(line: str) -> str:
    """A long row on two lines, broken after the repository (the third value)."""
    parts = line.strip().removesuffix(",").strip("()").split(", ")
    return f"    ({', '.join(parts[:3])},\n     {', '.join(parts[3:])}),\n"


def main() -> int:
    return keep(TARGET, content, __doc__)


if __name__ == "__main__":
    sys.exit(main())
