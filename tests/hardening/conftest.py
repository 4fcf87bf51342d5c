"""Makes the modules beside the tests, and the readers' fuzzer, importable: test folders are no packages."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "fuzz")]
