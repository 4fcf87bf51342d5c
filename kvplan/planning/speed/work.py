"""What one pipeline stage's most loaded rank reads, computes and sends: bytes and FLOPs, no seconds.

Counted: every weight matrix but the embedding table (a lookup; a tied table is read as the head),
routed experts by the expected number of distinct ones, the cache as each kind reads it, states read and
written. Not counted: activations (they stay in the on-chip caches), what a step appends to the cache
(one entry a layer), encoders and the projections of what they hand on, which do not run in a decode step, and
padding. Draft layers are work of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cache.bytes import KvFormats, edge_surplus, rows_of, state_bytes
from kvplan.spec.arrays import smaller, whole
from kvplan.spec.ffn import MoeFfn
from kvplan.spec.kind import CacheKind, Read, Tokens
from kvplan.spec.model import idle_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvplan.engines.base import Settings, Stage
    from kvplan.planning.weights import RoleWeights
    from kvplan.spec.model import ModelSpec

_IDLE = frozenset({"embedding", "tower", "draft"})
"""Roles that a decode step does not read."""


class Experts(NamedTuple):
    """The routed experts of all layers of a stage that route alike, as one rank holds them."""

    experts: int
    """Of the whole model."""
    per_token: int
    num_bytes: int
    parameters: int
    groups: int
    """Data-parallel replicas whose tokens meet in these experts (1 without expert parallelism)."""

    def touched(self, tokens: Any) -> Any:
        """Expected share of the experts that `tokens` tokens of one replica use: ``1 - (1 - k/E)^b``.

        Each token picks `per_token` of `experts` with equal chances (routers are trained towards it).
        """
        return 1 - (1 - self.per_token / self.experts) ** (tokens * self.groups)


class Kernels(NamedTuple):
    """Kernel launches of one step on a stage, with the usual fusions."""

    linear: int
    attention: int
    layers: int
    """Layers, for what stands between the matrix kernels: norms, rotary, activation, residual."""
    reduces: int
    """Sums over tensor-parallel ranks: behind every mixer and every FFN."""
    routed: int
    """Layers that sort tokens by expert."""


class StageWork(NamedTuple):
    """Everything about a stage that decode and prefill times need."""

    weight_bytes: int
    """Read by every step, whatever the batch."""
    parameters: int
    """Multiplied by every token, without routed experts and without the head."""
    head_bytes: int
    """The part of `weight_bytes` that turns hidden states into logits."""
    head_parameters: int
    experts: tuple[Experts, ...]
    mixers: tuple[tuple[int, CacheKind], ...]
    """(layers, mixer) of every distinct mixer."""
    formats: KvFormats
    state_bytes: int
    """Of one sequence, all layers."""
    dcp: int
    kernels: Kernels
    hidden_size: int
    vocab_rows: int
    """Rows of the head on this rank; 0 on stages without it."""
    spec: ModelSpec
    """The model as this rank sees it."""
    edge_bytes: int
    """A token's bytes above the format in the model's first and last layers, where this stage has them."""
    draft: StageWork | None = None
    """What proposes one token of speculative decoding, its head included; in nothing above."""


def stage_work(
    model: ModelSpec, stage: Stage, roles: tuple[RoleWeights, ...], formats: KvFormats, settings: Settings
) -> StageWork:
    """The work of a stage's most loaded rank.

    Args:
        model: the whole model, for the number of experts that a rank's share comes from.
        roles: the rank's weights by role.
    """
    spec, sums = stage.spec, {r.role: r for r in roles}
    weights = sum(r.num_bytes for r in roles if r.role not in _IDLE and r.role != "routed_experts")
    parameters = sum(r.parameters for r in roles if r.role not in _IDLE and r.role not in ("routed_experts", "head"))
    weights -= encoded_work(spec, roles).bytes_read
    parameters -= spec.idle_parameters
    head, draft = sums.get("head"), sums.get("draft")
    head_bytes, head_parameters = (head.num_bytes, head.parameters) if head else (0, 0)
    if stage.last and head is None and model.tie_word_embeddings and (table := sums.get("embedding")):
        rows = -(-model.vocab_size // settings.tensor_parallel_size)
        head_parameters = min(rows * model.embedding_width, table.parameters)
        head_bytes = table.num_bytes * head_parameters // table.parameters
        weights += head_bytes
    counted = tuple(spec.mixers())
    made = StageWork(
        weight_bytes=weights, parameters=parameters, head_bytes=head_bytes, head_parameters=head_parameters,
        experts=_experts(model, spec, sums.get("routed_experts"), settings), mixers=counted, formats=formats,
        state_bytes=sum(layers * state_bytes(mixer, formats) for layers, mixer in counted),
        dcp=settings.decode_context_parallel_size, kernels=_kernels(spec, head_bytes > 0),
        hidden_size=model.hidden_size, vocab_rows=head_parameters // model.embedding_width,
        spec=spec, edge_bytes=edge_surplus(spec, formats, ends=(stage.first, stage.last)),
    )  # fmt: skip
    return made if draft is None else made._replace(draft=_draft_work(model, stage, draft, made, settings))


def _draft_work(
    model: ModelSpec, stage: Stage, held: RoleWeights, target: StageWork, settings: Settings
) -> StageWork | None:
    """The work of one proposal, on a rank of the last stage.

    The model's own draft layers are modules that propose in turn, each with a projection before it; another
    checkpoint runs whole. Both pass the model's head, where the draft has none of its own.
    Source: vLLM 0.33.0 ``vllm/v1/spec_decode`` and ``vllm/model_executor/models/deepseek_mtp.py``.
    """
    layers, other = model.draft_layers, model.draft_model
    if not layers:
        return None
    modules = 1 if other is not None else len(layers) // _period(layers)
    spec, whole_spec = (
        replace(base, blocks=blocks, layers=layers[: len(layers) // modules], draft_layers=(), draft_tensors=())
        for base, blocks in ((other or stage.spec, stage.spec.blocks), (other or model, model.blocks))
    )  # fmt: skip
    parts = [
        part._replace(
            role="dense_ffn" if part.role == "draft" else part.role, num_bytes=part.num_bytes // modules,
            parameters=part.parameters // modules,
        )
        for part in held.parts
    ]  # fmt: skip
    if not {"head", "embedding"} & {part.role for part in parts}:
        parts.append(held._replace(role="head", num_bytes=target.head_bytes, parameters=target.head_parameters))
    place = stage._replace(spec=spec, first=False)
    found = stage_work(whole_spec, place, tuple(parts), target.formats, settings)
    # what writes the hidden state: norms stand in one tensor too, with a row each
    projections = sum(1 for t in model.draft_tensors if t.role == "draft" and t.shape[0] == model.hidden_size)
    kernels = found.kernels._replace(linear=found.kernels.linear + projections)
    return found._replace(kernels=kernels, edge_bytes=0)


class EncodedWork(NamedTuple):
    """What K and V of an encoder's rows take on one rank: once a request, and in no decode step."""

    flops: int
    bytes_read: int
    """Of the projections."""


