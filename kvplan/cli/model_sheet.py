"""One model as a page and as JSON: what ``kvplan models show`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cache.bytes import KvFormats, mixer_bytes, state_bytes, stream_rows
from kvplan.catalog.summary import bf16_formats, summarise
from kvplan.render.grid import Column, Grid, KeyValues, Notes, Part, Title
from kvplan.units import human_bytes, human_count

if TYPE_CHECKING:
    from kvplan.spec.kind import CacheKind, LayerPart
    from kvplan.spec.model import Checkpoint, ModelSpec


class Layers(NamedTuple):
    """The layers built from one block of a spec, and one of its mixers."""

    layers: int
    block: str
    kind: str
    """The cache kind, ``none`` where a layer mixes nothing."""
    heads: int | None
    head_dim_k: int | None
    head_dim_v: int | None
    window: int | None
    bytes_per_token_per_layer: int
    """One more token of a short sequence, bf16."""
    fixed_bytes_per_layer: int
    ffn: str


def layer_rows(model: ModelSpec) -> list[Layers]:
    """Every distinct block with its mixers, in order of first appearance; bf16 figures."""
    formats = bf16_formats()
    found: list[Layers] = []
    for name, count in model.layer_counts.items():
        block = model.blocks[name]
        ffn = " + ".join(map(_ffn, block.ffns)) or "none"
        if not block.mixers:
            found.append(Layers(count, name, "none", None, None, None, None, 0, 0, ffn))
        found += [_mixer(count, name, mixer, formats, ffn) for mixer in block.mixers]
    return found


def _mixer(count: int, name: str, mixer: CacheKind, formats: KvFormats, ffn: str) -> Layers:
    rows = stream_rows(mixer, formats)
    heads = dim_k = dim_v = window = None
    growing = 0
    if rows:
        first = rows[0][0]
        heads, dim_k, window = first.heads, first.head_dim, first.window
        dim_v = next((stream.head_dim for stream, _, _ in rows if stream.role == "v"), None)
        growing = sum(-(-size // s.ratio) for s, size, _ in rows if s.fixed_entries is None)
    fixed = mixer_bytes(mixer, 0, formats) + state_bytes(mixer, formats)
    return Layers(count, name, mixer.kind, heads, dim_k, dim_v, window, growing, fixed, ffn)


def _ffn(part: LayerPart) -> str:
    """``dense 14,336`` or ``8 of 256 experts of 2,048, shared 2,048``."""
    wide = getattr(part, "intermediate_size", None)
    experts = getattr(part, "experts", None)
    if wide is None:
        return str(getattr(part, "kind", type(part).__name__))
    if experts is None:
        return f"dense {wide:,}"
    shared = getattr(part, "shared_intermediate_size", 0)
    routed = f"{getattr(part, 'experts_per_token', experts)} of {experts} experts of {wide:,}"
    return routed + (f", shared {shared:,}" if shared else "")


def role_parameters(model: ModelSpec) -> dict[str, int]:
    """Unique parameters by role, drafts outside the count; they sum to ``model.parameters``."""
    found: dict[str, int] = {}
    for times, tensor in model.tensors_by_block():
        found[tensor.role] = found.get(tensor.role, 0) + times * tensor.elements
    for tensor in model.tensors_outside_layers():
        found[tensor.role] = found.get(tensor.role, 0) + tensor.elements
    return {role: count for role, count in sorted(found.items(), key=lambda item: -item[1]) if count}


def payload(model: ModelSpec) -> dict[str, Any]:
    """The JSON object of one model: the list's keys, and the details."""
    checkpoint = model.checkpoint
    return {
        **summarise(model)._asdict(),
        "name": model.name,
        "aliases": list(model.aliases),
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "dtype": model.dtype,
        "tie_word_embeddings": model.tie_word_embeddings,
        "rope": model.rope,
        "checkpoint": {
            "format": checkpoint.format,
            "roles": list(checkpoint.roles),
            "kv_cache_format": checkpoint.kv_cache_format,
            "stored": checkpoint.stored,
            "stored_parameters": checkpoint.stored_parameters,
        }
        if checkpoint
        else None,
        "layers": [row._asdict() for row in layer_rows(model)],
        "parameters_by_role": role_parameters(model),
        "draft_parameters": model.draft_parameters,
        "published_parameters": model.published_parameters,
        "published_active_parameters": model.published_active_parameters,
        "parameters_note": model.parameters_note,
        "towers": [{"name": tower.name, "parameters": tower.parameters} for tower in model.towers],
        "released": model.released,
        "license": model.license,
        "source": model.source,
        "notes": list(model.notes),
    }


def document(model: ModelSpec) -> list[Part]:
    """The page of one model."""
    parts: list[Part] = [
        Title(model.id, model.name),
        KeyValues(_identity(model)),
        KeyValues(_size(model), title="Size"),
        _layers(model),
        _roles(model),
    ]
    if model.checkpoint and model.checkpoint.stored:
        parts.append(_files(model.checkpoint))
    if model.notes or model.parameters_note:
        parts.append(Notes([*model.notes, *([model.parameters_note] if model.parameters_note else [])], title="Notes"))
    if model.source:
        parts.append(Notes([model.source], title="Source"))
    return parts


