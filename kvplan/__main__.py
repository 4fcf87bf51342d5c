"""``python -m kvplan`` is the command ``kvplan``."""

from __future__ import annotations

from kvplan.cli.main import entry

entry()
