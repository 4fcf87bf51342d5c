"""JSON for programs: the keys of the contract, raw bytes, pure ASCII."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from kvplan.render.rows import TextStream


def write(payload: Mapping[str, Any]) -> str:
    """`payload` as indented JSON with a final newline.

    ASCII only, so that no name in it can move a cursor. An infinite or undefined number is a mistake
    of the caller.

    Raises:
        ValueError: a float that JSON has no word for.
        TypeError: something that is no plain data.
    """
    text = json.dumps(payload, indent=2, allow_nan=False)
    return text.replace("\x7f", "\\u007f") + "\n"


def stream(file: BinaryIO, names: Sequence[str], types: Sequence[str], head: Mapping[str, Any]) -> TextStream:
    """Rows as they come, in the ``rows`` of one object whose other keys are `head`."""
    from kvplan.render.jsonrows import JsonObject
    from kvplan.render.rows import TextStream

    return TextStream(file, JsonObject(names, head))
