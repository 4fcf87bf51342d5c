"""A model from its ``config.json``: finds the text part, the family's reader, and what surrounds the layers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kvplan.errors import SpecError, printable
from kvplan.sources.hf.attention import hidden_size
from kvplan.sources.hf.class_defaults import SIZES, SPELLINGS
from kvplan.sources.hf.cross import CROSS, IMAGE_TOKENS
from kvplan.sources.hf.gemma import GEMMA
from kvplan.sources.hf.keys import Config, Layers, levels
from kvplan.sources.hf.known import CLASS_DEFAULTS, TEXT_PART, TIED, WITHOUT_EFFECT
from kvplan.sources.hf.latent import LATENT
from kvplan.sources.hf.layout import ASSUME_HINT
from kvplan.sources.hf.nested_defaults import NESTED_SIZES
from kvplan.sources.hf.plain import PLAIN
from kvplan.sources.hf.plain_more import PLAIN_MORE
from kvplan.sources.hf.plain_newer import PLAIN_NEWER
from kvplan.sources.hf.plain_other import PLAIN_OTHER
from kvplan.sources.hf.quantization import cfg_dtype, read_checkpoint, recurrent_dtype
from kvplan.sources.hf.special import ARCHITECTURES, FAMILY_OF, SPECIAL
from kvplan.sources.hf.towers import image_tokens, read_towers
from kvplan.spec.kind import Tensor
from kvplan.spec.model import Checkpoint, ModelSpec

Reader = Callable[[Config], Layers]

FAMILIES: dict[str, Reader] = {
    **PLAIN, **PLAIN_MORE, **PLAIN_OTHER, **PLAIN_NEWER, **LATENT, **GEMMA, **CROSS, **SPECIAL,
}  # fmt: skip
"""``model_type`` -> reader, for every family whose layers attend; hybrids are in `kvplan.sources.hf.hybrids`."""

ASSUMPTIONS = ("llama-like",)
"""What `read_config` may be told to take for granted."""

_CONTEXT = (
    "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length",
    "max_target_positions", "n_ctx",
)  # fmt: skip
_TELLTALE = re.compile(
    r"window|kv_|_kv|head_dim|n_head|num_heads|_heads$|layer_types|layers_block|lora_rank|compress|ssm|mamba|chunk|index"
    r"|sparse_att|linear_attn|cross_att|state_size|conv_kernel|hybrid|_pattern|cache_layers|shared_layers|latent|per_layer_config|use_cla"
)
"""How the names of fields look that may change what a layer caches."""


def read_config(
    data: Any,
    *,
    where: str = "config.json",
    name: str | None = None,
    assume: str | None = None,
    used: dict[str, Any] | None = None,
    weights_told: bool = False,
) -> ModelSpec:
    """The model that a Hugging Face configuration describes.

    Args:
        data: the JSON object.
        where: file name, for error messages and as the source.
        name: what to call the model; else the file's own ``_name_or_path`` or its ``model_type``.
        assume: ``llama-like`` reads an unknown family as plain attention in every layer.
        used: where to put the fields of the text part that were read, with their values.
        weights_told: something else tells how the weights are stored; a quantisation that is not understood is a
            warning then.

    Raises:
        SpecError: not a configuration, an unknown family, a field that may matter and is not understood,
            or sizes that contradict each other.
    """
    if not isinstance(data, dict):
        raise SpecError("the file does not hold a JSON object", where=where, hint="a config.json starts with {")
    outer = Config(data, where)
    nested = levels(outer)
    cfg = nested[-1]
    kind = _family(outer, cfg)
    architecture = _architecture(outer, cfg)
    reader = _reader(cfg, kind, architecture, assume)
    _fill_in(cfg, kind, NESTED_SIZES if cfg is not outer else {})
    if cfg is not outer and (image := image_tokens(outer)):
        cfg.data[IMAGE_TOKENS] = image
    try:
        found = reader(cfg)
    except ValueError as exc:
        raise SpecError(str(exc), where=where, hint="the configuration contradicts itself") from None
    storage = read_checkpoint(cfg, outer, found, otherwise_told=weights_told)
    spec = _assemble(nested, found, storage, (kind or "llama-like", architecture, name))
    _check_sizes(spec, where)
    if used is not None:
        used.update({key: cfg.data[key] for key in sorted(cfg.read)})
    if assume is None:
        _refuse_unread(cfg)
    return spec


def _check_sizes(spec: ModelSpec, where: str) -> None:
    """Refuse a model with a tensor of less than nothing: some size in the file is negative."""
    try:
        inside = [t for name in {*spec.layers, *spec.draft_layers} for t in spec.block_tensors(name)]
        outside = [Tensor(t.name, t.role, t.shape, t.count) for t in spec.draft_tensors]
        wrong = next(
            (t for t in (*inside, *outside, *spec.tensors_outside_layers()) if min(t.copies, *t.shape) < 0), None
        )
    except ValueError as exc:
        raise SpecError(str(exc), where=where, hint="the configuration contradicts itself") from None
    if wrong is not None:
        sizes = " x ".join(map(str, (wrong.copies, *wrong.shape)))
        raise SpecError(f"sizes give {wrong.name} of {sizes} elements", where=where, hint="one of them is negative")


def text_part(outer: Config) -> Config:
    """The level that describes the language model (itself, or nested once or twice)."""
    return levels(outer)[-1]


def is_known(kind: str) -> bool:
    """Whether there is a reader for a ``model_type``."""
    return kind in FAMILIES or kind in _hybrids()


def _family(outer: Config, cfg: Config) -> str:
    """The ``model_type`` of the text part, else of the file; where nobody knows it, what the architecture tells."""
    stated, whole = str(cfg.get("model_type") or ""), str(outer.get("model_type") or "")
    kind = stated or whole
    if is_known(kind):
        return kind
    if not stated or stated == whole:
        inside = TEXT_PART.get(kind, f"{kind}_text")
        if is_known(inside):
            return inside
    return FAMILY_OF.get(_architecture(cfg, outer), kind)


def _architecture(outer: Config, cfg: Config) -> str:
    for level in (outer, cfg):
        listed = level.get("architectures")
        if isinstance(listed, list) and listed and isinstance(listed[0], str):
            return printable(listed[0], 100)
    return ""


def _reader(cfg: Config, kind: str, architecture: str, assume: str | None) -> Reader:
    if architecture in ARCHITECTURES:
        return ARCHITECTURES[architecture]
    found = FAMILIES.get(kind) or _hybrids().get(kind)
    if found is not None:
        return found
    if assume == "llama-like":
        return PLAIN["llama"]
    cfg.ignore(WITHOUT_EFFECT)
    odd = [k for k in cfg.unread() if _TELLTALE.search(k)]
    what = f"model_type {printable(repr(kind), 60)} is not known" if kind else "no model_type"
    fields = f"; fields that may matter: {', '.join(printable(k, 40) for k in odd[:8])}" if odd else ""
    raise cfg.error(what + fields, hint=ASSUME_HINT)


def _hybrids() -> dict[str, Reader]:
    from kvplan.sources.hf.hybrids import HYBRIDS

    return HYBRIDS


def _fill_in(cfg: Config, kind: str, more: dict[str, dict[str, int]]) -> None:
    """Sizes that the family's files leave to the class that reads them; `more`: those that nested ones leave too."""
    for key, value in {**more.get(kind, {}), **SIZES.get(kind, {}), **CLASS_DEFAULTS.get(kind, {})}.items():
        if not any(name in cfg.data for name in SPELLINGS.get(key, (key,))):
            cfg.data = {**cfg.data, key: value}


