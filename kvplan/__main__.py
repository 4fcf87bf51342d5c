"""``python -m kvplan`` is the command ``kvplan``."""

from __future__ import annotations

import sys

from kvplan.cli.main import main

sys.exit(main())
