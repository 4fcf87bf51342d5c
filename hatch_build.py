"""Adds a JSON twin to every YAML preset of the wheel.

Importing PyYAML takes as long as starting an interpreter, and JSON is read in no time. What people
read and edit stays YAML; a checkout and an editable installation read that.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PRESETS = {"models": "kvplan/_data/models", "kvplan/data/gpus": "kvplan/data/gpus"}
"""folder of the checkout -> folder of the wheel."""


class JsonTwins(BuildHookInterface[Any]):
    """Converts every preset while a wheel is built."""

    folder: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self.folder = Path(tempfile.mkdtemp())
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        for source, target in PRESETS.items():
            root = Path(self.root, source)
            for path in sorted(root.rglob("*.yaml")):
                name = path.relative_to(root).with_suffix(".json")
                twin = self.folder / target / name
                twin.parent.mkdir(parents=True, exist_ok=True)
                twin.write_text(json.dumps(yaml.load(path.read_bytes(), Loader=loader), separators=(",", ":")))
                build_data["force_include"][str(twin)] = f"{target}/{name.as_posix()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder)
