"""From a deployment to what a simulation needs: the pool as the engine lays it out, its limits, its clock.

Engines with blocks and groups of their own (vLLM) say what a sequence takes; of the others one pool of equal blocks
is taken, of as many tokens as the plan finds.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines import get_engine
from kvplan.engines.vllm.engine import NULL_BLOCKS, Vllm
from kvplan.engines.vllm.specs import WHOLE
from kvplan.errors import InputError, UnsupportedError
from kvplan.planning.evaluate import evaluate, settled
from kvplan.planning.planner import read_calibration
from kvplan.planning.speed.constants import PCIE_4_X16
from kvplan.planning.speed.figures import Setup, setup
from kvplan.simulate.allocators.shape import Shape, Window

if TYPE_CHECKING:
    from kvplan.deployment import Deployment
    from kvplan.engines.base import Engine, Settings
    from kvplan.engines.vllm.layout import Layout
    from kvplan.planning.evaluate import Outcome
    from kvplan.spec.model import ModelSpec

RESERVES_PROMPT = (0, 19, 0)
"""The vLLM release from which a request is admitted only where its whole prompt fits
(``vllm/config/scheduler.py``, ``scheduler_reserve_full_isl``)."""
MARKS = (0, 29, 0)
"""The vLLM release from which windows and states are kept only at the end of prompts and where they part
(``vllm/config/cache.py``, ``prefix_cache_retention_interval``)."""
_MOST_UNITS = 64
"""Of a token, beyond which a coarser unit is taken."""
_LONG = 1 << 16
"""Tokens of a prefix that is longer than any engine's block."""
DEFAULT_SEQUENCES = 256
"""Where an engine has no limit of sequences that the plan knows."""


