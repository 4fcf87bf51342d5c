"""The part of a model that is on the device for a decode step, and what it stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from kvplan.probe import stack
from kvplan.probe.kernels import store
from kvplan.probe.readers import head_shape
from kvplan.units import human_bytes

if TYPE_CHECKING:
    from kvplan.cache.bytes import KvFormats
    from kvplan.probe.kernels.store import HeadShape, PagedKv
    from kvplan.probe.session import Session
    from kvplan.spec.kind import CacheKind
    from kvplan.spec.model import ModelSpec

_CPU_LAYERS = 2
"""Layers on a CPU at most, but for one of every block: the others are scaled."""
_VOCAB_ALIGN = 64
"""Rows that the head is padded to, as engines do: products of odd widths are several times slower."""
_CPU_WEIGHT_SHARE, _WEIGHT_SHARE = 0.75, 0.55
"""Of what a section may hold that goes to weights."""

RunLayers = Callable[["stack.Reduce | None", Iterable[int]], None]
"""Runs some of the layers that are held, with a sum over ranks."""


@dataclass(kw_only=True)
class Held:
    """The part of the model that is on the device."""

    names: list[str]
    """Block of every layer."""
    layers: list[stack.Layer]
    head: torch.Tensor | None
    """[vocabulary, hidden]; None: a step ends before it."""
    fmt: str
    instead: str = ""
    """What `fmt` stands for, where it is not the plan's format."""
    wrong: list[tuple[str, float]] = field(default_factory=list)
    """(name, error) of every attention that ran and lay too far from float64."""
    pools: dict[HeadShape, PagedKv] = field(default_factory=dict)
    """Pages of all layers with this attention."""

    def whole(self, spec: ModelSpec) -> bool:
        """Whether every layer is held."""
        return len(self.names) == spec.num_layers

    def told(self, spec: ModelSpec) -> str:
        """How much is held, for a note; empty where all is."""
        if self.whole(spec):
            return ""
        parts = [f"{count} of {spec.layer_counts[name]} {name}" for name, count in Counter(self.names).items()]
        what = f"{len(self.names)} of {spec.num_layers}" if len(parts) == 1 else ", ".join(parts)
        return f"{what} layers, scaled"

    def sampled(
        self, spec: ModelSpec, layers: RunLayers, sample: Callable[[Callable[[], None]], list[float]],
        reduce: stack.Reduce | None = None,
    ) -> list[float]:  # fmt: skip
        """Seconds of all layers of the model, a figure a sample: those of each block apart, where some are not held.

        Args:
            sample: times what it is given; as many samples each time.
        """
        if self.whole(spec):
            return sample(lambda: layers(reduce, range(len(self.names))))
        total: list[float] = []
        for name, layer_count in spec.layer_counts.items():
            mine = [index for index, block in enumerate(self.names) if block == name]
            grown = layer_count / len(mine)
            taken = [grown * seconds for seconds in sample(_running(layers, reduce, mine))]
            total = [a + b for a, b in zip(total, taken, strict=True)] if total else taken
        return total


def _running(layers: RunLayers, reduce: stack.Reduce | None, chosen: Sequence[int]) -> Callable[[], None]:
    return lambda: layers(reduce, chosen)


def hold(session: Session, *, with_head: bool = True) -> Held | str:
    """As many layers as fit, one of every block at least, and the head; a sentence where that is too much."""
    spec, limits = session.layout.spec, session.limits
    device = session.device.torch_device
    vocab = -(-spec.vocab_size // _VOCAB_ALIGN) * _VOCAB_ALIGN
    head_bytes = 2 * vocab * spec.hidden_size if with_head else 0
    most = limits.max_bytes * (_WEIGHT_SHARE if session.device.is_cuda else _CPU_WEIGHT_SHARE)
    sizes = {name: stack.layer_bytes(spec, name) for name in spec.layer_counts}
    if (least := sum(sizes.values()) + head_bytes) > most:
        what = "one layer" if len(sizes) == 1 else f"a layer of each of {len(sizes)} blocks"
        return (
            f"{what}{' and the head' if with_head else ''} {'take' if with_head else 'takes'} {human_bytes(least)}, "
            f"which does not fit into --max-memory ({human_bytes(limits.max_bytes)}, of which weights may take "
            f"{human_bytes(int(most))})"
        )
    limit = spec.num_layers if session.device.is_cuda else _CPU_LAYERS
    names = chosen_layers(spec, sizes, int(most - head_bytes), limit)
    session.say(f"decode step, weights of {len(names)} of {spec.num_layers} layers")
    layers = stack.build(spec, names, state_bytes_of(session), device, session.seed)
    generator = torch.Generator(device=device).manual_seed(session.seed)
    head = stack.random_weight((vocab, spec.hidden_size), device, generator) if with_head else None
    fmt, instead = cache_format(session)
    return Held(names=names, layers=layers, head=head, fmt=fmt, instead=instead)


def chosen_layers(spec: ModelSpec, sizes: dict[str, int], room: int, limit: int) -> list[str]:
    """Blocks of the layers that are held, in the model's order: one of each, then whichever lags behind its share.

    Args:
        sizes: bytes of a layer of every block.
        room: bytes that they may take together, which one of each does not exceed.
        limit: layers at most, but for one of each.
    """
    wanted, held = spec.layer_counts, dict.fromkeys(sizes, 1)
    room -= sum(sizes.values())
    growing = set(sizes)
    while growing and sum(held.values()) < limit:
        name = min(sorted(growing), key=lambda n: held[n] / wanted[n])
        if held[name] == wanted[name] or sizes[name] > room:
            growing.remove(name)
            continue
        held[name] += 1
        room -= sizes[name]
    found, left = [], Counter(held)
    for name in spec.layers:
        if left[name]:
            found.append(name)
            left[name] -= 1
    return found


def state_bytes_of(session: Session) -> Callable[[CacheKind], int]:
    """Mixer -> bytes of its states of one sequence."""
    from kvplan.cache.bytes import state_bytes

    return lambda mixer: int(state_bytes(mixer, session.layout.formats))


def cache_format(session: Session) -> tuple[str, str]:
    """(the plan's format where the probe has pages of all its heads in it, else bf16; what that stands for).

    Activations and weights here are bf16, so a cache in fp16 is one in bf16: the same bytes, the same products.
    """
    k, v = session.layout.formats.k.name, session.layout.formats.v.name
    if k == v == "fp16":
        return "bf16", "in place of fp16, which takes the same bytes"
    if k == v == "bf16":
        return "bf16", ""
    heads = {shape for _, mixer in session.layout.spec.mixers() if (shape := head_shape(mixer)) is not None}
    if k != v or k not in store.FORMATS or any(store.unserved(shape, k) for shape in heads):
        return "bf16", f"in place of {k if k == v else f'{k} and {v}'}, of which there are no pages here"
    return k, ""


def formats_run(session: Session, fmt: str) -> KvFormats:
    """The plan's formats with those of K and V that a step runs with."""
    from kvplan.spec.formats import get_format

    run = get_format(fmt)
    return session.layout.formats._replace(k=run, v=run)