def _assemble(
    nested: tuple[Config, ...],
    found: Layers,
    storage: tuple[Checkpoint | None, tuple[str, ...]],
    names: tuple[str, str, str | None],
) -> ModelSpec:
    """The spec; `names` are its family, its architecture, and what to call it."""
    outer, cfg = nested[0], nested[-1]
    (checkpoint, warnings), (kind, architecture, name) = storage, names
    width = hidden_size(cfg)
    called = printable(
        str(name or outer.get("_name_or_path", "name_or_path") or kind).rstrip("/").rsplit("/", 1)[-1], 100
    )
    limit, stated, rope = context(cfg)
    encoders = read_towers(nested, width)
    try:
        return ModelSpec(
            id=called.lower(), name=called, family=kind, architecture=architecture or kind, hidden_size=width,
            vocab_size=cfg.need_int("vocab_size", "padded_vocab_size"), blocks=found.blocks, layers=found.layers,
            max_position_embeddings=limit, stated_positions=stated, dtype=cfg_dtype(cfg, outer),
            recurrent_dtype=recurrent_dtype(cfg),
            tie_word_embeddings=_tied(nested, kind), rope=rope, checkpoint=checkpoint,
            position_embeddings=found.position_embeddings,
            embedding_size=found.embedding_size, final_norms=found.final_norms, tensors=found.tensors,
            towers=(*found.towers, *encoders.towers), draft_layers=found.draft_layers,
            draft_tensors=found.draft_tensors, source=cfg.where, confidence="seen",
            notes=(*found.notes, *encoders.notes), file_warnings=(*warnings, *encoders.warnings),
        )  # fmt: skip
    except ValueError as exc:
        raise SpecError(str(exc), where=cfg.where, hint="the configuration contradicts itself") from None


