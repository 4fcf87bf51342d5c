"""GGUF metadata to a `ModelSpec`: the layers as llama.cpp sees them, and what they weigh.

`read_metadata` needs the key/values alone; `read_file` adds the tensor table, and with it the exact
bytes of every layer. Sources are named in `kvplan.sources.gguf.architectures`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.cache.attention import FullAttention
from kvplan.errors import SpecError, UnknownNameError, printable
from kvplan.sources.gguf import architectures as arch
from kvplan.sources.gguf.agreement import LAYER, check
from kvplan.sources.gguf.header import Counted, GgufHeader, TensorInfo, read_header
from kvplan.sources.gguf.keys import Keys
from kvplan.sources.gguf.mixers import Shape, mixers
from kvplan.sources.gguf.tensor_types import FILE_TYPES
from kvplan.spec.ffn import DenseFfn, MoeFfn
from kvplan.spec.formats import get_format
from kvplan.spec.kind import LayerPart
from kvplan.spec.model import Block, Checkpoint, ModelSpec

_NAME = re.compile(r"[^a-z0-9.]+")


@dataclass(frozen=True, kw_only=True)
class GgufModelSpec(ModelSpec):
    """A model read from a GGUF file: a spec, and what its tensor table says to the byte."""

    file_parameters: int = 0
    """Elements of all tensors; 0: no tensor table was read."""
    layer_bytes: tuple[int, ...] | None = None
    """Stored bytes of each layer, prediction layers that are not run left out; None: no tensor table."""
    input_bytes: int = 0
    """Stored bytes of the token embedding and its kin, which stay in host memory."""
    output_bytes: int = 0
    """Stored bytes of the output head (the embedding again where there is none of its own) and final norm."""
    file_bytes: int = 0
    """Stored bytes of all tensors."""
    file_warnings: tuple[str, ...] = field(default=())
    """What to say about the file."""

    @property
    def parameters(self) -> int:
        """Elements of the file's tensors, or what the metadata give."""
        return self.file_parameters or super().parameters


_NO_MODELS = {
    "adapter": "an adapter (LoRA)", "mmproj": "the encoder of images or sound beside a model",
    "imatrix": "an importance matrix",
}  # fmt: skip
"""``general.type`` of other files than models: gguf 0.19 ``constants.py``, ``GGUFType``."""


def read_metadata(
    architecture: str,
    metadata: Mapping[str, Any],
    *,
    where: str = "GGUF",
    name: str | None = None,
    assume: str | None = None,
) -> GgufModelSpec:
    """The model that the key/values of an architecture describe.

    Args:
        architecture: ``general.architecture``.
        metadata: keys with or without the ``<architecture>.`` prefix.
        where: named in errors.
        assume: ``llama-like`` reads an unknown architecture as plain attention in every layer.

    Raises:
        SpecError: an architecture that is not known or has no KV cache; keys that are missing or do not fit.
    """
    if architecture in arch.NO_CACHE:
        raise SpecError(
            f"llama.cpp gives {architecture} models no KV cache", where=where, hint="name a text-generation model"
        )
    if architecture in arch.NOT_MODELLED:
        raise SpecError(
            f"{architecture} is {arch.NOT_MODELLED[architecture]}, which is not planned alone",
            where=where,
            hint="name the main model",
        )
    keys = Keys(architecture, metadata, where)
    called = name or str(metadata.get("general.name") or metadata.get("name") or architecture)
    if architecture in arch.KNOWN:
        return _spec(keys, called, metadata)
    if assume is None:
        more = "libllama 0.5.0's are known; --assume llama-like reads it as plain attention in every layer"
        raise UnknownNameError("GGUF architecture", architecture, sorted(arch.KNOWN), where=where, more=more)
    spec = _spec(keys, called, metadata)
    warning = (
        f"read as plain attention in every layer, as --assume {assume} says; {printable(architecture, 40)} is not known"
    )
    return replace(spec, confidence="derived", file_warnings=(warning, *spec.file_warnings))


