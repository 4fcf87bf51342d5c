"""What several engines have in common: reading their own settings, plain formats and splits, terms of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvplan.cache.bytes import KvFormats
from kvplan.engines.base import Settings, Stage, Term
from kvplan.errors import InputError, UnsupportedError
from kvplan.spec.formats import Format, element_bytes, get_format
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec


def whole_number(settings: Settings, name: str, default: int, *, least: int = 1) -> int:
    """A whole-number setting that only this engine has.

    Raises:
        InputError: not a whole number of at least `least`.
    """
    found = maybe_number(settings, name, least=least)
    return default if found is None else found


def maybe_number(settings: Settings, name: str, *, least: int = 1) -> int | None:
    """The same; None where it is not set."""
    value = settings.extra.get(name)
    return None if value is None else checked(value, name, least=least)


def checked(value: Any, name: str, *, least: int = 1) -> int:
    """`value`, if it is a whole number of at least `least`.

    Raises:
        InputError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1 << 50:
        raise InputError(
            f"{value!r} is not a whole number of at least {least}", where=flag(name), hint="check the digits"
        )
    return value


def positive(value: Any, name: str, *, most: float = 1e6) -> float:
    """A number above 0, from a flag's text or a library's number.

    Raises:
        InputError: anything else, or more than `most`.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number <= most:
        limit = f" and up to {most:g}" if most < 1e6 else ""
        near = f"{most:g}" if number > most and not isinstance(value, bool) else "0.9, for example"
        raise InputError(
            f"{value!r} is not a number above 0{limit}", where=flag(name), hint=f"type {flag(name)} {near}"
        )
    return number


def share(value: Any, name: str) -> float:
    """A share above 0 and up to 1."""
    return positive(value, name, most=1)


def flag(name: str) -> str:
    """``cache_bits`` -> ``--cache-bits``."""
    return "--" + name.replace("_", "-")


def no_context_parallel(settings: Settings) -> None:
    """Refuse decode context parallelism where it does not exist or is not modelled.

    Raises:
        UnsupportedError: it was asked for.
    """
    if settings.decode_context_parallel_size > 1:
        where = "--decode-context-parallel-size"
        raise UnsupportedError(
            f"decode context parallelism under {settings.engine} is not modelled", where=where,
            hint=f"type {where} 1, or --engine vllm",
        )  # fmt: skip


def nearest_of(value: int, known: Sequence[int]) -> str:
    """The nearest that is known; both neighbours where `value` lies between two: ``6 or 8``."""
    below, above = (
        max((n for n in known if n < value), default=None),
        min((n for n in known if n > value), default=None),
    )
    return " or ".join(str(n) for n in (below, above) if n is not None)


def plain_formats(model: ModelSpec, settings: Settings) -> KvFormats:
    """K and V in the chosen format, the index key like K, states in the model's dtype."""
    name = settings.kv_cache_dtype
    if name == "auto":
        declared = model.checkpoint.kv_cache_format if model.checkpoint else None
        name = declared or model.dtype
    key, _, value = name.partition(",")
    k = get_format(key, use="cache", where="--kv-cache-dtype")
    v = get_format(value or key, use="cache", where="--kv-cache-dtype")
    dtype_bytes = get_format(model.dtype).block_bytes
    ssm = settings.mamba_ssm_cache_dtype
    recurrent = dtype_bytes if ssm == "auto" else element_bytes(ssm, "--mamba-ssm-cache-dtype")
    return KvFormats(k, v, k, dtype_bytes, recurrent)


def balanced_split(num_layers: int, stages: int) -> list[int]:
    """Layers per stage, the remainder one each to the stages before the last, counted backwards.

    Source: vLLM 0.33.0 ``vllm/distributed/utils.py``, ``get_pp_indices``.
    """
    base, rest = divmod(num_layers, stages)
    counts = [base] * stages
    for i in range(rest):
        counts[-(i + 2)] += 1
    return counts


def check_context_parallel(model: ModelSpec, settings: Settings) -> None:
    """DCP splits tokens over the copies that tensor parallelism makes of a KV head; latent rows have tp copies.

    Source: vLLM 0.33.0 ``vllm/config/model.py``, ``verify_with_parallel_config``.

    Raises:
        UnsupportedError: a layer whose heads have fewer copies than ranks would share its tokens.
    """
    dcp, tp = settings.decode_context_parallel_size, settings.tensor_parallel_size
    where = "--decode-context-parallel-size"
    for _, mixer in model.mixers() if dcp > 1 else ():
        stream = next((s for s in mixer.streams() if s.role != "index" and s.window is None), None)
        if stream is None or stream.name == "latent" or stream.fixed_entries is not None:
            continue
        copies = tp // stream.heads if tp > stream.heads else 1
        if dcp > copies:
            raise UnsupportedError(
                f"decode context parallelism of {dcp} needs {dcp} copies of each KV head; tensor parallel size {tp} "
                f"over {stream.heads} KV heads makes {copies}",
                where=where,
                hint=f"type {where} {copies} or a larger --tensor-parallel-size",
            )


