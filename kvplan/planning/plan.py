"""The result of a plan: what is printed, what is serialised, what other verbs build on.

Every figure says in its name what it counts. Field names and their order are the keys of
``plan --json`` (schema ``kvplan.plan/1``): keys may be added, never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.base import Allocation, Term
from kvplan.planning.evaluate import Binding

if TYPE_CHECKING:
    from kvplan.planning.cost import CostFigures
    from kvplan.planning.prefix import AtPrefix
    from kvplan.planning.speed.figures import DecodeFigures, PrefillFigures
    from kvplan.planning.workload import ServingFigures

SCHEMA = "kvplan.plan/1"
OPTIONAL_KEYS = ("cost", "serving")
"""Keys of the JSON that are there only where they were asked for."""


class ModelFigures(NamedTuple):
    """The model that was planned."""

    id: str
    name: str
    architecture: str
    num_layers: int
    max_position_embeddings: int | None
    parameters: int
    active_parameters: int
    confidence: str


class KvGroup(NamedTuple):
    """Layers that cache the same: bytes are of one layer, unsharded."""

    kind: str
    layers: int
    kv_heads: int | None
    head_dim_k: int | None
    head_dim_v: int | None
    window: int | None
    bytes_per_token_per_layer: int
    fixed_bytes_per_layer: int
    ratio: int | None
    """Tokens per entry where entries are compressed."""


class SharedPrefix(NamedTuple):
    """What a common prompt prefix saves over the workload's concurrent requests."""

    tokens_shared: int
    bytes_saved: int


class KvFigures(NamedTuple):
    """What the cache costs. Unsharded unless the name says per GPU."""

    bytes_per_token: int
    bytes_per_token_per_gpu: int
    marginal_bytes_per_token_at_max_len: int
    fixed_bytes_per_sequence: int
    bytes_per_sequence: int
    bytes_per_sequence_per_gpu: int
    exceeds_weights_at_tokens: int | None
    shared_prefix: SharedPrefix | None
    groups: tuple[KvGroup, ...]
    format_k: str
    format_v: str


class RankMemory(NamedTuple):
    """Memory of one rank: weights + activation + cuda_graph + runtime + kv + unused = total."""

    rank: int
    gpu: str
    total_bytes: int
    budget_bytes: int
    weights_bytes: int
    activation_bytes: int
    cuda_graph_bytes: int
    runtime_bytes: int
    kv_bytes: int
    unused_bytes: int
    terms: tuple[Term, ...]
    weights_by_role: dict[str, int]
    replicated_bytes: int
    """Part of the weights that every tensor-parallel rank holds a whole copy of."""
    pipeline_stage: int


class AtLength(NamedTuple):
    """Requests of `tokens` tokens that one replica runs at once."""

    tokens: int
    requests: int


class CapacityEnd(NamedTuple):
    """What the cache of a replica holds with every modelled term of the memory at one end of its range."""

    kv_tokens: int | None
    max_concurrency: float
    max_single_request_tokens: int


class Capacity(NamedTuple):
    """What the cache holds, per engine replica unless the name says total."""

    block_size: int | None
    num_blocks: int | None
    kv_tokens: int | None
    engine_reported_tokens: int | None
    max_concurrency: float | None
    max_single_request_tokens: int | None
    at: tuple[AtLength, ...]
    max_num_seqs_allowed: int | None
    min_gpu_memory_utilization: float | None
    total_kv_tokens: int | None
    total_max_concurrency: float | None
    by_shared_prefix: tuple[AtPrefix, ...] = ()
    """Against the length of the system prompt; empty without ``--shared-prefix-tokens``."""
    low: CapacityEnd | None = None
    """With the terms at their upper bounds; None: nothing about the memory of the cache is modelled."""
    high: CapacityEnd | None = None
    """With the terms at their lower bounds."""


class Hint(NamedTuple):
    """A setting to paste, and what it brings."""

    flag: str
    value: str
    effect: str


class Verdict(NamedTuple):
    """Whether the deployment fits, and what to change where it does not."""

    fits: bool | None
    reason: str
    binding: Binding | None
    hints: tuple[Hint, ...]
    notes: tuple[str, ...] = ()
    """What this layout and these settings do to the cache, each computed."""


class Plan(NamedTuple):
    """One deployment, worked through."""

    schema: str
    inputs: dict[str, Any]
    model: ModelFigures
    kv: KvFigures
    memory: tuple[RankMemory, ...] | None
    capacity: Capacity | None
    allocation: Allocation | None
    decode: DecodeFigures | None
    """None without a GPU, or where its bandwidth is not known."""
    prefill: PrefillFigures | None
    """None also where its FLOPs are not known."""
    verdict: Verdict
    warnings: tuple[str, ...]
    cost: CostFigures | None = None
    """None: nothing was asked about traffic, targets or prices. The same of `serving`."""
    serving: ServingFigures | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing that was asked for is missed: it fits, as far as anything says, and targets hold."""
        return self.verdict.fits is not False and (self.serving is None or self.serving.targets_hold is not False)

    def to_dict(self) -> dict[str, Any]:
        """The contract's JSON object, ready for ``json.dumps``."""
        plain: dict[str, Any] = to_plain(self)
        return plain if self.serving is not None else {k: v for k, v in plain.items() if k not in OPTIONAL_KEYS}


def to_plain(value: Any) -> Any:
    """Named tuples as dicts, tuples as lists, the rest as it is."""
    if hasattr(value, "_fields"):
        return {name: to_plain(item) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value
