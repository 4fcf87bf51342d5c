"""Layers with random weights in plain torch operators and any precision, for decode in RAM.

Layers of K and V with one gated, dense FFN; `kvplan.probe.stack` has those of every model, in 16 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.probe import extras
from kvplan.spec.ffn import DenseFfn

if TYPE_CHECKING:
    from kvplan.probe.session import Session


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
    def of(cls, session: Session) -> StackShape | None:
        """From the model; None where it is more than plain attention and gated, dense FFNs of one width."""
        layer = next((x for x in session.layout.layers if x.kind in ("full", "sliding")), None)
        if layer is None or layer.query_heads is None or len(layer.streams) < 2:
            return None
        ffn = _ffn_rows(session.layout.spec)
        if ffn is None:
            return None
        spec, key, value = session.layout.spec, layer.streams[0], layer.streams[1]
        cpu = session.device.kind == "cpu"
        return cls(
            layers=1, hidden=spec.hidden_size, query_heads=layer.query_heads, kv_heads=key.heads,
            head_dim=key.head_dim, head_dim_v=value.head_dim, ffn=ffn, batch=2 if cpu else 16,
            context=128 if cpu else 4096, dtype="float32" if cpu else "bfloat16",
        )  # fmt: skip


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