def even_layers(num_layers: int, stages: int) -> list[int]:
    """Whole layers of each stage, the first ones one more where they do not divide."""
    base, rest = divmod(num_layers, stages)
    return [base + (i < rest) for i in range(stages)]


def layers_over(given: dict[str, Any]) -> tuple[int, str]:
    """(pipeline stages, why) of an engine that deals whole layers over the GPUs it is given."""
    stages = given["gpus"] // (given.get("data_parallel_size", 1) * given.get("tensor_parallel_size", 1))
    return max(1, stages), "a GPU each: whole layers"


def widest_ffn(stage: Stage) -> int:
    """Elements of the widest feed-forward intermediate of a token, over all the experts it uses."""
    widest = 0
    for name in stage.spec.layer_counts:
        for ffn in stage.spec.blocks[name].ffns:
            experts = getattr(ffn, "experts_per_token", 1)
            widest = max(
                widest, getattr(ffn, "intermediate_size", 0) * experts + getattr(ffn, "shared_intermediate_size", 0)
            )
    return widest


def forward_term(stage: Stage, model: ModelSpec, tokens: int, rows: int, what: str) -> Term:
    """Activations of `tokens` at once through the widest layer, and `rows` rows of logits (2 bytes and a float32 copy).

    The bounds are half and twice as much: no engine's figure was fitted.
    """
    peak = 2 * tokens * (3 * widest_ffn(stage) + 4 * model.hidden_size)
    peak += 6 * rows * model.vocab_size if stage.last else 0
    source = f"{tokens:,} tokens ({what}) through the widest layer, {rows:,} rows of logits; not fitted"
    return Term("activation peak", "activation", peak, peak // 2, 2 * peak, "modelled", source)


def experts_term(stage: Stage, model: ModelSpec, tokens: int) -> Term | None:
    """Buffers of a grouped GEMM over routed experts, which lie side by side; None: there are no experts.

    A row for every token and expert it uses: the permuted input and the output of the second product, both as wide
    as the hidden states, and what the first product makes (twice the expert's width) and the activation leaves, in
    16 bits; inputs of both products once more in 8 bits where the experts are stored so.
    """
    stored = model.checkpoint
    name = model.dtype if stored is None else stored.overrides.get("routed_experts", stored.format)
    narrow = get_format(name, use="weights").block_bytes <= get_format(name, use="weights").block_elements
    widest = 0
    for block in stage.spec.layer_counts:
        for ffn in stage.spec.blocks[block].ffns:
            if getattr(ffn, "experts", None):
                wide: int = ffn.intermediate_size  # type: ignore[attr-defined]
                width: int = ffn.expert_hidden_size or model.hidden_size  # type: ignore[attr-defined]
                row = 4 * width + 6 * wide + (width + wide if narrow else 0)
                widest = max(widest, tokens * ffn.experts_per_token * row)  # type: ignore[attr-defined]
    if not widest:
        return None
    source = f"rows of {tokens:,} tokens for every expert they use, in and out of both products; not fitted"
    return Term("workspace of the experts", "activation", widest, widest // 2, widest * 3 // 2, "modelled", source)


def context_term() -> Term:
    """The CUDA context of one process that computes alone."""
    source = "context and cuBLAS workspace; not fitted"
    return Term("CUDA context", "runtime", GIB // 2, 300 * MIB, GIB, "modelled", source)


def index_format(source: str) -> Format:
    """A sparse-attention index key as servers store it: 128 values in fp8 and one fp32 scale."""
    return Format(name="dsa_index", block_elements=128, block_bytes=132, use="cache", source=source)


def attention_weights_term(stage: Stage, model: ModelSpec, groups: int) -> Term:
    """What `groups` attention groups hold besides the share of one rank: each has all the attention weights."""
    counts = stage.spec.layer_counts.items()
    held = sum(
        n * t.elements
        for name, n in counts
        for m in stage.spec.blocks[name].mixers
        for t in m.tensors(model.hidden_size)
    )
    stored = model.checkpoint.format if model.checkpoint and "attention" in model.checkpoint.roles else model.dtype
    fmt = get_format(stored, use="weights")
    extra = held * (groups - 1) * fmt.block_bytes // fmt.block_elements
    name, source = "attention weights of DP attention", "every group holds its own"
    return Term(name, "weights", extra, extra * 3 // 4, extra * 5 // 4, "modelled", source)


def vision_parameters(model: ModelSpec) -> int:
    """Parameters of the image encoder; 0: none."""
    return max((t.parameters for t in model.towers if t.name == "vision"), default=0)
