"""What types cannot see in a spec that is well formed: counts, windows, names, formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from kvplan.errors import UnknownNameError
from kvplan.sources.yaml_reader import Path
from kvplan.spec.formats import get_format
from kvplan.spec.gpu import GpuSpec
from kvplan.spec.kind import ROLES
from kvplan.spec.model import Checkpoint, ModelSpec
from kvplan.spec.stored import STORED_ROLES

TOLERANCE = 0.01
"""How far a computed parameter count may lie from the published one without a note."""
_ID = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")


class Remark(NamedTuple):
    """Something to say about the value at `path`."""

    level: Literal["error", "warning"]
    message: str
    path: Path
    hint: str | None = None


def model_findings(model: ModelSpec, data: Any) -> Iterator[Remark]:
    """Remarks on a model whose file has the right shape; `data` is that file."""
    yield from _identity(model.id)
    yield from _counts(model)
    yield from _formats(model, data)
    yield from _blocks(model)
    for i, tensor in enumerate(model.tensors):
        yield from _role(tensor.role, ("tensors", i, "role"))
    for i, tensor in enumerate(model.draft_tensors):
        yield from _role(tensor.role, ("draft_tensors", i, "role"))
    if model.max_position_embeddings is None:
        yield Remark("warning", "no max_position_embeddings", (), "without it every plan needs --max-model-len")
    elif model.max_position_embeddings <= 0:
        yield Remark("error", "max_position_embeddings must be above 0", ("max_position_embeddings",))
    if model.stated_positions is not None and model.stated_positions <= 0:
        yield Remark("error", "stated_positions must be above 0", ("stated_positions",))
    if not model.source:
        yield Remark("warning", "no source", (), "say where the figures come from")


def _identity(name: str) -> Iterator[Remark]:
    if not _ID.match(name):
        yield Remark("error", f"id {name!r} is not lower-case letters, digits and . _ -", ("id",))


def _counts(model: ModelSpec) -> Iterator[Remark]:
    """The computed parameter count against the published one: the alarm for a wrong shape."""
    published, active = model.published_parameters, model.published_active_parameters
    if published is None:
        yield Remark("warning", "no published_parameters", (), "with it, a wrong shape shows as a wrong count")
        return
    if published <= 0:
        yield Remark("error", "published_parameters must be above 0", ("published_parameters",))
        return
    off = (model.parameters - published) / published
    if abs(off) > TOLERANCE and not model.parameters_note:
        yield Remark(
            "error",
            f"the shapes add up to {model.parameters:,} parameters, {off:+.2%} from the published {published:,}",
            ("published_parameters",), "check the shapes, or give the reason in parameters_note",
        )  # fmt: skip
    if abs(off) <= TOLERANCE and model.parameters_note:
        yield Remark(
            "warning", f"parameters_note for a count that is only {off:+.2%} off", ("parameters_note",), "drop it"
        )
    if active is not None and active > published:
        yield Remark("error", "more active than published parameters", ("published_active_parameters",))


def _formats(model: ModelSpec, data: Any) -> Iterator[Remark]:
    stored: list[tuple[str, Path, str]] = [(model.dtype, ("dtype",), "weights")]
    if model.checkpoint:
        stored.append((model.checkpoint.format, ("checkpoint", "format"), "weights"))
        if model.checkpoint.kv_cache_format:
            stored.append((model.checkpoint.kv_cache_format, ("checkpoint", "kv_cache_format"), "cache"))
        for i, role in enumerate(model.checkpoint.roles):
            at: Path = ("checkpoint", "roles", i) if "roles" in data["checkpoint"] else ("checkpoint",)
            yield from _role(role, at)
        yield from _stored(model.checkpoint)
    for name, path, use in stored:
        try:
            get_format(name, use=use)
        except UnknownNameError as error:
            yield Remark("error", error.message, path, error.hint)


def _stored(checkpoint: Checkpoint) -> Iterator[Remark]:
    """What was read from the headers of a checkpoint."""
    for key, roles in (("stored", checkpoint.stored), ("stored_parameters", checkpoint.stored_parameters)):
        for role in roles:
            if role not in STORED_ROLES:
                hint = f"one of {', '.join(STORED_ROLES)}"
                yield Remark("error", f"unknown role {role!r}", ("checkpoint", key, role), hint)


def _role(role: str, path: Path) -> Iterator[Remark]:
    if role not in ROLES:
        yield Remark("error", f"unknown role {role!r}", path, f"one of {', '.join(ROLES)}")


def _blocks(model: ModelSpec) -> Iterator[Remark]:
    used = {*model.layers, *model.draft_layers}
    for name, block in model.blocks.items():
        at: Path = ("blocks", name)
        if name not in used:
            yield Remark("warning", f"no layer is built from block {name!r}", at, "drop it, or name it in layers")
        if not block.mixers and not block.ffns:
            yield Remark("warning", f"block {name!r} has neither mixers nor ffns", at)
        for i, tensor in enumerate(block.tensors):
            yield from _role(tensor.role, (*at, "tensors", i, "role"))
        for i, mixer in enumerate(block.mixers):
            yield from _mixer(model, name, mixer, (*at, "mixers", i))


def _mixer(model: ModelSpec, block: str, mixer: Any, path: Path) -> Iterator[Remark]:
    """What a kind's own sizes must have to do with the rest of the model."""
    context, window = model.max_position_embeddings, getattr(mixer, "window", None)
    if context and window and window > context:
        yield Remark(
            "warning", f"window {window:,} is larger than the context of {context:,}", (*path, "window"),
            "it has no effect: write kind full",
        )  # fmt: skip
    source = getattr(mixer, "source", None)
    if isinstance(source, str):
        yield from _shared(model, block, source, path)
    width = getattr(mixer, "hidden_size", None)
    if width is not None and width != model.hidden_size:
        yield Remark(
            "warning", f"hidden_size {width:,} is not the model's {model.hidden_size:,}", (*path, "hidden_size")
        )


