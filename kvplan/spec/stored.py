"""What a checkpoint holds according to the headers of its files, beside what its specification adds up to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.spec.kind import ROLES
from kvplan.units import human_bytes, human_count

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec

COPIES, BUFFERS, OTHER = "copies", "buffers", "other"
STORED_ROLES = (*ROLES, COPIES, BUFFERS, OTHER)
"""Keys of `Checkpoint.stored`: roles; second copies of a tensor and buffers, which nobody loads; names nobody knows."""
TOLERANCE = 0.005
"""How far the parameters in the files may lie from the computed count without a warning."""
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_MODEL_DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
_CAUSES = {
    "draft": "multi-token-prediction layers", COPIES: "second copies of the embedding or head", "tower": "towers",
    "head": "output head", OTHER: "tensors of no known purpose",
}  # fmt: skip


def loaded_bytes(model: ModelSpec) -> dict[str, int]:
    """Bytes of each role as an engine holds them, whole; empty where no header was read.

    Copies and buffers are not loaded. Where most of an unquantised checkpoint is stored wider than the
    model's dtype (fp32 files of a bf16 model), engines narrow it while loading.
    """
    checkpoint = model.checkpoint
    if checkpoint is None or not checkpoint.stored:
        return {}
    narrowed = dict.fromkeys(narrowed_dtypes(model), _MODEL_DTYPES.get(model.dtype, 4))
    found: dict[str, int] = {}
    for role, by_dtype in checkpoint.stored.items():
        if role in (COPIES, BUFFERS):
            continue
        found[role] = sum(
            size * narrowed[dtype] // _FLOATS[dtype] if dtype in narrowed else size for dtype, size in by_dtype.items()
        )
    return found


def narrowed_dtypes(model: ModelSpec) -> tuple[str, ...]:
    """dtypes of the files that engines narrow while loading; empty where the files are as the model runs."""
    checkpoint = model.checkpoint
    if checkpoint is None or checkpoint.roles or checkpoint.overrides or model.dtype not in _MODEL_DTYPES:
        return ()
    wide = [dtype for dtype, size in _FLOATS.items() if size > _MODEL_DTYPES[model.dtype]]
    sizes = {d: sum(by.get(d, 0) for by in checkpoint.stored.values()) for d in wide}
    total = sum(sum(by.values()) for by in checkpoint.stored.values())
    return tuple(d for d in wide if sizes[d]) if 2 * sum(sizes.values()) > total else ()


def main_parameters(model: ModelSpec) -> int | None:
    """Parameters in the files without drafts, second copies and buffers; None where no header was read."""
    counts = model.checkpoint.stored_parameters if model.checkpoint else {}
    return sum(n for role, n in counts.items() if role not in ("draft", COPIES, BUFFERS)) or None


def stored_warnings(model: ModelSpec) -> list[str]:
    """What a plan should say about the files of a model whose headers were read."""
    checkpoint = model.checkpoint
    if checkpoint is None or not checkpoint.stored:
        return []
    found = []
    if difference := count_difference(model):
        found.append(difference)
    for dtype in narrowed_dtypes(model):
        size = sum(by.get(dtype, 0) for by in checkpoint.stored.values())
        found.append(f"{human_bytes(size)} are stored as {dtype}; engines load them as {model.dtype}")
    unknown = sum(checkpoint.stored.get(OTHER, {}).values())
    if unknown:
        found.append(f"{human_bytes(unknown)} are in tensors of no known purpose, counted whole on every rank")
    return found


def count_difference(model: ModelSpec) -> str | None:
    """How the parameters in the files differ from those computed, by what; None within `TOLERANCE`."""
    counts = dict(model.checkpoint.stored_parameters) if model.checkpoint else {}
    counts.pop(BUFFERS, None)
    total, computed = sum(counts.values()), model.parameters
    if not total or abs(total - computed) <= TOLERANCE * computed:
        return None
    expected = _computed_by_role(model)
    parts = []
    for role in STORED_ROLES:
        more = counts.get(role, 0) - expected.get(role, 0)
        if abs(more) * 1000 > computed:
            sign = "+" if more > 0 else "-"
            parts.append(f"{_CAUSES.get(role, role)} {sign}{human_count(abs(more))}")
    causes = f" ({', '.join(parts)})" if parts else ""
    return (
        f"the checkpoint holds {total:,} parameters, the configuration gives {computed:,}: "
        f"{(total - computed) / computed:+.1%}{causes}"
    )


def _computed_by_role(model: ModelSpec) -> dict[str, int]:
    found: dict[str, int] = {}
    for times, tensor in model.tensors_by_block():
        found[tensor.role] = found.get(tensor.role, 0) + times * tensor.elements
    for tensor in model.tensors_outside_layers():
        found[tensor.role] = found.get(tensor.role, 0) + tensor.elements
    return found
