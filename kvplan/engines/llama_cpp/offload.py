"""Which layers lie on which GPU, and what stays in host memory.

::

    first GPU layer = layers + 1 - n_gpu_layers            (the output head counts as a layer)
    layer il        -> the first GPU whose cumulative share exceeds (il - first) / GPU layers

Shares are those of -ts, by default equal ones (llama.cpp takes the free memory of each GPU). A
layer's cache follows the layer. The token embedding stays in host memory.

Source: libllama 0.5.0 ``src/llama-model.cpp`` (``load_tensors``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.base import Term
from kvplan.engines.llama_cpp.geometry import whole
from kvplan.errors import InputError, UnsupportedError, printable
from kvplan.spec.formats import Format, get_format

if TYPE_CHECKING:
    from kvplan.engines.base import Settings, Stage
    from kvplan.spec.kind import Tensor
    from kvplan.spec.model import ModelSpec

MAX_GPUS = 16
SOURCE = "llama.cpp src/llama-model.cpp: input layer and layers before the first GPU layer stay in host memory"


class Split(NamedTuple):
    """Layers of each GPU, and those in front of them that stay in host memory."""

    host: int
    gpus: tuple[int, ...]


def parse_shares(value: Any) -> tuple[float, ...] | None:
    """The shares of ``-ts 3,1``; None where none are given.

    Raises:
        InputError: no list of numbers that are not negative, or nothing but zeros.
    """
    if value is None:
        return None
    parts = value if isinstance(value, list | tuple) else str(value).replace("/", ",").replace(";", ",").split(",")
    try:
        shares = tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        shares = ()
    if not shares or len(shares) > MAX_GPUS or not all(0 <= s < 1e12 for s in shares) or not sum(shares):
        raise InputError(
            f"{printable(str(value), 40)!r} is not a list of shares",
            where="--tensor-split",
            hint=f"type -ts 3,1 (at most {MAX_GPUS} GPUs)",
        )
    return shares


def gpu_layers(value: Any, num_layers: int) -> int:
    """Layers that -ngl puts on GPUs, the output head being the last; all of them by default.

    Raises:
        InputError: not ``all``, ``auto``, -1 or a number.
    """
    if value is None or str(value).strip().lower() in ("all", "auto", "-1", "-2"):
        return num_layers + 1
    return min(whole(value, "--n-gpu-layers", least=0), num_layers + 1)


def split(num_layers: int, on_gpus: int, shares: Sequence[float]) -> Split:
    """Layers by GPU.

    Raises:
        UnsupportedError: a GPU that would hold no layer.
    """
    host = min(num_layers, num_layers + 1 - on_gpus)
    total, so_far = sum(shares), 0.0
    ends = []
    for share in shares:
        so_far += share
        ends.append(so_far / total)
    counts = [0] * len(shares)
    for il in range(num_layers + 1 - on_gpus, num_layers):
        at = (il - host) / on_gpus
        counts[next((i for i, end in enumerate(ends) if end > at), len(ends) - 1)] += 1
    empty = next((i for i, n in enumerate(counts) if not n), None)
    if len(counts) > 1 and empty is not None:
        raise UnsupportedError(
            f"GPU {empty} would hold none of {num_layers} layers",
            where="--tensor-split",
            hint="type fewer --gpus, or other shares",
        )
    return Split(host, tuple(counts))


def host_term(stage: Stage, model: ModelSpec, settings: Settings) -> Term | None:
    """Weights of this stage that are not on its GPU, as a negative term; None: all of them are.

    A file whose tensor table was read gives its own bytes; else they follow from the formats.
    """
    on_gpu = _file_bytes(stage, model, settings)
    if on_gpu is None:
        on_gpu = stage.weights_bytes - _host_bytes(stage, model, settings)
    off = stage.weights_bytes - on_gpu
    if not off:
        return None
    basis_source = SOURCE if not hasattr(model, "layer_bytes") else f"{SOURCE}; sizes from the file's tensor table"
    return Term("weights not on this GPU", "weights", -off, -off, -off, "exact", basis_source)


def towers_term(stage: Stage, model: ModelSpec, settings: Settings) -> Term | None:
    """Encoders, which are a file of their own (``--mmproj``), as a negative term; None: the model has none."""
    if not stage.first or not model.towers:
        return None
    measured = model.checkpoint.stored.get("tower") if model.checkpoint and settings.weights == "auto" else None
    if measured is not None:
        size = sum(measured.values())
    else:
        fmt = get_format(model.dtype, use="weights")
        if settings.weights != "auto":
            chosen = get_format(settings.weights, use="weights")
            plain = chosen.block_elements == 1 and chosen.block_bytes >= 2 and not chosen.mix
            fmt = chosen if plain else get_format("fp16") if chosen.rest_format else fmt
        size = sum(fmt.tensor_bytes(t.parameters, t.parameters) for t in model.towers)
    source = "encoders are a file of their own, loaded besides with --mmproj only"
    return Term("encoder file not loaded", "weights", -size, -size, -size, "exact", source)


def stage_span(stage: Stage, settings: Settings) -> tuple[int, int]:
    """(first, end) of the layers that this stage keeps on its GPU, counted in the model."""
    host = settings.extra["host_layers"] if stage.first else 0
    return stage.first_layer + host, stage.first_layer + stage.spec.num_layers


def _file_bytes(stage: Stage, model: ModelSpec, settings: Settings) -> int | None:
    layers: tuple[int, ...] | None = getattr(model, "layer_bytes", None)
    if layers is None or settings.weights != "auto":
        return None
    first, end = stage_span(stage, settings)
    last = settings.extra["n_gpu_layers_used"] > 0 and stage.last
    head: int = getattr(model, "output_bytes", 0)
    return sum(layers[first:end]) + (head if last else 0)


def _host_bytes(stage: Stage, model: ModelSpec, settings: Settings) -> int:
    stored = _sizer(model, settings)
    total = 0
    if stage.first:
        keep_tied = stage.last and model.tie_word_embeddings and settings.extra["n_gpu_layers_used"] > 0
        for tensor in model.tensors_outside_layers():
            if tensor.role == "embedding" and not (keep_tied and tensor.name == "token_embd"):
                total += stored(tensor, None)
        for il in range(settings.extra["host_layers"]):
            total += sum(stored(t, il) for t in model.block_tensors(model.layers[il]))
    if stage.last and settings.extra["n_gpu_layers_used"] == 0:
        total += sum(stored(t, None) for t in model.tensors_outside_layers() if t.name in ("output", "output_norm"))
    return total


def _sizer(model: ModelSpec, settings: Settings) -> Callable[[Tensor, int | None], int]:
    """Bytes of a tensor as the chosen weights store it: the checkpoint's formats, or --weights."""
    rest = get_format(model.dtype, use="weights")
    chosen, roles, others = rest, frozenset[str](), dict[str, Format]()
    if settings.weights != "auto":
        chosen = get_format(settings.weights, use="weights", where="--weights")
        if chosen.block_elements == 1 and chosen.block_bytes >= 2 and not chosen.mix:
            rest = chosen
        else:
            rest = get_format(chosen.rest_format, use="weights") if chosen.rest_format else rest
            roles = frozenset(chosen.weight_roles)
    elif model.checkpoint is not None:
        chosen, roles = get_format(model.checkpoint.format, use="weights"), frozenset(model.checkpoint.roles)
        others = {role: get_format(name, use="weights") for role, name in model.checkpoint.overrides.items()}

    def stored(tensor: Tensor, layer: int | None) -> int:
        fmt = others.get(tensor.role, chosen if tensor.role in roles else rest)
        if fmt.mix:
            from kvplan.spec.gguf_mix import tensor_bytes

            return tensor_bytes(fmt, tensor, model, layer)
        return fmt.tensor_bytes(tensor.elements, tensor.shape[-1])

    return stored
