"""Bytes and parameters of a checkpoint by role, added up tensor by tensor."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.sources.checkpoint.roles import Namer
from kvplan.sources.checkpoint.safetensors import TensorEntry, sizes, stored_bytes, text
from kvplan.spec.formats import get_format
from kvplan.spec.model import Checkpoint
from kvplan.spec.stored import COPIES

if TYPE_CHECKING:
    from kvplan.sources.checkpoint.groups import Group
    from kvplan.spec.model import ModelSpec

_SCALE = re.compile(
    r"(^|\.)(\w*weight_scale\w*|scales|\w+_scales|qzeros|g_idx|weight_(zero_point|shape|g_idx)|(in|out)put_scale\w*"
    r"|[kvqp]_scale|kv_scale|\w+_global_scale|act_scale|absmax|nested_\w+|quant_map|quant_state\.\w+|SCB|weight_format"
    r"|biases|B_meta|meta|scale_packed|s|su|sv|suh|svh|mcg|mul1)$"
)
"""What quantisation keeps beside the weights; no parameters."""
_EXPERT = re.compile(r"\.experts\.[0-9]{1,6}\.")
_TRELLIS = ".trellis"
"""EXL3's weights: tiles of 16 x 16, as many 16-bit words each as 16 times their bits."""
_PACKED = {"U8": 8, "I8": 8, "I32": 32, "U32": 32}
"""Integer dtypes in which narrower weights are packed -> their bits."""
_DTYPES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}


class Tally:
    """The sums over all files of one checkpoint.

    Args:
        model: the model as its configuration describes it.
    """

    def __init__(self, model: ModelSpec) -> None:
        self.model = model
        encoder = any(tower.name == "encoder" for tower in model.towers)
        self.namer = Namer(model.num_layers, tied=model.tie_word_embeddings, encoder=encoder)
        self.stored: dict[str, dict[str, int]] = {}
        self.parameters: dict[str, int] = {}
        self.tensors = 0
        self._groups: Counter[Group] = Counter()
        self._bits = _bits_by_role(model)

    def add(self, found: Counter[Group]) -> None:
        """Count the tensors of one file."""
        self._groups.update(found)
        self.tensors += found.total()

    def add_up(self) -> None:
        """The sums of what was added, group by group: tensors that differ in nothing but their layer and expert."""
        groups: Counter[tuple[str, bytes, bytes]] = Counter()
        for (before, place, rest, dtype, shape), times in self._groups.items():
            whole = text(b"%b%b%b" % (before, place, rest))
            groups[_EXPERT.sub(".experts.0.", whole), dtype, shape] += times
        for (name, dtype, shape), times in groups.items():
            role = self.namer.role(name)
            entry = TensorEntry(name, dtype.decode(), sizes(shape), stored_bytes(dtype, shape))
            by_dtype = self.stored.setdefault(role, {})
            by_dtype[entry.dtype] = by_dtype.get(entry.dtype, 0) + times * entry.num_bytes
            self.parameters[role] = self.parameters.get(role, 0) + times * self._count(entry, role)
        self._groups.clear()
        if self.model.tie_word_embeddings and "embedding" not in self.stored and COPIES in self.stored:
            self.stored["embedding"] = self.stored.pop(COPIES)  # stored once, under the head's name
            self.parameters["embedding"] = self.parameters.pop(COPIES)

    def _count(self, entry: TensorEntry, role: str) -> int:
        """Parameters of a tensor: its elements, unpacked; none for scales and the like."""
        if entry.dtype in ("F8_E8M0", "BOOL") or _SCALE.search(entry.name):
            return 0
        elements = 1
        for size in entry.shape:
            elements *= size
        if entry.name.endswith(_TRELLIS) and entry.dtype == "I16" and len(entry.shape) == 3:
            return entry.shape[0] * entry.shape[1] * 256
        width = _PACKED.get(entry.dtype)
        if width is None:
            return elements
        bits = self._bits.get(role, self._bits[""])
        if bits > 8:  # packed, although the configuration does not say how: in 4 bits, if at all
            bits = 4 if width == 32 else 8
        return elements * width // bits if bits < width else elements

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(sum(by_dtype.values()) for by_dtype in self.stored.values())

    def dtype(self) -> str | None:
        """The float type that most bytes are stored in; None where that is none that a model runs in."""
        sizes = {d: sum(by.get(d, 0) for by in self.stored.values()) for d in _DTYPES}
        most = max(sizes, key=lambda d: sizes[d])
        return _DTYPES[most] if sizes[most] else None

    def applied(self, model: ModelSpec) -> ModelSpec:
        """`model` with what was counted in its checkpoint.

        The published count becomes that of the files, drafts and second copies apart.
        """
        from kvplan.spec.stored import count_difference, main_parameters

        own = model.checkpoint or Checkpoint(format=model.dtype, roles=())
        stored = {role: dict(sorted(by.items())) for role, by in sorted(self.stored.items())}
        counts = {role: count for role, count in sorted(self.parameters.items()) if count}
        found = replace(model, checkpoint=replace(own, stored=stored, stored_parameters=counts))
        published = main_parameters(found)
        note = None
        if published and abs(found.parameters - published) > 0.01 * published:
            note = count_difference(found) or "the files hold other tensors than the configuration says"
        return replace(found, published_parameters=published, parameters_note=note)


def _bits_by_role(model: ModelSpec) -> dict[str, int]:
    """Bits of a stored weight by role, under "" for all others."""
    checkpoint = model.checkpoint
    if checkpoint is None:
        return {"": 16}
    named = {"": checkpoint.format, **checkpoint.overrides}
    return {role: _bits(name) for role, name in named.items()}


def _bits(name: str) -> int:
    fmt = get_format(name, use="weights")
    if fmt.name.startswith("marlin24"):  # a stored value stands for two weights, of which one is 0
        return 2
    return 8 * fmt.block_bytes // fmt.block_elements
