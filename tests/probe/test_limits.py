"""Nothing holds more than ``--max-memory``: storages counted operator by operator, and the process's resident set."""

from __future__ import annotations

import gc
import time
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvplan.probe import run, timing
from kvplan.probe.device import detect
from kvplan.sources import find_model
from kvplan.units import MIB

LIMIT = 64 * MIB


class Storages(TorchDispatchMode):
    """Counts the bytes of all storages that operators made and that are alive after each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, self.held())
        return out

    def held(self) -> int:
        """Bytes of what is alive now."""
        self.alive = {key: held for key, held in self.alive.items() if not held[0].expired()}
        return sum(size for _, size in self.alive.values())


CASES = [
    *(("attention", model) for model in ("llama-3.2-1b", "deepseek-v2-lite", "opt-6.7b")),
    *(("correctness", model) for model in ("deepseek-v2-lite", "opt-6.7b")),
    ("memory", "opt-6.7b"), ("blocks", "opt-6.7b"), ("bandwidth", "llama-3.2-1b"), ("prefill", "llama-3.2-1b"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "model"), CASES)
def test_storages_stay_within_the_limit(section: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_CPU_SAMPLES", 1)
    request = run.Request(find_model(model), "vllm", {"max_model_len": 2048}, detect("cpu"), LIMIT, quick=True)
    session = run.open_session(request, lambda text: None)
    session.limits = session.limits._replace(deadline=time.monotonic() + 3)  # passes as short as they get
    with timing.quickest_threads(session.device), Storages() as counted:
        rows = import_module(f"kvplan.probe.{section}").measure(session)
    assert counted.most <= LIMIT
    assert any(row.measured is not None for row in rows)
    if section == "attention":
        assert counted.most > LIMIT // 8
    gc.collect()
    assert counted.held() == 0
