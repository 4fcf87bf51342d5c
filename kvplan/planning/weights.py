"""Weight bytes of a rank, by role and by storage format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kvplan.spec.formats import Format, get_format
from kvplan.spec.kind import Tensor

if TYPE_CHECKING:
    from kvplan.spec.model import Checkpoint, ModelSpec


class WeightFormat(NamedTuple):
    """Which format each role of a model's weights is stored in."""

    quantized: Format
    roles: frozenset[str]
    """Roles stored in `quantized`; the others are stored in `rest`."""
    rest: Format
    source: str
    overrides: dict[str, Format] | None = None
    """Roles with a format of their own."""
    measured: dict[str, tuple[int, int]] | None = None
    """role -> (bytes of the whole model as its files hold them, bytes as the formats give them); None: no files."""

    def of(self, role: str) -> Format:
        if self.overrides and role in self.overrides:
            return self.overrides[role]
        return self.quantized if role in self.roles else self.rest


def weight_format(model: ModelSpec, name: str) -> WeightFormat:
    """The formats behind ``--weights NAME``; ``auto`` is what the checkpoint says.

    Raises:
        UnknownNameError: no such weight format.
    """
    rest = get_format(model.dtype, use="weights", where=f"{model.id}: dtype")
    if name == "auto":
        if model.checkpoint is None:
            return WeightFormat(rest, frozenset(), rest, f"dtype of {model.id}")
        if model.checkpoint.stored:
            return _measured(model, rest)
        return _declared(model, model.checkpoint, rest)
    chosen = get_format(name, use="weights", where="--weights")
    if chosen.block_elements == 1 and chosen.block_bytes >= 2 and not chosen.mix:
        return WeightFormat(chosen, frozenset(), chosen, "--weights")
    if chosen.rest_format is not None:  # GGUF: vectors in fp32, encoders in a 16-bit file of their own
        towers = {"tower": get_format("fp16")}
        rest = get_format(chosen.rest_format, use="weights")
        return WeightFormat(chosen, frozenset(chosen.weight_roles), rest, "--weights", towers)
    return WeightFormat(chosen, frozenset(chosen.weight_roles), rest, "--weights")


def _declared(model: ModelSpec, checkpoint: Checkpoint, rest: Format) -> WeightFormat:
    """The formats that a checkpoint says its roles are stored in."""
    stored = get_format(checkpoint.format, use="weights", where=f"{model.id}: checkpoint")
    others = {r: get_format(f, use="weights") for r, f in checkpoint.overrides.items()}
    return WeightFormat(stored, frozenset(checkpoint.roles), rest, f"checkpoint of {model.id}", others)


def _measured(model: ModelSpec, rest: Format) -> WeightFormat:
    """The same with the bytes that the headers of its files add up to, role by role."""
    from kvplan.spec.stored import loaded_bytes

    assert model.checkpoint is not None  # the caller looked
    formats = _declared(model, model.checkpoint, rest)
    whole = rank_weights(model, model, formats, tp=1, vocab_rows=model.vocab_size, drafts=True)
    given = {part.role: part.num_bytes for part in whole}
    held = loaded_bytes(model)
    if "draft" not in held or "draft" not in given:  # none in the files, or none that runs
        held.pop("draft", None)
        given.pop("draft", None)
    measured = {role: (held.get(role, 0), given.get(role, 0)) for role in sorted({*given, *held})}
    return formats._replace(measured=measured, source=f"tensors in the files of {model.id}")


class RoleWeights(NamedTuple):
    """Weights of one role on one rank."""

    role: str
    parameters: int
    num_bytes: int
    replicated_bytes: int
    """The part of `num_bytes` that every tensor-parallel rank holds a whole copy of."""
    parts: tuple[RoleWeights, ...] = ()
    """Of drafts: what they are made of, by role."""


class _Sum:
    def __init__(self) -> None:
        self.parameters = self.num_bytes = self.replicated = 0


