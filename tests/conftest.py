"""Settings that hold for every test."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# A slow machine is no failure; in CI the same examples run every time, elsewhere new ones are looked for.
settings.register_profile("kvplan", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("kvplan")

# A shell ignores Ctrl-C in what it runs in the background, and so would every command that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