def _tied(nested: tuple[Config, ...], kind: str) -> bool:
    """Whether the head is the embedding; the outermost level that says so decides, then the family's default."""
    for level in nested:
        if "tie_word_embeddings" in level:
            return level.flag("tie_word_embeddings")
    return kind in TIED


def context(cfg: Config) -> tuple[int | None, int | None, dict[str, Any] | None]:
    """(longest context, the same as the file states it where that is another, rope rule as the file has it).

    ``model_max_length`` wins where it is set (Command R). YaRN reaches factor x the original length, which
    most files have already written into ``max_position_embeddings``; then nothing is multiplied again.
    """
    own = cfg.maybe_int("model_max_length")
    listed = [n for n in map(cfg.maybe_int, _CONTEXT) if n is not None]
    stated = min(listed, default=None) if own is None else own
    limit = next(iter(listed), None) if own is None else own
    if stated is not None and stated <= 0:
        raise cfg.error(f"max_position_embeddings must be above 0, not {stated}")
    rope = _rope(cfg)
    if rope and limit and rope["type"] == "yarn":
        original, factor = rope.get("original_max_position_embeddings") or limit, rope.get("factor")
        if isinstance(factor, int | float) and isinstance(original, int) and not isinstance(factor, bool):
            limit = max(limit, int(original * factor))
    return limit, stated if stated != limit else None, rope


_MAX_ROPE = 2**40
_NO_EXTENSION = ("default", "mrope", "proportional", "")


def _rope(cfg: Config) -> dict[str, Any] | None:
    """The rule that stretches positions, its numbers in key order; None where none does."""
    value = cfg.maybe_dict("rope_scaling") or cfg.maybe_dict("rope_parameters")
    cfg.ignore(("rope_scaling", "rope_parameters"))
    if not value:
        return None
    if all(isinstance(v, dict) for v in value.values()):  # one rule per kind of layer: the full layers' counts
        value = value.get("full_attention") or next(iter(value.values()))
    kind = str(value.get("rope_type") or value.get("type") or "")
    if kind in _NO_EXTENSION:
        return None
    kept = (
        "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
        "attention_factor", "mscale", "mscale_all_dim",
    )  # fmt: skip
    odd = next((k for k in kept if isinstance(value.get(k), str | list | dict | bool)), None)
    if odd is not None:
        raise cfg.error(f"{odd} of the rope rule should be a number, not {printable(repr(value[odd]), 40)}")
    numbers = {k: value[k] for k in kept if value.get(k) is not None}
    if any(not 0 <= v <= _MAX_ROPE for v in numbers.values()):
        raise cfg.error("rope_scaling has a number that no model has", hint="check its factor")
    outer = cfg.maybe_int("original_max_position_embeddings")
    return {
        "type": printable(kind, 40), **{k: v if v % 1 else int(v) for k, v in numbers.items()},
        **({"outer_original": outer} if outer and outer > 0 else {}),
    }  # fmt: skip


def _refuse_unread(cfg: Config) -> None:
    """Fail where a field is left that may change what a layer caches."""
    cfg.ignore(WITHOUT_EFFECT)
    odd = [k for k in cfg.unread() if _TELLTALE.search(k) and cfg.data[k] not in (False, 0, [], {}, "")]
    if odd:
        raise cfg.error(
            f"fields that are not understood: {', '.join(printable(k, 40) for k in odd[:8])}",
            hint="--assume llama-like reads it without these fields",
        )