def rank_weights(
    model: ModelSpec,
    rank: ModelSpec,
    formats: WeightFormat,
    *,
    tp: int,
    vocab_rows: int,
    first: bool = True,
    last: bool = True,
    first_layer: int = 0,
    drafts: bool = False,
) -> list[RoleWeights]:
    """Weights by role on a rank.

    Args:
        model: the whole model.
        rank: the same model as `kvplan.cache.sharding.shard_model` made it for this rank.
        tp: tensor parallel size; vocabulary and loose tensors are divided by it.
        vocab_rows: rows of the embedding and of the head on this rank.
        first, last: whether the rank is on the first or last pipeline stage.
        first_layer: index of the stage's first layer in the model.
        drafts: whether the model's own draft layers are loaded too; those of another checkpoint are `draft_weights`.
    """
    sums: dict[str, _Sum] = {}
    drafted: dict[str, _Sum] = {}

    def add(tensor: Tensor, num_bytes: int, times: int, replicated: bool, sums: dict[str, _Sum] = sums) -> None:
        total = sums.setdefault(tensor.role, _Sum())
        total.parameters += times * tensor.elements
        total.num_bytes += times * num_bytes
        if replicated:
            total.replicated += times * num_bytes

    if formats.quantized.mix:
        inside = _layer_tensors_one_by_one(model, rank, formats, first_layer, tp)
    else:
        inside = _layer_tensors(model, rank, formats, tp)
    for tensor, num_bytes, times, whole in inside:
        add(tensor, num_bytes, times, whole and tp > 1)
    for tensor, divided in _outside_tensors(model, vocab_rows, tp, first, last):
        add(tensor, _stored(model, tensor, formats, 0), 1, not divided and tp > 1)
    if drafts and last and model.draft_model is None:
        for tensor, num_bytes in _draft_tensors(model, rank, formats, tp):
            add(tensor, num_bytes, 1, False, drafted)
    found = _by_role(sums)
    if drafted:
        found.append(_drafts(_by_role(drafted)))
    return found if formats.measured is None else _as_measured(found, formats.measured, tp, first)


def _by_role(sums: dict[str, _Sum]) -> list[RoleWeights]:
    return [RoleWeights(role, s.parameters, s.num_bytes, s.replicated) for role, s in sums.items()]


def _drafts(parts: list[RoleWeights]) -> RoleWeights:
    """Drafts, which have one role whatever they are made of."""
    parameters, num_bytes, replicated = (sum(sizes) for sizes in list(zip(*parts, strict=True))[1:4])
    return RoleWeights("draft", parameters, num_bytes, replicated, tuple(parts))


def draft_weights(model: ModelSpec, tp: int, vocab_rows: int) -> RoleWeights | None:
    """What a rank of the last stage holds of the checkpoint that drafts for a model; None: there is none.

    It is divided as the model is and stored as its own files say, whatever the model's weights are stored in.
    Source: vLLM 0.33.0 ``vllm/config/speculative.py``, ``quantization`` and ``create_draft_parallel_config``.

    Args:
        vocab_rows: rows of the draft's embedding and head on this rank.

    Raises:
        UnsupportedError: `tp` does not divide the draft.
    """
    draft = model.draft_model
    if draft is None:
        return None
    from kvplan.cache.sharding import shard_model

    parts = rank_weights(draft, shard_model(draft, tp=tp), weight_format(draft, "auto"), tp=tp, vocab_rows=vocab_rows)
    shared = ("embedding", "head") if getattr(model, "shares_ends", False) else ()
    return _drafts([part for part in parts if part.role not in shared])


