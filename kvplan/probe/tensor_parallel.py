"""Layers with random weights in plain torch operators and any precision, for decode in RAM.

Layers of K and V with one gated, dense FFN; `kvplan.probe.stack` has those of every model, in 16 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cache.attention import Attention
from kvplan.probe import extras
from kvplan.spec.ffn import DenseFfn

if TYPE_CHECKING:
    from kvplan.probe.session import Session
    from kvplan.spec.model import ModelSpec


class StackShape(NamedTuple):
    """What the layers look like."""

    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    ffn: int
    """Rows of the gate and of the up projection."""
    batch: int
    context: int
    dtype: str

    @property
    def element_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def layer_bytes(self) -> int:
        """Weights and cache of one layer."""
        q, k, v = self.query_heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim_v
        weights = self.hidden * (q + k + v + 3 * self.ffn) + self.query_heads * self.head_dim_v * self.hidden
        return (weights + self.batch * self.context * (k + v)) * self.element_bytes

    @classmethod
    def of(cls, session: Session, longest: int) -> StackShape | None:
        """From the model; None where it is more than plain attention of one kind and gated, dense FFNs of one width.

        Args:
            longest: context up to which a layer has to read every entry.
        """
        spec = session.layout.spec
        attention, ffn = _plain_attention(spec, longest), _ffn_rows(spec)
        if attention is None or ffn is None:
            return None
        cpu = session.device.kind == "cpu"
        found = cls(
            layers=1, hidden=spec.hidden_size, query_heads=attention.query_heads, kv_heads=attention.kv_heads,
            head_dim=attention.head_dim, head_dim_v=attention.dim_v, ffn=ffn, batch=2 if cpu else 16,
            context=128 if cpu else 4096, dtype="float32" if cpu else "bfloat16",
        )  # fmt: skip
        own = found._replace(batch=0).layer_bytes // found.element_bytes
        return found if all(_matrices(spec, name) == own for name in set(spec.layers)) else None


def _plain_attention(spec: ModelSpec, longest: int) -> Attention | None:
    """The one mixer of every layer, if it holds K and V alone and reads all of them up to `longest` tokens."""
    blocks = [spec.blocks[name] for name in set(spec.layers)]
    if any(len(block.mixers) != 1 for block in blocks):
        return None
    mixers = [block.mixers[0] for block in blocks]
    plain = [m for m in mixers if isinstance(m, Attention) and not m.states() and _reads_all(m, longest)]
    shapes = {(m.query_heads, m.kv_heads, m.head_dim, m.dim_v) for m in plain}
    return plain[0] if len(plain) == len(mixers) and len(shapes) == 1 else None


def _reads_all(mixer: Attention, longest: int) -> bool:
    """Whether a token reads K and V of its own layer, an entry a token, up to `longest` tokens, and nothing else."""
    streams, reads = mixer.streams(), mixer.reads()
    own = [s.role for s in streams] == ["k", "v"] == [r.stream.role for r in reads]
    return own and all(r.stream in streams and int(r.stream.entries(longest)) == longest for r in reads)


def _matrices(spec: ModelSpec, name: str) -> int:
    """Elements of what a layer multiplies."""
    return sum(t.elements for t in spec.block_tensors(name) if len(t.shape) == 2 and t.role != "norm")


def _ffn_rows(spec: Any) -> int | None:
    """Width of the dense FFN that every layer has; None where a layer has experts, no gate, or another width."""
    found = [spec.blocks[name].ffns for name in set(spec.layers)]
    if not all(len(ffns) == 1 and isinstance(ffns[0], DenseFfn) and ffns[0].gated for ffns in found):
        return None
    widths = {ffns[0].intermediate_size for ffns in found}
    return int(widths.pop()) if len(widths) == 1 else None


class Stack:
    """The layers, their weights and their caches."""

    def __init__(self, shape: StackShape, device: Any, seed: int) -> None:
        torch = extras.torch()
        torch.manual_seed(seed)
        self.shape = shape
        dtype = getattr(torch, shape.dtype)

        def draw(*size: int) -> Any:
            return torch.randn(size, dtype=dtype, device=device) * size[-1] ** -0.5

        q = shape.query_heads * shape.head_dim
        k, v = shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim_v
        self.cuts = [q, k, v]
        self.layers = [
            {
                "qkv": draw(q + k + v, shape.hidden), "out": draw(shape.hidden, shape.query_heads * shape.head_dim_v),
                "up": draw(2 * shape.ffn, shape.hidden), "down": draw(shape.hidden, shape.ffn),
                "k": draw(shape.batch, shape.kv_heads, shape.context, shape.head_dim),
                "v": draw(shape.batch, shape.kv_heads, shape.context, shape.head_dim_v),
            }
            for _ in range(shape.layers)
        ]  # fmt: skip
        self.x = draw(shape.batch, shape.hidden)

    def step(self) -> Any:
        """One token for every sequence."""
        functional = extras.torch().nn.functional
        shape, x = self.shape, self.x
        for layer in self.layers:
            h = functional.rms_norm(x, (shape.hidden,))
            q, k, v = functional.linear(h, layer["qkv"]).split(self.cuts, -1)
            layer["k"][:, :, -1] = k.unflatten(-1, (shape.kv_heads, -1))
            layer["v"][:, :, -1] = v.unflatten(-1, (shape.kv_heads, -1))
            seen = functional.scaled_dot_product_attention(
                q.unflatten(-1, (shape.query_heads, -1)).unsqueeze(2), layer["k"], layer["v"], enable_gqa=True
            )
            out = functional.linear(seen.flatten(1), layer["out"])
            x = x + out
            gate, up = functional.linear(functional.rms_norm(x, (shape.hidden,)), layer["up"]).chunk(2, -1)
            out = functional.linear(functional.silu(gate) * up, layer["down"])
            x = x + out
        return x