def encoded_work(spec: ModelSpec, roles: Sequence[RoleWeights]) -> EncodedWork:
    """The projections of what an encoder hands on: ``2 x parameters x rows`` FLOPs.

    Args:
        spec: the layers of a rank, with its share of their heads.
        roles: the rank's weights by role.
    """
    attention = next((r for r in roles if r.role == "attention"), None)
    if attention is None or not (idle := spec.idle_parameters):
        return EncodedWork(0, 0)
    flops = 0
    for layers, mixer in spec.mixers():
        rows = max((stream.fixed_entries or 0 for stream in mixer.streams()), default=0)
        flops += 2 * layers * rows * sum(t.elements for t in idle_tensors(mixer, spec.hidden_size))
    return EncodedWork(flops, attention.num_bytes * idle // attention.parameters)


def _period(layers: tuple[str, ...]) -> int:
    """Layers of a module: after so many the names come again."""
    count = len(layers)
    return next(n for n in range(1, count + 1) if count % n == 0 and layers == layers[:n] * (count // n))


def _experts(model: ModelSpec, spec: ModelSpec, held: RoleWeights | None, settings: Settings) -> tuple[Experts, ...]:
    """Routed experts by (experts, experts per token); bytes in proportion to parameters."""
    if held is None or not held.parameters:
        return ()
    sizes: dict[tuple[int, int], int] = {}
    for name, layers in spec.layer_counts.items():
        for full, part in zip(model.blocks[name].ffns, spec.blocks[name].ffns, strict=True):
            if isinstance(full, MoeFfn):
                elements = sum(t.elements for t in part.tensors(model.hidden_size) if t.role == "routed_experts")
                key = (full.experts, full.experts_per_token)
                sizes[key] = sizes.get(key, 0) + layers * elements
    total = sum(sizes.values())
    groups = settings.data_parallel_size if settings.enable_expert_parallel else 1
    return tuple(
        Experts(n, k, held.num_bytes * size // total, held.parameters * size // total, groups)
        for (n, k), size in sizes.items()
    )


def _kernels(spec: ModelSpec, head: bool) -> Kernels:
    linear, attention, routed = int(head), 0, 0
    for name, layers in spec.layer_counts.items():
        block = spec.blocks[name]
        for mixer in block.mixers:
            indexer = any(r.stream.role == "index" for r in mixer.reads())
            linear += layers * (mixer.linear_kernels + 2 * indexer)
            attention += layers * ((1 if mixer.reads() or mixer.states() else 0) + indexer)
        for ffn in block.ffns:
            if isinstance(ffn, MoeFfn):
                routed += layers
                linear += layers * (3 + (2 if ffn.shared_intermediate_size else 0))
            else:
                linear += 2 * layers
    return Kernels(linear, attention, spec.num_layers, count_reduces(spec), routed)


def count_reduces(spec: ModelSpec) -> int:
    """Sums over tensor-parallel ranks in a step: each mixer and each FFN with matrices ends in a divided one.

    Source: ``RowParallelLinear`` in vLLM 0.33.0 ``vllm/model_executor/models/`` (llama, nemotron_h, whisper).
    """
    total = 0
    for name, layers in spec.layer_counts.items():
        parts = (*spec.blocks[name].mixers, *spec.blocks[name].ffns)
        total += layers * sum(any(t.role != "norm" for t in part.tensors(spec.hidden_size)) for part in parts)
    return total


def weight_bytes(work: StageWork, tokens: Any) -> Any:
    """Weight bytes that a step over `tokens` tokens reads (int or array; whole bytes)."""
    if not work.experts:
        return work.weight_bytes + tokens * 0
    return work.weight_bytes + whole(sum(e.num_bytes * e.touched(tokens) for e in work.experts))


def kv_bytes(work: StageWork, context: Tokens) -> Any:
    """Cache bytes that a decode step reads for one sequence of `context` tokens, states read and written.

    For full attention this is what the sequence holds; with windows and top-k less, with shared caches more.
    With decode context parallelism a rank reads its share of the streams without a window.
    """
    total = context * 0 + 2 * work.state_bytes
    total += reads_bytes(work, [(layers, mixer.reads()) for layers, mixer in work.mixers], context)
    mine = -(-context // work.dcp) if work.dcp > 1 else context
    return total + mine * work.edge_bytes if work.edge_bytes else total


def reads_bytes(work: StageWork, reads: Iterable[tuple[int, tuple[Read, ...]]], context: Tokens) -> Any:
    """Bytes of some reads of one sequence of `context` tokens, each of so many layers."""
    total: Any = context * 0
    mine = -(-context // work.dcp) if work.dcp > 1 else context
    for layers, some in reads:
        for read, (stream, size, fmt) in zip(some, rows_of((r.stream for r in some), work.formats), strict=True):
            entries: Any = read.entries(mine if stream.window is None else context)
            total = total + entries * (layers * size)
            if fmt.residual_tokens:
                newest = smaller(entries, fmt.residual_tokens)
                total = total + newest * (layers * (stream.heads * stream.head_dim * 2 - size))
    return total


def token_parameters(work: StageWork, *, head: bool = True) -> int:
    """Parameters that one token of the replica multiplies on this rank: 2 FLOPs each."""
    routed = sum(e.parameters * e.per_token * e.groups // e.experts for e in work.experts)
    return work.parameters + routed + (work.head_parameters if head else 0)


def attention_flops(work: StageWork, context: Tokens, index: Any = None) -> Any:
    """FLOPs of one new token over its own cache and states, on this rank.

    Args:
        index: what a FLOP of index scores counts for; `Rates.index_share` makes it as many FLOPs as take as long;
            None: one.
    """
    total: Any = context * 0
    for layers, mixer in work.mixers:
        total = total + layers * mixer.attention_flops(context)
    for layers, read in () if index is None else index_reads(work):
        total = total - (1 - index) * (layers * read.flops * read.entries(context))
    return total


def prefill_attention_flops(work: StageWork, tokens: Tokens, index: Any = None) -> Any:
    """FLOPs of attention and states over a causal prefill of `tokens` tokens of one sequence, on this rank."""
    total: Any = tokens * 0
    for layers, mixer in work.mixers:
        total = total + layers * mixer.prefill_flops(tokens)
    for layers, read in () if index is None else index_reads(work):
        total = total - (1 - index) * (layers * read.prefill(tokens))
    return total


def index_reads(work: StageWork) -> list[tuple[int, Read]]:
    """(layers, read) of every stream of index keys."""
    return [(layers, r) for layers, mixer in work.mixers for r in mixer.reads() if r.stream.role == "index"]