def _as_measured(
    found: list[RoleWeights], measured: dict[str, tuple[int, int]], tp: int, first: bool
) -> list[RoleWeights]:
    """What a rank holds, each role scaled from the formats' bytes to those in the files.

    A role that the specification does not have sits on the first stage: an encoder divided over the ranks,
    anything else whole on each of them.
    """
    scaled = []
    for part in found:
        held, given = measured.get(part.role, (part.num_bytes, part.num_bytes))
        scaled.append(_scaled(part, held, given))
    for role, (held, given) in measured.items():
        if held and not given and first:
            num_bytes = -(-held // tp) if role == "tower" else held
            scaled.append(RoleWeights(role, 0, num_bytes, num_bytes if role != "tower" and tp > 1 else 0))
    return scaled


def _scaled(part: RoleWeights, held: int, given: int) -> RoleWeights:
    """A role of which files hold `held` bytes where the formats give `given`."""
    num_bytes, replicated = (-(-size * held // given) if given else 0 for size in part[2:4])
    parts = tuple(_scaled(each, held, given) for each in part.parts)
    return part._replace(num_bytes=num_bytes, replicated_bytes=replicated, parts=parts)


def _pairs(model: ModelSpec, rank: ModelSpec, name: str, tp: int, *, shared: bool) -> Iterator[tuple[Tensor, bool]]:
    """(tensor as the rank holds it, whether it is as large as the whole model's)."""
    whole = model.block_tensors(name, shared=shared)
    own = len(whole) - (0 if shared else len(model.blocks[name].tensors))
    for i, (full, part) in enumerate(zip(whole, rank.block_tensors(name, shared=shared), strict=True)):
        if full.role == "router":
            yield full, True  # every rank routes over all experts
        elif i >= own:
            yield _divided(full, tp), False  # loose tensors of the block
        else:
            yield part, part.elements == full.elements


def _divided(tensor: Tensor, tp: int) -> Tensor:
    """The largest of `tp` parts of a tensor cut along its rows."""
    return tensor._replace(shape=(-(-tensor.shape[0] // tp), *tensor.shape[1:]))


def _layer_tensors(
    model: ModelSpec, rank: ModelSpec, formats: WeightFormat, tp: int
) -> Iterator[tuple[Tensor, int, int, bool]]:
    """(tensor, its bytes, layers that hold one, whether the rank holds a whole copy)."""
    for name, layers in rank.layer_counts.items():
        for shared in (False, True):
            for tensor, whole in _pairs(model, rank, name, tp, shared=shared):
                yield tensor, _stored(model, tensor, formats, 0), 1 if shared else layers, whole


def _layer_tensors_one_by_one(
    model: ModelSpec, rank: ModelSpec, formats: WeightFormat, first_layer: int, tp: int
) -> Iterator[tuple[Tensor, int, int, bool]]:
    """The same for formats that depend on the position of a layer (GGUF mixes)."""
    seen: set[str] = set()
    for index, name in enumerate(rank.layers):
        for shared in (False,) if name in seen else (False, True):
            for tensor, whole in _pairs(model, rank, name, tp, shared=shared):
                yield tensor, _stored(model, tensor, formats, first_layer + index), 1, whole
        seen.add(name)


def _outside_tensors(
    model: ModelSpec, vocab_rows: int, tp: int, first: bool, last: bool
) -> Iterator[tuple[Tensor, bool]]:
    """(tensor as the rank holds it, whether ranks divide it) for what belongs to no layer."""
    for tensor in model.tensors_outside_layers():
        if tensor.name == "token_embd":
            if first or (last and model.tie_word_embeddings):
                yield tensor._replace(shape=(vocab_rows, tensor.shape[1])), True
        elif tensor.name == "output":
            if last:
                yield tensor._replace(shape=(vocab_rows, tensor.shape[1])), True
        elif tensor.name == "output_norm":
            if last:
                yield tensor, False
        elif first:
            yield _divided(tensor, tp), True


def _draft_tensors(model: ModelSpec, rank: ModelSpec, formats: WeightFormat, tp: int) -> Iterator[tuple[Tensor, int]]:
    """(tensor of the model's own draft layers as the rank holds it, its bytes)."""
    for name in model.draft_layers:
        for tensor, _ in _pairs(model, rank, name, tp, shared=False):
            yield tensor, _stored(model, tensor, formats, model.num_layers)
    for extra in model.draft_tensors:
        part = _divided(Tensor(extra.name, extra.role, extra.shape, extra.count), tp)
        yield part, _stored(model, part, formats, model.num_layers)


def _stored(model: ModelSpec, tensor: Tensor, formats: WeightFormat, layer: int) -> int:
    """Bytes of a tensor in the format its role has."""
    fmt = formats.of(tensor.role)
    if fmt.mix:
        from kvplan.spec.gguf_mix import tensor_bytes

        return tensor_bytes(fmt, tensor, model, layer)
    return fmt.tensor_bytes(tensor.elements, tensor.shape[-1])


def total_bytes(roles: list[RoleWeights]) -> int:
    """Bytes of all roles together."""
    return sum(r.num_bytes for r in roles)
