"""Small traces and deployments that the tests of the simulator share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvplan.deployment import find_deployment
from kvplan.simulate.site import Site, prepare

Sites = Callable[..., Site]


@pytest.fixture(scope="session")
def site() -> Sites:
    """``site("llama-3.1-8b", gpu="h100-sxm", ...)``: one replica, ready to be run."""
    kept: dict[Any, Site] = {}

    def make(model: str = "llama-3.1-8b", **settings: Any) -> Site:
        settings.setdefault("gpu", "h100-sxm")
        key = (model, *sorted(settings.items()))
        if key not in kept:
            kept[key] = prepare(find_deployment(model, settings))
        return kept[key]

    return make
