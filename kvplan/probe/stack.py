"""Layers with random weights of a model's shapes, and one decode step through them.

The matrices are those that the planner counts (`LayerPart.tensors`), fused as engines fuse them: what reads the
hidden state is one product, gate and up are one. Attention runs over paged caches by block table. Where a mixer
hands on another width than the next matrix takes (latent and recurrent layers), columns are cut or repeated: the
numbers then mean nothing, the bytes and products are the model's. A step's own entry is not appended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kvplan.probe.kernels import between
from kvplan.probe.readers import Reader, readers
from kvplan.probe.shapes import ffn_shapes, layer_shapes
from kvplan.spec.ffn import MoeFfn

if TYPE_CHECKING:
    from kvplan.spec.kind import CacheKind, LayerPart
    from kvplan.spec.model import ModelSpec

DTYPE = torch.bfloat16
_DRAWN = 1 << 20


class Experts(NamedTuple):
    """Routed experts: gate and up [experts, 2 x wide, width], down [experts, width, wide]."""

    up: torch.Tensor
    down: torch.Tensor
    router: torch.Tensor | None
    per_token: int


@dataclass(kw_only=True)
class Layer:
    """One layer's weights."""

    mixers: list[list[torch.Tensor]] = field(default_factory=list)
    """Products of each mixer, in order; the last one is its output. Several mixers work side by side."""
    readers: list[Reader] = field(default_factory=list)
    """Every attention over a cache."""
    state_elements: int = 0
    """16-bit words of recurrent state of one sequence, read and written once a step."""
    dense: list[tuple[torch.Tensor, torch.Tensor, bool]] = field(default_factory=list)
    """(gate and up, down, gated): dense FFNs and shared experts."""
    experts: Experts | None = None
    ffns: int = 0
    """FFNs of the model, routed and shared experts together as one: each has its sum over ranks."""
    norm: torch.Tensor | None = None

    @property
    def matrices(self) -> list[torch.Tensor]:
        """Everything that every token multiplies."""
        return [
            *(m for products in self.mixers for m in products),
            *(m for up, down, _ in self.dense for m in (up, down)),
        ]


def layer_bytes(spec: ModelSpec, name: str) -> int:
    """Bytes of one layer's matrices in 16 bits."""
    block = spec.blocks[name]
    return sum(2 * t.elements for part in (*block.mixers, *block.ffns) for t in part.step_tensors(spec.hidden_size))


def build(
    spec: ModelSpec, names: Sequence[str], state_bytes: Callable[[CacheKind], int], device: Any, seed: int = 0
) -> list[Layer]:
    """Layers `names` (blocks of the model, in order) with random weights of variance 1 / inputs."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def weight(*shape: int) -> torch.Tensor:
        return random_weight(shape, device, generator)

    layers = []
    for name in names:
        norm, hidden = torch.ones(spec.hidden_size, dtype=DTYPE, device=device), spec.hidden_size
        layer = Layer(norm=norm, readers=readers(spec, name), ffns=len(spec.blocks[name].ffns))
        for mixer in spec.blocks[name].mixers:
            layer.mixers.append([weight(*s) for s in layer_shapes(mixer, hidden)])
            layer.state_elements += -(-state_bytes(mixer) // 2)
        for ffn in spec.blocks[name].ffns:
            _ffn(layer, ffn, hidden, weight)
        layers.append(layer)
    return layers


def random_weight(shape: Sequence[int], device: Any, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers of variance 1 / inputs; on a CPU a million of them over and over, as drawing them takes long."""
    empty, deviation = torch.empty(tuple(shape), dtype=DTYPE, device=device), shape[-1] ** -0.5
    if empty.device.type != "cpu" or empty.numel() <= _DRAWN:
        return empty.normal_(0.0, deviation, generator=generator)
    drawn = torch.empty(_DRAWN, dtype=DTYPE).normal_(0.0, deviation, generator=generator)
    for part in empty.view(-1).split(_DRAWN):
        part.copy_(drawn[: part.numel()])
    return empty


def _ffn(layer: Layer, ffn: LayerPart, hidden: int, weight: Callable[..., torch.Tensor]) -> None:
    if isinstance(ffn, MoeFfn):
        wide, width, gated = ffn.intermediate_size, ffn.expert_hidden_size or hidden, 1 + ffn.gated
        layer.experts = Experts(
            weight(ffn.experts, wide * gated, width), weight(ffn.experts, width, wide),
            weight(ffn.experts, hidden) if ffn.router else None, ffn.experts_per_token,
        )  # fmt: skip
    if shapes := ffn_shapes(ffn, hidden):
        up, down = (weight(*shape) for shape in shapes)
        layer.dense.append((up, down, up.shape[0] > down.shape[1]))


