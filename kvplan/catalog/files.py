"""Where the shipped YAML files are, and how they are read."""

from __future__ import annotations

import os
from typing import Any

from kvplan.errors import SpecError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def models_folder() -> str:
    """The folder of the model files: inside an installed wheel, or a checkout's ``models``."""
    shipped = os.path.join(_PACKAGE, "_data", "models")
    return shipped if os.path.isdir(shipped) else os.path.join(os.path.dirname(_PACKAGE), "models")


def gpus_folder() -> str:
    """The folder of the accelerator files."""
    return os.path.join(_PACKAGE, "data", "gpus")


def read_yaml(path: str) -> Any:
    """The plain data of one shipped YAML file, from its JSON twin where a wheel brought one.

    Raises:
        SpecError: the file is gone or is not YAML (a broken installation).
    """
    twin = path.removesuffix(".yaml") + ".json"
    if os.path.exists(twin):  # PyYAML takes as long to import as an interpreter to start
        import json

        with open(twin, "rb") as file:
            return json.load(file)
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is optional and ten times as fast
    try:
        with open(path, "rb") as file:
            return yaml.load(file, Loader=loader)  # a safe loader either way
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise SpecError(f"catalog file: {reason}", where=path, hint="reinstall kvcache-plan") from None
    except yaml.YAMLError as error:
        raise SpecError(f"catalog file is no YAML: {str(error).splitlines()[0]}", where=path) from None
