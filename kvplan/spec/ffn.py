"""Feed-forward parts of a layer: dense and mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kvplan.spec.kind import LayerPart, Tensor


@dataclass(frozen=True, kw_only=True, repr=False)
class DenseFfn(LayerPart):
    """``hidden -> intermediate -> hidden``, three matrices when gated, two when not."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False
    kind: Literal["dense"] = "dense"

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        wide = self.intermediate_size
        found = [
            Tensor("ffn_up", "dense_ffn", (wide, hidden_size)),
            Tensor("ffn_down", "dense_ffn", (hidden_size, wide)),
        ]
        if self.gated:
            found.insert(0, Tensor("ffn_gate", "dense_ffn", (wide, hidden_size)))
        if self.bias:
            found.append(Tensor("ffn_bias", "norm", (wide * (2 if self.gated else 1) + hidden_size,)))
        return tuple(found)

    def shard(self, tp: int) -> DenseFfn:
        """The wide dimension divided, rounded up where it does not divide."""
        return replace(self, intermediate_size=-(-self.intermediate_size // tp))


@dataclass(frozen=True, kw_only=True, repr=False)
class MoeFfn(LayerPart):
    """`experts` small FFNs of which each token uses `experts_per_token`, plus shared ones."""

    experts: int
    experts_per_token: int
    intermediate_size: int
    """Of one routed expert."""
    shared_intermediate_size: int = 0
    """Of all shared experts together; 0: none."""
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"shared_intermediate_size"})
    expert_hidden_size: int | None = None
    """Width the experts work at where it is not the hidden size (latent experts)."""
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    router: bool = True
    shared_gate: bool = False
    """A learned scalar gate on the shared expert."""
    kind: Literal["moe"] = "moe"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token ({self.experts_per_token}) exceeds experts ({self.experts})")

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        wide, width, n = self.intermediate_size, self.expert_hidden_size or hidden_size, self.experts
        found = [
            Tensor("ffn_up_exps", "routed_experts", (wide, width), n),
            Tensor("ffn_down_exps", "routed_experts", (width, wide), n),
        ]
        if self.gated:
            found.insert(0, Tensor("ffn_gate_exps", "routed_experts", (wide, width), n))
        if self.router:
            found.append(Tensor("ffn_gate_inp", "router", (n, hidden_size)))
        if self.expert_hidden_size:
            found.append(Tensor("ffn_latent", "shared_experts", (self.expert_hidden_size, hidden_size), 2))
        if self.shared_intermediate_size:
            shared = DenseFfn(intermediate_size=self.shared_intermediate_size, gated=self.gated)
            found += [Tensor(f"{t.name}_shexp", "shared_experts", t.shape) for t in shared.tensors(hidden_size)]
        if self.shared_gate:
            found.append(Tensor("ffn_gate_inp_shexp", "router", (1, hidden_size)))
        if self.bias:
            found.append(Tensor("ffn_bias_exps", "norm", (n, wide * (2 if self.gated else 1) + width)))
        if self.router_bias:
            found.append(Tensor("ffn_gate_inp_bias", "norm", (n,)))
        return tuple(found)

    def shard(self, tp: int) -> MoeFfn:
        """Every expert's wide dimension divided, and the shared experts'."""
        return self.cut(tp, tp)

    def cut(self, ranks: int, tp: int) -> MoeFfn:
        """Every routed expert's wide dimension divided over `ranks`, the shared experts' over `tp`."""
        return replace(
            self,
            intermediate_size=-(-self.intermediate_size // ranks),
            shared_intermediate_size=-(-self.shared_intermediate_size // tp),
        )

    def shard_experts(self, ranks: int, tp: int) -> MoeFfn:
        """Whole experts dealt over `ranks` (expert parallelism); shared experts divided by `tp`.

        Raises:
            ValueError: more ranks than experts.
        """
        if ranks > self.experts:
            raise ValueError(f"{self.experts} experts cannot be dealt over {ranks} ranks")
        held = -(-self.experts // ranks)
        return replace(
            self,
            experts=held,
            experts_per_token=min(self.experts_per_token, held),
            shared_intermediate_size=-(-self.shared_intermediate_size // tp),
        )


FFNS: dict[str, type[LayerPart]] = {"dense": DenseFfn, "moe": MoeFfn}
