"""The terminal: light tables that use the width they have, a stacked bar, colour where it is wanted."""

from __future__ import annotations

from kvplan.render.grid import Document
from kvplan.render.text import Pen

MAX_BAR_CELLS = 100


def draw(document: Document, *, width: int, color: bool = False, unicode: bool = True) -> str:
    """`document` for a terminal `width` columns wide.

    Prose is broken over lines; a grid that cannot be squeezed into the width is drawn record by
    record, so that no figure is ever cut.

    Args:
        color: ANSI colours and bold; the text is the same without.
        unicode: False draws with ASCII alone.
    """
    return Pen(width, color=color, unicode=unicode, rules=True, bar_cells=MAX_BAR_CELLS).draw(document)