def _shared(model: ModelSpec, block: str, source: str, path: Path) -> Iterator[Remark]:
    """A layer that reads another's cache needs one above it that keeps one."""
    if source not in model.blocks:
        known = ", ".join(model.blocks)
        yield Remark("error", f"no block is called {source!r}", (*path, "source"), f"blocks: {known}")
        return
    if not any(m.streams() for m in model.blocks[source].mixers):
        yield Remark("error", f"block {source!r} keeps no cache to share", (*path, "source"))
    order = model.layers
    if block in order and (source not in order or order.index(source) > order.index(block)):
        yield Remark("error", f"no layer of block {source!r} comes before it", (*path, "source"))


def gpu_findings(gpu: GpuSpec, data: Any) -> Iterator[Remark]:
    """Remarks on an accelerator whose file has the right shape; `data` is that file."""
    yield from _identity(gpu.id)
    datasheet = gpu.datasheet_gb * 10**9
    for key in ("nvml_total_bytes", "torch_total_bytes"):
        total = data.get(key)
        if total is not None and not 0.85 * datasheet <= total <= 1.1 * datasheet:
            hint = "bytes, not MiB?" if total < 0.85 * datasheet else None
            yield Remark("error", f"{key} {total:,} does not fit a card of {gpu.datasheet_gb:g} GB", (key,), hint)
        if total is not None and not data.get(key.replace("_bytes", "_source")):
            yield Remark("warning", f"no source for {key}", (key,), f"add {key.replace('_bytes', '_source')}")
    rate = gpu.bandwidth_bytes_per_second
    if rate is not None and not 10**9 <= rate <= 10**14:
        yield Remark("error", f"{rate:,} bytes a second is out of any range", ("bandwidth_bytes_per_second",), "bytes?")
    if gpu.price and not 0 < gpu.price.low_usd_per_hour <= gpu.price.high_usd_per_hour:
        yield Remark("error", "price: low_usd_per_hour must be above 0 and not above high_usd_per_hour", ("price",))
    if not gpu.source:
        yield Remark("warning", "no source", (), "say where the figures come from")
