"""Speculative decoding: what a step with drafts costs, and the tokens it must bring to be worth it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.planning.speed import decode
from kvplan.spec.arrays import larger

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings
    from kvplan.planning.speed.figures import Setup
    from kvplan.planning.speed.profile import Lengths
    from kvplan.spec.model import ModelSpec


def expected_tokens(acceptance: Any, drafts: int) -> Any:
    """Tokens a step brings on average with `drafts` proposals, each accepted with chance `acceptance` (below 1).

    ``(1 - a^(k+1)) / (1 - a)``: the run of accepted drafts and the token that the model adds itself.
    Source: speculative decoding, arXiv 2211.17192, equation 1.
    """
    return (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def speculative_seconds(setup: Setup, batch: Any, context: Any, drafts: int) -> Any:
    """Seconds of a step that proposes `drafts` tokens one after the other and checks them all.

    Drafts that no layers propose (n-grams) cost nothing here. With pipeline stages the last one proposes for the
    micro-batch that it holds.
    """
    works, rates, layout, _ = setup
    checked = decode.step(works, rates, layout, batch, context, width=1 + drafts).seconds
    micro = -(-batch // layout.pp)
    drafting = drafts * proposal_seconds(setup, micro, context)
    if layout.pp == 1:
        return checked + drafting
    one = layout._replace(pp=1)
    last = decode.step(works[-1:], rates, one, micro, context, width=1 + drafts).seconds - rates.step_seconds
    return larger(checked + drafting, -(-batch // micro) * (last + drafting) + rates.step_seconds)


def proposal_seconds(setup: Setup, batch: Any, context: Any) -> Any:
    """Seconds in which one token is proposed for each of `batch` sequences: a decode step of the draft's layers.

    It reads its weights and its head (of routed experts those that the batch touches), its cache, and sends what a
    step of so many layers sends.
    """
    draft = setup.works[-1].draft
    if draft is None:
        return 0.0
    rates, layout = setup.rates._replace(step_seconds=0.0), setup.layout._replace(pp=1)
    return decode.step((draft,), rates, layout, batch, context).seconds


def speculated(lengths: Lengths, model: ModelSpec, engine: Engine, settings: Settings) -> Lengths:
    """The workload with the drafts of its deployment, where somebody says how many of them are kept.

    Raises:
        InputError: somebody does, and there are no drafts.
    """
    acceptance = settings.extra.get("acceptance_rate")
    if acceptance is None:
        return lengths
    found = engine.speculation(settings)
    if found is None:
        raise no_drafts()
    drafts = found.tokens or len(model.draft_layers) or 1
    return lengths._replace(drafts=drafts, tokens_per_step=float(expected_tokens(acceptance, drafts)))


def no_drafts() -> InputError:
    """What is wrong with an acceptance where nothing is proposed."""
    return InputError(
        "is about speculative decoding, and there is none", where="--acceptance-rate",
        hint="""--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'""",
    )  # fmt: skip


def break_even(setup: Setup, batch: int, context: int, drafts: int) -> float:
    """Tokens that a speculative step must bring on average to be worth its time; above `drafts` + 1 it never is."""
    plain = float(decode.step(setup.works, setup.rates, setup.layout, batch, context).seconds)
    return float(speculative_seconds(setup, batch, context, drafts)) / plain
