"""A model's configuration held against the headers of its checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.errors import SpecError
from kvplan.sources.checkpoint.index import INDEX_NAME, MAX_INDEX_BYTES, Index, read_index
from kvplan.sources.checkpoint.safetensors import MAX_TENSORS, read_rows
from kvplan.sources.checkpoint.tally import Tally
from kvplan.units import human_bytes

if TYPE_CHECKING:
    from kvplan.sources.checkpoint.local import Files
    from kvplan.spec.model import ModelSpec

SINGLE_FILE = "model.safetensors"


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
    if missing:
        return model if index is None else _unmeasured(model, index, names, missing)
    tally = Tally(model)
    warnings = []
    for name, source in files.headers(names):
        rows = read_rows(source, files.label(name))
        held = len(rows)
        tally.add(rows)
        if tally.tensors > MAX_TENSORS:
            raise SpecError(f"more than {MAX_TENSORS:,} tensors", where=files.label(name), hint="is it the right folder?")
        if index and held != index.shards[name] and not warnings:
            warnings.append(f"{files.label(name)} holds {held:,} tensors, its index names {index.shards[name]:,}")
    if not tally.tensors:
        return model
    tally.add_up()
    if not dtype_said and (dtype := tally.dtype()):
        model = replace(model, dtype=dtype)
    if index and index.total_bytes not in (None, tally.total_bytes) and not warnings:
        total = human_bytes(index.total_bytes or 0)
        warnings.append(f"the index says {total} of tensors, the files hold {human_bytes(tally.total_bytes)}")
    model = replace(model, file_warnings=(*model.file_warnings, *warnings))
    return tally.applied(model)


def _index(files: Files) -> Index | None:
    data = files.read(INDEX_NAME, MAX_INDEX_BYTES)
    return None if data is None else read_index(data, files.label(INDEX_NAME))


def _unmeasured(model: ModelSpec, index: Index, names: list[str], missing: list[str]) -> ModelSpec:
    """The model as its configuration alone describes it, with a word on why."""
    of = f"{len(missing):,} of {len(names):,} files of the checkpoint are not there (first {missing[0]})"
    said = f"; the index says {human_bytes(index.total_bytes)}" if index.total_bytes else ""
    warning = f"{of}: weights computed from the configuration{said}"
    return replace(model, file_warnings=(*model.file_warnings, warning))
