"""``--gpu auto``: the NVIDIA card of this machine as the planner takes it, read from NVML alone (no torch)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.probe import nvml
from kvplan.probe.device import match

if TYPE_CHECKING:
    from kvplan.probe.nvml import NvmlFacts
    from kvplan.spec.gpu import GpuSpec

FLAG = "--gpu auto"


def this_gpu() -> GpuSpec:
    """The card that programs started here would use.

    Raises:
        MissingExtraError: ``nvidia-ml-py`` is not installed.
        InputError: no driver, no card, or cards of several kinds.
    """
    found = visible(nvml.all_facts(FLAG))
    names = list(dict.fromkeys(facts.name for facts in found))
    if not names:
        raise InputError("no NVIDIA GPU is visible", where=FLAG, hint="name one with --gpu NAME")
    if len(names) > 1:
        raise InputError(
            f"this machine has {len(names)} kinds of GPU: {', '.join(names)}", where=FLAG,
            hint=f"name one, as in --gpu '{names[0]}'",
        )  # fmt: skip
    return planner_spec(min(found, key=lambda facts: facts.total_bytes or 0))


def visible(found: list[NvmlFacts]) -> list[NvmlFacts]:
    """Those that ``CUDA_VISIBLE_DEVICES`` leaves; all where it is not set or says nothing that is understood."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return found
    kept = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        if item.isdigit():
            kept += [facts for facts in found if facts.number == int(item)]
        elif item.lower().startswith("gpu-"):
            kept += [facts for facts in found if facts.uuid.lower().startswith(item.lower())]
        else:  # -1, or a MIG device: whatever follows is not seen
            break
    return kept


def planner_spec(facts: NvmlFacts) -> GpuSpec:
    """The catalog's entry with this card's bytes; a new one, without rates of arithmetic, where it has none."""
    known = match(facts.name, facts.total_bytes)
    if facts.total_bytes is None:
        return _shared(facts, known)
    reserved, source = facts.reserved_bytes, "NVML on this machine: total less reserved"
    if reserved is None and known is not None and known.nvml_total_bytes and known.torch_total_bytes:
        reserved = known.nvml_total_bytes - known.torch_total_bytes  # the driver does not tell it apart, and keeps it
        source = "NVML on this machine: total less what the catalog's card reserves"
    if reserved is None:
        reserved, source = 0, "NVML's total"
    total = facts.total_bytes - reserved
    if known is not None:
        return replace(
            known, nvml_total_bytes=facts.total_bytes, nvml_total_source="NVML on this machine",
            torch_total_bytes=total, torch_total_source=source,
        )  # fmt: skip
    made = _described(facts, total, source)
    return replace(made, nvml_total_bytes=facts.total_bytes, nvml_total_source="NVML on this machine")


def _shared(facts: NvmlFacts, known: GpuSpec | None) -> GpuSpec:
    """A card of which the driver states no memory, since it uses the machine's: the catalog's bytes, or all of those.

    Raises:
        InputError: nor does the system say how many there are.
    """
    from kvplan.probe.device import machine_bytes

    if known is not None:
        return known
    total = machine_bytes()
    if total is None:
        raise InputError(f"the driver states no memory of {facts.name}", where=FLAG, hint="name it with --gpu NAME")
    return replace(_described(facts, total, "memory of the machine, which the card shares"), unified_memory=True)


def _described(facts: NvmlFacts, total: int, source: str) -> GpuSpec:
    """A card that the catalog lacks."""
    from kvplan.spec.gpu import GpuSpec

    rate = facts.theoretical_bandwidth
    return GpuSpec(
        id="this-machine", name=facts.name, vendor="nvidia", architecture="unknown",
        datasheet_gb=(facts.total_bytes or total) / 1e9, bandwidth_bytes_per_second=int(rate) if rate else None,
        torch_total_bytes=total, torch_total_source=source, compute_capability=facts.compute_capability,
        confidence="read on this machine",
    )  # fmt: skip
