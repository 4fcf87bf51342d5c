"""A model's configuration held against the headers of its checkpoint."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.errors import SpecError
from kvplan.sources.checkpoint.groups import read_groups
from kvplan.sources.checkpoint.index import INDEX_NAME, MAX_INDEX_BYTES, MAX_SHARDS, Index, read_index
from kvplan.sources.checkpoint.safetensors import MAX_TENSORS
from kvplan.sources.checkpoint.tally import Tally
from kvplan.spec.stored import TOLERANCE
from kvplan.units import human_bytes

if TYPE_CHECKING:
    from kvplan.sources.checkpoint.local import Files
    from kvplan.spec.model import ModelSpec

SINGLE_FILE = "model.safetensors"
_NUMBERED = re.compile(r"(.+)-([0-9]{2,6})-of-([0-9]{2,6})\.safetensors\Z")


def measured(model: ModelSpec, files: Files, *, dtype_said: bool) -> ModelSpec:
    """`model` with the exact bytes of its files, or as it is where they are not there (and that is said).

    Args:
        files: where its checkpoint lies.
        dtype_said: whether the configuration names a dtype; otherwise that of the files counts.

    Raises:
        SpecError: a file that is damaged or hostile.
    """
    index = _index(files)
    names = list(index.shards) if index else [SINGLE_FILE]
    missing = files.missing(names)
    if missing and index is None:
        names = _complete(files.unindexed())
        missing = files.missing(names) if names else []
    if missing:
        return _unmeasured(model, index, names, missing)
    if not names:
        return model
    tally = Tally(model)
    warnings: list[str] = []
    for name, source in files.headers(names):
        found = read_groups(source, files.label(name), model.num_layers)
        held = found.total()
        tally.add(found)
        if tally.tensors > MAX_TENSORS:
            raise SpecError(
                f"more than {MAX_TENSORS:,} tensors", where=files.label(name), hint="is it the right folder?"
            )
        if index and held != index.shards[name] and not warnings:
            warnings.append(f"{files.label(name)} holds {held:,} tensors, its index names {index.shards[name]:,}")
    if not tally.tensors:
        return model
    tally.add_up()
    if not dtype_said and (dtype := tally.dtype()):
        model = replace(model, dtype=dtype)
    said = index.total_bytes if index else None
    if said and abs(said - tally.total_bytes) > TOLERANCE * said and not warnings:
        total = human_bytes(said)
        warnings.append(f"the index says {total} of tensors, the files hold {human_bytes(tally.total_bytes)}")
    if model.towers and "tower" not in tally.stored:
        named = " and ".join(tower.name for tower in model.towers)
        warnings.append(
            f"the files hold no tensor of the {named} encoder that the configuration describes: none counted"
        )
        model = replace(model, towers=())
    model = replace(model, file_warnings=(*model.file_warnings, *warnings))
    return tally.applied(model)


def _index(files: Files) -> Index | None:
    data = files.read(INDEX_NAME, MAX_INDEX_BYTES)
    return None if data is None else read_index(data, files.label(INDEX_NAME))


def _complete(names: list[str]) -> list[str]:
    """File names and those that they say should be beside them (``..-00002-of-00009``)."""
    found = dict.fromkeys(names)
    for name in names:
        if len(found) > MAX_SHARDS:
            break
        match = _NUMBERED.match(name)
        if match and 0 < int(match.group(3)) <= MAX_SHARDS:
            start, digits = match.group(1), len(match.group(2))
            total = match.group(3)
            found.update(
                dict.fromkeys(f"{start}-{i:0{digits}}-of-{total}.safetensors" for i in range(1, int(total) + 1))
            )
    return sorted(found)


def _unmeasured(model: ModelSpec, index: Index | None, names: list[str], missing: list[str]) -> ModelSpec:
    """The model as its configuration alone describes it, with a word on why."""
    of = f"{len(missing):,} of {len(names):,} files of the checkpoint are not there (first {missing[0]})"
    said = f"; the index says {human_bytes(index.total_bytes)}" if index and index.total_bytes else ""
    warning = f"{of}: weights computed from the configuration{said}"
    return replace(model, file_warnings=(*model.file_warnings, warning))