def _spec(keys: Keys, name: str, metadata: Mapping[str, Any]) -> GgufModelSpec:
    shape = Shape(keys)
    blocks: dict[str, Block] = {}
    names: dict[Block, str] = {}
    layers = []
    for il in range(shape.layers):
        block = Block(mixers=mixers(shape, il), ffns=_ffns(shape, il))
        if block not in names:
            names[block] = _block_name(block, blocks)
            blocks[names[block]] = block
        layers.append(names[block])
    layers *= max(1, keys.get("num_loops", 1)) if shape.architecture == "nanbeige" else 1
    if shape.architecture == "graniteswitch":
        blocks["router"] = Block(mixers=(FullAttention(query_heads=1, kv_heads=1, head_dim=shape.dim_k),), norms=0)
        layers.append("router")
    checkpoint, dtype = _checkpoint(metadata)
    length = keys.must("context_length") if "context_length" in keys else None
    try:
        return GgufModelSpec(
            id=_identifier(name), name=printable(name, 80), family=keys.architecture, architecture=keys.architecture,
            hidden_size=shape.hidden, vocab_size=_vocabulary(keys, metadata), blocks=blocks, layers=tuple(layers),
            max_position_embeddings=length, dtype=dtype, checkpoint=checkpoint,
            source=f"GGUF metadata ({keys.architecture})", confidence="seen", notes=_notes(keys),
            file_warnings=_warnings(shape),
        )  # fmt: skip
    except ValueError as error:
        keys.fail(str(error))


def _notes(keys: Keys) -> tuple[str, ...]:
    if keys.architecture not in arch.ENCODERS_APART:
        return ()
    return ("text alone: an encoder of images or sound, if the model has one, is a file of its own (mmproj)",)


def _block_name(block: Block, taken: dict[str, Block]) -> str:
    base = "-".join(m.kind for m in block.mixers) or "none"
    return base if base not in taken else f"{base}-{len(taken) + 1}"


def _identifier(name: str) -> str:
    return _NAME.sub("-", name.lower()).strip("-.")[:80] or "gguf-model"


def _vocabulary(keys: Keys, metadata: Mapping[str, Any]) -> int:
    if "vocab_size" in keys:
        return keys.must("vocab_size")
    tokens = metadata.get("tokenizer.ggml.tokens")
    length = tokens.length if isinstance(tokens, Counted) else len(tokens) if isinstance(tokens, list) else 0
    return length or keys.must("vocab_size")


def _ffns(shape: Shape, il: int) -> tuple[LayerPart, ...]:
    """The feed-forward part of a layer, from the keys alone."""
    keys, wide, gated = shape.keys, shape.ffn[il], shape.architecture not in arch.UNGATED
    dense = (DenseFfn(intermediate_size=wide, gated=gated),) if wide else ()
    experts = keys.get("expert_count", 0)
    step = keys.get("interleave_moe_layer_step", 0)
    routed = experts > 0 and il >= keys.get("leading_dense_block_count", 0) and not (step and (il + 1) % step)
    if not routed:
        return dense
    inner = keys.per_layer("expert_feed_forward_length", shape.layers, wide)[il] or wide
    used = keys.per_layer("expert_used_count", shape.layers, 1)[il]
    if not inner or not used:
        return dense
    shared = keys.get("expert_shared_feed_forward_length", keys.get("expert_shared_count", 0) * inner)
    try:
        return (
            MoeFfn(
                experts=experts, experts_per_token=used, intermediate_size=inner, shared_intermediate_size=shared,
                gated=gated,
            ),
        )  # fmt: skip
    except ValueError as error:
        keys.fail(str(error))


def _checkpoint(metadata: Mapping[str, Any]) -> tuple[Checkpoint | None, str]:
    """(format of the weights, dtype of the rest) by ``general.file_type``."""
    name = (
        FILE_TYPES.get(metadata.get("general.file_type", 1), "fp16")
        if isinstance(metadata.get("general.file_type", 1), int)
        else "fp16"
    )
    if name in ("fp32", "fp16", "bf16"):
        return None, name
    return Checkpoint(format=name, roles=get_format(name, use="weights").weight_roles), "fp16"


