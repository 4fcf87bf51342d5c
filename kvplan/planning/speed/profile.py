"""A deployment down to the seconds of what a step carries: `decode.step` and `prefill.prompt` as coefficients.

A step over some sequences and some prompt tokens then takes a few products and two joins, however often it is
asked for. Takes numbers or NumPy arrays for rates and counts; lengths are numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.speed import decode
from kvplan.planning.speed import work as of
from kvplan.planning.speed.rates import join
from kvplan.spec.arrays import is_array, larger, smaller

if TYPE_CHECKING:
    from kvplan.planning.speed.figures import Setup
    from kvplan.planning.speed.work import StageWork


class Lengths(NamedTuple):
    """The requests of a workload, in tokens."""

    prompt: int
    """Mean, shared tokens included."""
    output: int
    """Mean; the first comes out of the prefill."""
    shared: int = 0
    """Prompt tokens whose cache other requests have left: they are not computed again."""
    prompt_cv: float = 0.0
    """Standard deviation over mean; 0: all alike."""
    output_cv: float = 0.0
    drafts: int = 0
    """Tokens that speculative decoding proposes in a step."""
    tokens_per_step: float = 1.0
    """Of one sequence, accepted drafts included."""

    @property
    def width(self) -> int:
        """Tokens of a sequence that a step computes."""
        return 1 + self.drafts

    @property
    def request(self) -> int:
        """Of one request, prompt and output."""
        return self.prompt + self.output

    @property
    def fresh(self) -> int:
        """Prompt tokens that are computed."""
        return max(1, self.prompt - self.shared)

    @property
    def steps(self) -> float:
        """Decode steps of one request, on average."""
        written = max(0, self.output - 1)
        return written / self.tokens_per_step if self.drafts else written

    @property
    def context(self) -> int:
        """Tokens cached by a sequence that decodes, on average: the prompt and half of the output; long outputs are
        met more often than short ones (``E[O^2] / 2 E[O]``)."""
        if not self.output_cv:
            return self.prompt + self.output // 2
        return self.prompt + round(self.output * (1 + self.output_cv**2) / 2)

    @property
    def square(self) -> int:
        """The prompt length that has the mean square, for attention."""
        return self.prompt if not self.prompt_cv else round(self.prompt * (1 + self.prompt_cv**2) ** 0.5)


class StageCost(NamedTuple):
    """Seconds of one pipeline stage for what a step carries, at full rate (floats, or arrays of one shape)."""

    weights: Any
    """Reading the weights that every step reads."""
    experts: tuple[tuple[Any, Any], ...]
    """(chance that a token leaves an expert alone, seconds to read all of them) of every kind of routed experts."""
    decode_products: Any
    """Of one sequence."""
    prefill_products: Any
    """Of one prompt token."""
    decode_cache: Any
    prefill_cache: Any
    """Reading the cache, of one prompt token of a prompt that is one chunk, less `prefill_chunk`."""
    prefill_chunk: Any
    """The same for every chunk that the prompt is cut into."""
    decode_scores: Any
    prefill_scores: Any
    message: Any
    """Sending, of one token, by the protocol of large messages."""
    sending: Any
    """The same, whatever is carried."""
    short_message: Any
    """As `message` and `sending`, by the protocol of short messages; equal to them where a link has one for all."""
    short_sending: Any
    fixed: Any
    """Kernels, whatever is carried."""
    draft: StageCost | None = None
    """Of one proposal of speculative decoding, which the last stage makes."""


class Profile(NamedTuple):
    """A deployment and the lengths of its requests, down to seconds (`profile`)."""

    lengths: Lengths
    stages: tuple[tuple[Any, StageCost], ...]
    """(how many there are of it, the stage)."""
    step_seconds: Any
    pp: Any
    spread: Any
    """Replicas whose tokens meet in the same experts."""
    chunk: Any
    """Tokens of a step at most."""
    softness: float


def profile(setup: Setup, lengths: Lengths) -> Profile:
    """What the formulas below need of a deployment; its matrix rates must be known."""
    layout = setup.layout
    stages: list[tuple[int, StageCost]] = []
    for stage in setup.works:
        cost = _stage_cost(setup, stage, lengths)
        known = next((i for i, (_, other) in enumerate(stages) if other is cost or _same(other, cost)), None)
        if known is None:
            stages.append((1, cost))
        else:
            stages[known] = (stages[known][0] + 1, cost)
    spread = layout.dp if layout.expert_parallel and any(w.experts for w in setup.works) else 1
    return Profile(
        lengths, tuple(stages), setup.rates.step_seconds, layout.pp, spread, setup.chunk, setup.rates.softness
    )  # fmt: skip


def some_of(made: Profile, rows: Any) -> Profile:
    """The entries `rows` of a profile of arrays."""

    def taken(value: Any) -> Any:
        return value[rows] if is_array(value) else value

    def part(cost: StageCost) -> StageCost:
        weights, experts, *rest = cost[:-1]
        pairs = tuple((taken(idle), taken(seconds)) for idle, seconds in experts)
        draft = None if cost.draft is None else part(cost.draft)
        return StageCost(taken(weights), pairs, *map(taken, rest))._replace(draft=draft)

    stages = [(taken(count), part(cost)) for count, cost in made.stages]
    step_seconds, pp, spread, chunk = map(taken, (made.step_seconds, made.pp, made.spread, made.chunk))
    return Profile(made.lengths, tuple(stages), step_seconds, pp, spread, chunk, made.softness)


def _same(one: StageCost, other: StageCost) -> bool:
    """Whether two stages cost the same."""
    flat = zip((*one[0:1], *one[2:]), (*other[0:1], *other[2:]), strict=True)
    pairs = [
        *flat,
        *(pair for a, b in zip(one.experts, other.experts, strict=False) for pair in zip(a, b, strict=True)),
    ]
    return len(one.experts) == len(other.experts) and all(
        bool(a == b) if not is_array(a) else (a == b).all() for a, b in pairs
    )


def _stage_cost(setup: Setup, stage: StageWork, lengths: Lengths) -> StageCost:
    """With no prompts on board a step is one of `decode.step`, with no sequences a chunk of `prefill.prompt`."""
    rates, layout, fresh, index = setup.rates, setup.layout, lengths.fresh, setup.rates.index_share
    assert rates.matmul_flops is not None  # the caller looked
    assert rates.attention_flops is not None
    lone = stage._replace(experts=tuple(e._replace(groups=1) for e in stage.experts))  # a prompt has them to itself
    products = 2 * (of.token_parameters(lone, head=False) + stage.head_parameters / fresh)
    prefill = products / (rates.matmul_flops * rates.prefill_share)
    if rates.prefill_cap is not None:
        prefill = join(prefill, products / rates.prefill_cap, rates.softness)
    held, before = of.kv_bytes(stage, lengths.prompt), 0
    squares = of.prefill_attention_flops(stage, lengths.square, index)
    if lengths.shared:
        before = of.kv_bytes(stage, lengths.shared) - 2 * stage.state_bytes
        squares = squares - of.prefill_attention_flops(stage, lengths.shared, index)
    cache = 1 / rates.attention_bandwidth
    collectives, sent = decode.sent(stage, layout)
    message, sending = sent / rates.link_bandwidth, collectives * rates.link_seconds
    short = rates.short_bandwidth
    return StageCost(
        weights=stage.weight_bytes / rates.weight_bandwidth,
        experts=tuple((1 - e.per_token / e.experts, e.num_bytes / rates.weight_bandwidth) for e in stage.experts),
        decode_products=2 * lengths.width * of.token_parameters(stage) / rates.decode_flops, prefill_products=prefill,
        decode_cache=of.kv_bytes(stage, lengths.context) * cache,
        prefill_cache=(held - before) / 2 / fresh * cache, prefill_chunk=(held + before) / 2 / fresh * cache,
        decode_scores=lengths.width * of.attention_flops(stage, lengths.context, index) / rates.attention_flops,
        prefill_scores=squares / fresh / rates.attention_flops,
        message=message, sending=sending, short_message=message if short is None else sent / short,
        short_sending=sending if short is None else collectives * rates.short_seconds,
        fixed=decode.kernel_seconds(stage, rates), draft=_draft_cost(setup, stage, lengths),
    )  # fmt: skip


def _draft_cost(setup: Setup, stage: StageWork, lengths: Lengths) -> StageCost | None:
    """What a proposal takes on the stage that makes them: `speculation.proposal_seconds` as coefficients."""
    if not lengths.drafts or stage.draft is None:
        return None
    alone = setup._replace(layout=setup.layout._replace(pp=1))
    return _stage_cost(alone, stage.draft, lengths._replace(drafts=0))


def passed(made: Profile, decoding: Any, tokens: Any, chunks: Any) -> tuple[Any, Any]:
    """(seconds through all stages, seconds of the slowest one) of a micro-batch.

    Args:
        decoding: sequences that get a token.
        tokens: of prompts.
        chunks: into which their prompts are cut.
    """
    total: Any = 0.0
    slowest: Any = 0.0
    for count, cost in made.stages:
        stage = _stage_seconds(made, cost, decoding, tokens, chunks, made.lengths.width)
        if cost.draft is not None:
            drafting = made.lengths.drafts * _stage_seconds(made, cost.draft, decoding, 0.0, 1, 1)
            stage = stage + drafting * smaller(decoding, 1.0)  # none for a prompt that is alone
        total, slowest = total + count * stage, larger(slowest, stage)
    return total, slowest


def _stage_seconds(made: Profile, cost: StageCost, decoding: Any, tokens: Any, chunks: Any, width: int) -> Any:
    """One stage's part of `passed`, of which every decoding sequence has `width` tokens."""
    written = decoding * width
    reading = cost.weights
    for idle, seconds in cost.experts:
        reading = reading + seconds * (1 - idle ** (written * made.spread + tokens))
    products = decoding * cost.decode_products + tokens * cost.prefill_products
    cache = decoding * cost.decode_cache + tokens * (cost.prefill_cache + chunks * cost.prefill_chunk)
    scores = decoding * cost.decode_scores + tokens * cost.prefill_scores
    both = join(reading, products, made.softness) + join(cache, scores, made.softness)
    carried = written + tokens
    short = cost.short_sending + carried * cost.short_message
    return both + smaller(short, cost.sending + carried * cost.message) + cost.fixed