@dataclass(kw_only=True)
class Scratch:
    """Activations of a batch; every layer uses the same."""

    x: torch.Tensor
    rest: torch.Tensor
    normed: torch.Tensor
    turn: torch.Tensor
    """[2, dim / 2]: cosine and sine of one position."""

    @classmethod
    def of(cls, batch: int, hidden: int, dim: int, device: Any) -> Scratch:
        """Random activations."""
        x = torch.randn((batch, hidden), device=device).to(DTYPE)
        angle = torch.rand(dim // 2, device=device)
        return cls(x=x, rest=x.clone(), normed=x.clone(), turn=torch.stack((angle.cos(), angle.sin())))


def take(x: torch.Tensor, width: int) -> torch.Tensor:
    """The first `width` columns, repeated where there are fewer."""
    if x.shape[1] == width:
        return x
    if x.shape[1] > width:
        return x[:, :width]
    return x.repeat(1, -(-width // x.shape[1]))[:, :width]


Attend = Callable[[torch.Tensor], torch.Tensor]
Reduce = Callable[[torch.Tensor], object]
"""Adds a tensor up over the ranks, in place."""


def run_layer(
    layer: Layer, scratch: Scratch, attends: Mapping[int, Attend], state: torch.Tensor | None = None,
    reduce: Reduce | None = None,
) -> None:  # fmt: skip
    """One layer of one step; `scratch.x` is what it adds to the residual.

    Args:
        attends: mixer -> its attention over a cache: from the projections to [batch, heads x d_v].
        state: the recurrent states of the batch.
        reduce: after every mixer and every FFN.
    """
    assert layer.norm is not None
    hidden = scratch.x.shape[1]
    if layer.mixers:
        between.add_norm(scratch.x, scratch.rest, layer.norm, scratch.normed)
        if state is not None:
            state.mul_(0.999)
    total = None
    for index, products in enumerate(layer.mixers):
        y = scratch.normed
        for matrix in products[:-1]:
            y = take(y, matrix.shape[1]) @ matrix.t()
        if index in attends:
            y = attends[index](y)
        for matrix in products[-1:]:
            y = take(y, matrix.shape[1]) @ matrix.t()
        y = _summed(take(y, hidden), reduce)
        total = y if total is None else total + y
    if total is not None:
        scratch.x = total
    if layer.dense or layer.experts is not None:
        between.add_norm(scratch.x, scratch.rest, layer.norm, scratch.normed)
        for up, down, gated in layer.dense:
            scratch.x = _gated(scratch.normed @ up.t(), down.shape[1], gated) @ down.t()
        if layer.experts is not None:
            _routed(layer.experts, scratch)
        for _ in range(layer.ffns):
            scratch.x = _summed(scratch.x, reduce)


def _summed(x: torch.Tensor, reduce: Reduce | None) -> torch.Tensor:
    """`x` added up over the ranks; columns that were cut are laid out anew, as messages are."""
    if reduce is None:
        return x
    x = x.contiguous()
    reduce(x)
    return x


def _gated(y: torch.Tensor, wide: int, gated: bool) -> torch.Tensor:
    if not gated:
        return torch.relu(y)
    out = torch.empty((y.shape[0], wide), dtype=y.dtype, device=y.device)
    between.gate(y, out)
    return out


def touched(experts: int, per_token: int, batch: int) -> int:
    """Experts that `batch` tokens use on average: ``E (1 - (1 - k / E)^b)``, rounded."""
    return max(per_token, round(experts * (1 - (1 - per_token / experts) ** batch)))


def even_shares(experts: Experts, rows: int) -> tuple[int, int]:
    """(experts that `rows` tokens use, tokens of each of them)."""
    used = touched(experts.up.shape[0], experts.per_token, rows)
    return used, -(-rows * experts.per_token // used)


def _routed(experts: Experts, scratch: Scratch) -> None:
    """The expected number of experts, each with its even share of the tokens, in two batched products."""
    rows = scratch.normed.shape[0]
    if experts.router is not None:
        torch.topk(scratch.normed @ experts.router.t(), experts.per_token, dim=-1)
    used, each = even_shares(experts, rows)
    width, wide = experts.up.shape[2], experts.down.shape[2]
    tokens = take(scratch.normed, width).repeat(-(-used * each // rows), 1)[: used * each].view(used, each, width)
    y = torch.bmm(tokens, experts.up[:used].transpose(1, 2)).flatten(0, 1)
    y = _gated(y, wide, experts.up.shape[1] == 2 * wide).view(used, each, wide)
    y = torch.bmm(y, experts.down[:used].transpose(1, 2)).flatten(0, 1)[:rows]
    scratch.x = take(y, scratch.x.shape[1])
