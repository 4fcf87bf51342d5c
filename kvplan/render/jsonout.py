"""JSON for programs: the keys of the contract, raw bytes, pure ASCII."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


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