def _warnings(shape: Shape) -> tuple[str, ...]:
    """What llama.cpp does with this file that its model would not need."""
    rank = shape.keys.get("attention.kv_lora_rank", 0)
    if not rank or shape.latent or shape.architecture not in ("deepseek2", "minicpm3", "plm"):
        return ()
    heads, row = shape.kv_heads[-1], rank + shape.keys.get("rope.dimension_count", 64)
    times = heads * (shape.dim_k + shape.dim_v) / row
    if shape.architecture == "deepseek2":
        what = "this file was converted without latent (MLA) rows: it"
    else:
        what = f"llama.cpp's graph of {shape.architecture}"
    return (
        f"{what} caches K and V of all {heads} heads, {times:.0f} times a latent row; a newly converted file may not",
    )[:1]


def read_file(path: str | os.PathLike[str], *, assume: str | None = None) -> GgufModelSpec:
    """The model of a GGUF file, with the exact bytes of its tensors. Only the header is read.

    Args:
        assume: ``llama-like`` reads an unknown architecture as plain attention in every layer.

    Raises:
        SpecError: the file cannot be used; one line.
    """
    return of_header(read_header(path), assume=assume)


def of_header(header: GgufHeader, *, assume: str | None = None) -> GgufModelSpec:
    """The same from a header that was read.

    Raises:
        SpecError: it describes no model that llama.cpp would load.
    """
    shown = printable(header.path)
    kind = header.metadata.get("general.type", "model")
    if isinstance(kind, str) and kind in _NO_MODELS:
        raise SpecError(f"is {_NO_MODELS[kind]}, not a model", where=shown, hint="name the file of the model itself")
    name = header.metadata.get("general.name")
    stem = os.path.basename(header.path).removesuffix(".gguf")
    metadata = dict(header.metadata)
    _add_vocabulary(header, metadata)
    spec = read_metadata(
        header.architecture, metadata, where=shown, name=name if isinstance(name, str) and name.strip() else stem,
        assume=assume,
    )  # fmt: skip
    if not header.tensors:
        return spec
    keys = Keys(header.architecture, metadata, shown)
    shape = Shape(keys)
    check(keys, shape, header.tensors, metadata, [mixers(shape, il) for il in range(shape.layers)])
    return _with_tensors(spec, header)


def _add_vocabulary(header: GgufHeader, metadata: dict[str, Any]) -> None:
    """The rows of the embedding, where neither a key nor the tokenizer says how many tokens there are."""
    key = f"{header.architecture}.vocab_size"
    rows = next((t.shape[-1] for t in header.tensors if t.name == "token_embd.weight" and len(t.shape) == 2), None)
    if key not in metadata and "tokenizer.ggml.tokens" not in metadata and rows:
        metadata[key] = rows


def _with_tensors(spec: GgufModelSpec, header: GgufHeader) -> GgufModelSpec:
    layers = [0] * spec.num_layers
    first = last = drafts = 0
    own_head = any(t.name == "output.weight" for t in header.tensors)
    for tensor in header.tensors:
        match = LAYER.match(tensor.name)
        if match and int(match.group(1)) < len(layers):
            layers[int(match.group(1))] += tensor.num_bytes
        elif match:
            drafts += tensor.num_bytes
        elif tensor.name.startswith(("output", "cls", "hc_head")):
            last += tensor.num_bytes
        else:
            first += tensor.num_bytes
            last += tensor.num_bytes if tensor.name == "token_embd.weight" and not own_head else 0
    warnings = list(spec.file_warnings)
    if drafts:
        warnings.append(
            f"{drafts:,} bytes of prediction layers are in the file and not loaded without speculative decoding"
        )
    if not header.has_data:
        warnings.append("the file holds a header and no tensors")
    return replace(
        spec, layer_bytes=tuple(layers), input_bytes=first, output_bytes=last,
        file_bytes=sum(t.num_bytes for t in header.tensors), file_parameters=_unique(header.tensors),
        tie_word_embeddings=not own_head, file_warnings=tuple(warnings),
        source=f"{os.path.basename(header.path)}: GGUF version {header.version}, {len(header.tensors)} tensors",
    )  # fmt: skip


def _unique(tensors: tuple[TensorInfo, ...]) -> int:
    """Elements of all tensors but rotary tables, which are no parameters."""
    return sum(t.elements for t in tensors if not t.name.startswith("rope_"))