def _identity(model: ModelSpec) -> list[tuple[str, str]]:
    rows = [
        ("repository", model.repo),
        ("also known as", ", ".join(model.aliases)),
        ("family", model.family),
        ("architecture", model.architecture),
        ("released", model.released),
        ("license", model.license),
        ("confidence", model.confidence),
    ]
    return [(label, value) for label, value in rows if value]


def _size(model: ModelSpec) -> list[tuple[str, str] | tuple[str, str, str]]:
    summary = summarise(model)
    context = model.max_position_embeddings
    rows: list[tuple[str, str] | tuple[str, str, str]] = [
        ("parameters", human_count(summary.parameters), f"{summary.parameters:,}, computed from the layers"),
    ]
    if model.published_parameters:
        published = model.published_parameters
        off = summary.parameters / published - 1
        rows.append(("published", human_count(published), f"{published:,}; the computed count is {off:+.2%} off"))
    if summary.active_parameters != summary.parameters:
        rows.append(("active", human_count(summary.active_parameters), f"{summary.active_parameters:,} for one token"))
    if model.draft_parameters:
        rows.append(("draft layers", human_count(model.draft_parameters), "not in the parameters above"))
    rows += [
        ("layers", f"{model.num_layers}", f"hidden size {model.hidden_size:,}, vocabulary {model.vocab_size:,}"),
        ("context", f"{context:,} tokens" if context else "not stated", _rope(model)),
        ("stored in", model.checkpoint.format if model.checkpoint else model.dtype, _stored(model)),
        (
            "KV per token",
            human_bytes(summary.kv_bytes_per_token),
            f"{summary.kv_bytes_per_token:,} B in bf16, before any window fills",
        ),
    ]
    if summary.fixed_bytes_per_sequence:
        fixed = summary.fixed_bytes_per_sequence
        rows.append(("per sequence", human_bytes(fixed), f"{fixed:,} B in bf16, whatever its length"))
    return rows


def _rope(model: ModelSpec) -> str:
    if not model.rope:
        return ""
    return "rope: " + ", ".join(f"{key} {value}" for key, value in model.rope.items())


def _stored(model: ModelSpec) -> str:
    if model.checkpoint is None:
        return ""
    if not model.checkpoint.roles:
        declared = model.checkpoint.kv_cache_format
        return f"its KV cache in {declared}" if declared else ""
    roles = ", ".join(role.replace("_", " ") for role in model.checkpoint.roles)
    declared = f"; its KV cache in {model.checkpoint.kv_cache_format}" if model.checkpoint.kv_cache_format else ""
    return f"{roles}; the rest in {model.dtype}{declared}"


def _layers(model: ModelSpec) -> Grid:
    columns = (
        Column("layers", right=True),
        Column("block"),
        Column("caches"),
        Column("heads", right=True),
        Column("K", right=True),
        Column("V", right=True),
        Column("window", right=True),
        Column("B per token", right=True),
        Column("B per sequence", right=True),
        Column("FFN", wrap=True, optional=True),
    )

    def number(value: int | None) -> str:
        return "" if value is None else f"{value:,}"

    rows = [
        (
            str(row.layers),
            row.block,
            row.kind,
            number(row.heads),
            number(row.head_dim_k),
            number(row.head_dim_v),
            number(row.window),
            number(row.bytes_per_token_per_layer),
            number(row.fixed_bytes_per_layer or None),
            row.ffn,
        )
        for row in layer_rows(model)
    ]
    return Grid(
        columns, rows, title="Layers", note="K and V: elements of one head's vector; bytes of one layer in bf16"
    )


def _files(checkpoint: Checkpoint) -> Grid:
    """What the headers of the files say, role by role and dtype by dtype."""
    columns = (Column("role"), Column("dtype"), Column("bytes", right=True), Column("parameters", right=True))
    rows = []
    for role, by_dtype in sorted(checkpoint.stored.items(), key=lambda item: -sum(item[1].values())):
        count = checkpoint.stored_parameters.get(role, 0)
        for i, (dtype, size) in enumerate(sorted(by_dtype.items(), key=lambda item: -item[1])):
            name, parameters = (role.replace("_", " "), f"{count:,}") if i == 0 else ("", "")
            rows.append((name, dtype, f"{size:,}", parameters))
    return Grid(columns, rows, title="In the files", note="copies and buffers are not loaded; drafts when they run")


def _roles(model: ModelSpec) -> Grid:
    columns = (Column("role"), Column("parameters", right=True), Column("share", right=True))
    total = model.parameters
    rows = [(role.replace("_", " "), f"{n:,}", f"{n / total:.1%}") for role, n in role_parameters(model).items()]
    return Grid(columns, rows, title="Parameters")
