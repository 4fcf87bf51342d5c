"""The pictures of a document as one SVG file."""

from __future__ import annotations

from kvplan.errors import InputError
from kvplan.render import html, svg
from kvplan.render.grid import Document, Title


def draw(document: Document) -> str:
    """All pictures, one below the other.

    Raises:
        InputError: there are none.
    """
    found = [picture for part in document if (picture := html.as_picture(part)) is not None]
    if not found:
        raise InputError(
            "there is no picture of this answer", where="--format svg", hint="--format html has its tables"
        )
    return svg.document(found, next((part.text for part in document if isinstance(part, Title)), "kvplan"))