class Site(NamedTuple):
    """One replica of a deployment, ready to be run; the others are like it."""

    model: str
    gpu: str
    engine: str
    settings: Settings
    setup: Setup
    shape: Shape
    num_blocks: int
    """Blocks that can be handed out."""
    block_size: int
    """Tokens of a block of the group that keeps all tokens (the first one)."""
    block_bytes: int
    """Of one block on the most loaded rank."""
    tokens_per_step: int
    sequences: int
    longest: int
    swap_seconds_per_block: float
    warnings: tuple[str, ...]
    inputs: dict[str, Any]

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool on the most loaded rank."""
        return self.num_blocks * self.block_bytes

    @property
    def kv_tokens(self) -> int:
        """Tokens that the pool holds where one group keeps them all."""
        return self.num_blocks * self.block_size

    def tokens_of(self, blocks: int) -> int | None:
        """Tokens that so many blocks hold; None: windows or states make that a question of who runs.

        Groups that keep all tokens share the pool: what a token takes of each adds up.
        """
        shape = self.shape
        if shape.windows or shape.fixed or not shape.whole:
            return None
        return int(blocks / sum(Fraction(1, size) for size in shape.whole))


def prepare(deployment: Deployment) -> Site:
    """Everything about a deployment that a simulation asks for.

    Raises:
        KvplanError: no GPU, no pool, or no speed.
    """
    model, gpu = deployment.model, deployment.gpu
    if gpu is None:
        raise InputError("a simulation needs to know how fast a step is", where="--gpu", hint="add --gpu NAME")
    engine = get_engine(deployment.engine)
    calibration = read_calibration(deployment.settings.get("calibration"), gpu)
    note = calibration.note(model) if calibration is not None else None
    model, settings, warnings = settled(model, gpu, engine, deployment.settings)
    warnings += [note] if note is not None else []
    outcome = evaluate(model, gpu, engine, settings)
    if outcome.pool is None:
        raise InputError(
            f"{model.id} leaves no cache on {gpu.id}: {outcome.reason}", hint="`kvplan plan` shows what would fit"
        )
    made = setup(model, gpu, engine, outcome, calibration)
    if isinstance(made, str):
        raise InputError(made, hint="a simulation needs to know how fast a step is")
    if made.rates.matmul_flops is None or made.rates.attention_flops is None:
        raise InputError(
            f"no FLOPs figure for {gpu.id}: how long a prompt takes is not known", where="--gpu",
            hint="give a --calibration with matmul_flops, or another GPU",
        )  # fmt: skip
    if engine.speculation(settings) is not None:
        warnings.append("speculative decoding is not simulated: one token a step")
    if not outcome.pool.starts:
        warnings.append(f"{engine.name} would not start so: {outcome.reason}")
    if not isinstance(engine, Vllm):
        warnings.append(f"the scheduler is vLLM's: of {engine.name} the pool, its blocks and the step times are taken")
    shape, blocks, size, block_bytes = _pool(engine, settings, outcome)
    inputs = {"model": model.id, "gpu": gpu.id, "engine": engine.name, "engine_version": engine.version}
    tokens = made.chunk if made.chunk < 1 << 40 else settings.max_model_len
    allowed = outcome.pool.max_num_seqs_allowed
    sequences = min(settings.max_num_seqs or DEFAULT_SEQUENCES, allowed or DEFAULT_SEQUENCES << 10)
    return Site(
        model=model.id, gpu=gpu.id, engine=f"{engine.name} {engine.version}", settings=settings, setup=made,
        shape=shape, num_blocks=blocks, block_size=size, block_bytes=block_bytes, tokens_per_step=tokens,
        sequences=min(sequences, tokens), longest=settings.max_model_len,
        swap_seconds_per_block=block_bytes / PCIE_4_X16, warnings=(*warnings, *deployment.warnings), inputs=inputs,
    )  # fmt: skip


def _pool(engine: Engine, settings: Settings, outcome: Outcome) -> tuple[Shape, int, int, int]:
    """(what a sequence takes, blocks to hand out, tokens of a block, its bytes on the most loaded rank)."""
    stages, pool = outcome.stages, outcome.pool
    assert pool is not None  # the caller looked
    if isinstance(engine, Vllm):
        laid = engine.layout(stages[0], settings)
        blocks = (pool.num_blocks or 0) - NULL_BLOCKS
        if blocks < 1:
            raise InputError("the pool has no block", hint="`kvplan plan` shows what is left for the cache")
        return vllm_shape(laid, settings, engine), blocks, _block_tokens(laid), max(map(laid.block_bytes, stages))
    if pool.kv_tokens is None:
        return _of_bytes(engine, settings, outcome)
    size = pool.block_size or 1
    step = max(engine.request_bytes(s, settings, 2 * size) - engine.request_bytes(s, settings, size) for s in stages)
    span = size if _caches(engine, stages[0].spec, settings) else 0
    blocks = max(1, pool.kv_tokens // size)
    return Shape((size,), span=span, reserve_prompt=True), blocks, size, step


def _of_bytes(engine: Engine, settings: Settings, outcome: Outcome) -> tuple[Shape, int, int, int]:
    """The pool where layers keep different numbers of tokens and nothing is paged: units of bytes.

    A unit divides what a token takes of the layers that keep all and of each window; states are rounded up to it.
    Prefixes are shared where some layers keep all tokens.

    Raises:
        UnsupportedError: the bytes of a request are not such a sum.
    """
    kv = outcome.kv_bytes or ()
    longest = settings.max_model_len
    pairs = zip(outcome.stages, kv, strict=True)
    stage, have = max(pairs, key=lambda pair: engine.request_bytes(pair[0], settings, longest) / pair[1])

    def need(tokens: int) -> int:
        return int(engine.request_bytes(stage, settings, tokens))

    knees = sorted({s.window for _, m in stage.spec.mixers() for s in m.streams() if s.window and s.window < longest})
    bends = {w: 2 * need(w) - need(w - 1) - need(w + 1) for w in knees}
    slope = need(longest) - need(longest - 1)
    states = need(1) - slope - sum(bends.values())
    unit = gcd(slope, *bends.values()) or states
    if slope + sum(bends.values()) > _MOST_UNITS * unit:
        unit = slope or min(bends.values())
    windows = tuple(Window(1, w, w, w) for w, b in bends.items() for _ in range(-(-b // unit)))
    span = 1 if slope and _caches(engine, stage.spec, settings) else 0
    shape = Shape((1,) * (slope // unit), windows, -(-states // unit), span)
    if unit <= 0 or abs(shape.blocks(longest) * unit - need(longest)) > 0.02 * need(longest):
        raise UnsupportedError(
            f"the cache of this model under {engine.name} is not simulated", where="--engine", hint="use --engine vllm"
        )
    return shape, have // unit, 1, unit


def _caches(engine: Engine, model: ModelSpec, settings: Settings) -> bool:
    """Whether an engine keeps prefixes: it would hold part of a long one once."""
    long = replace(settings, shared_prefix_tokens=_LONG, prompt_tokens=_LONG + 1)
    return settings.enable_prefix_caching and engine.shared_prefix_tokens(model, long) > 0


def _block_tokens(laid: Layout) -> int:
    sizes = [g.first.block_size for g in laid.groups if g.first.family in WHOLE]
    return (sizes[0] if sizes else laid.block_size) * laid.limits.dcp


def vllm_shape(laid: Layout, settings: Settings, engine: Vllm) -> Shape:
    """What a sequence takes of vLLM's pool: a block a group, by the group's family.

    A window that decodes keeps its tokens less one behind the newest; a long prompt keeps those in flight besides
    (`kvplan.engines.vllm.requests.layer_blocks`).
    """
    from kvplan.engines.vllm.requests import group_blocks

    whole: list[int] = []
    windows: list[Window] = []
    fixed = states = 0
    sparse = False
    longest = settings.max_model_len
    for group in laid.groups:
        first = group.first
        if first.family in WHOLE or (first.family == "mamba" and laid.limits.mamba_mode == "all"):
            whole.append(first.block_size * (laid.limits.dcp if first.family in WHOLE else 1))
        elif first.family in ("sliding", "sliding_mla", "chunked"):
            tokens = first.window or 1
            most = -(-tokens // first.block_size) + 1
            windows.append(Window(first.block_size, tokens, most, group_blocks(group, longest, laid.limits)))
            sparse = sparse or first.family != "chunked"
        else:
            fixed += group_blocks(group, longest, laid.limits)
            states += first.family == "mamba"
    span = laid.prefix_span() if settings.enable_prefix_caching and whole else 0
    reserve = engine.rules.version >= RESERVES_PROMPT
    marked = bool(span and (sparse or states)) and engine.rules.version >= MARKS
    return Shape(tuple(whole), tuple(windows), fixed, span, marked, states, reserve)


def with_blocks(site: Site, blocks: int) -> Site:
    """The same replica with another pool."""
    return site._replace(num_blocks=blocks)


def plain(site: Site, *, block_size: int | None = None) -> Site:
    """The same bytes as one pool of equal blocks: what contiguous reservations and other block sizes are compared on.

    Raises:
        UnsupportedError: groups that share no measure of tokens.
    """
    if len(site.shape.whole) != 1 or site.shape.windows or site.shape.fixed:
        raise UnsupportedError(
            "reservations in token slots need a cache that keeps every token in one group", where="--allocator",
            hint="leave --allocator out: paged",
        )  # fmt: skip
    if block_size is None or block_size == site.block_size:
        return site
    shape = replace_shape(site.shape, block_size)
    return site._replace(
        shape=shape, num_blocks=site.kv_tokens // block_size, block_size=block_size,
        block_bytes=site.block_bytes * block_size // site.block_size,
    )  # fmt: skip


def replace_shape(shape: Shape, block_size: int) -> Shape:
    """The shape of one group with another block size."""
    return shape._replace(whole=(block_size,), span=block_size if shape.span else 0)


__all__ = ["Site", "plain", "prepare", "vllm_shape", "with_blocks"]
