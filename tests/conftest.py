"""Settings that hold for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# A slow machine is no failure; in CI the same examples run every time, elsewhere new ones are looked for.
settings.register_profile("kvplan", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("kvplan")
