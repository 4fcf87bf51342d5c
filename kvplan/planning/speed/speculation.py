"""Speculative decoding: what a step with drafts costs, and the tokens it must bring to be worth it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.planning.speed import decode
from kvplan.planning.speed.rates import join

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
    """Seconds of a step that proposes `drafts` tokens by the model's own draft layers and checks them all.

    A proposal reads the draft layers and the head once; drafts that come from elsewhere (n-grams) cost nothing here.
    """
    works, rates, layout, _ = setup
    checked = decode.step(works, rates, layout, batch, context, width=1 + drafts).seconds
    reading, products, launches = proposal(setup)
    return checked + drafts * (join(reading, batch * products, rates.softness) + launches)


def proposal(setup: Setup) -> tuple[Any, Any, Any]:
    """(seconds of reading, of one sequence's products, of launches) of one proposal by the model's own draft layers."""
    last, rates = setup.works[-1], setup.rates
    if not last.draft_bytes:
        return 0.0, 0.0, 0.0
    reading = (last.draft_bytes + last.head_bytes) / rates.weight_bandwidth
    launches = 3 * rates.linear_seconds + rates.attention_seconds + rates.layer_seconds  # one layer and the head
    if rates.matmul_flops is None:
        return reading, 0.0, launches
    return reading, 2 * (last.draft_parameters + last.head_parameters) / rates.decode_flops, launches


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
