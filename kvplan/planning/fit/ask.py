"""What `fit` is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import InputError
from kvplan.planning.speed.load import Limits
from kvplan.planning.speed.profile import Lengths
from kvplan.planning.weights import weight_format

if TYPE_CHECKING:
    from kvplan.planning.workload_lengths import Distribution
    from kvplan.spec.model import ModelSpec

DEFAULT_TOP = 20


class Ask(NamedTuple):
    """A workload with its targets, and where to look for hardware."""

    lengths: Lengths
    prompts: Distribution
    outputs: Distribution
    longest: int
    """Tokens of the longest request."""
    request_rate: float | None = None
    """Requests a second at random, of the whole deployment."""
    concurrency: int | None = None
    """Requests under way of the whole deployment; beside a rate: at most."""
    ttft: float | None = None
    tpot: float | None = None
    prices: Any = ()
    """As `kvplan.planning.cost.read_prices` takes them."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """What is the same for all candidates, as `plan_deployment` takes it; layout sizes pin a dimension."""
    gpus: tuple[str, ...] = ()
    """Names; none: the whole catalog."""
    engines: tuple[str, ...] = ()
    """Names; none: for each device the one in `candidates.USUAL`."""
    weights: tuple[str, ...] = ()
    """Formats; none: the checkpoint's own and the engine's smaller ones where the device has them."""
    kv_formats: tuple[str, ...] = ()
    max_gpus: int | None = None
    top: int = DEFAULT_TOP
    every: bool = False
    """All rows rather than the best of each GPU."""

    @property
    def limits(self) -> Limits:
        both = self.request_rate is not None and self.concurrency is not None
        return Limits(self.ttft, self.tpot, self.concurrency / self.request_rate if both else None)  # type: ignore[operator]


def check(ask: Ask, model: ModelSpec) -> None:
    """Refuse what no hardware can answer.

    Raises:
        InputError: neither a rate nor a number of requests, targets that contradict each other, requests that are
            longer than the model takes. UnknownNameError: no such format of weights.
    """
    for name in ask.weights:
        weight_format(model, name)
    if ask.lengths.prompt < 1:
        raise InputError("a request without a prompt", where="--prompt-tokens", hint="at least 1 token")
    given, tokens = ask.settings.get("max_model_len"), ask.lengths.request
    limit = given if given is not None else model.max_position_embeddings
    if limit is not None and tokens > limit:
        whose = f"that {model.id} takes" if given is None else "of --max-model-len"
        raise InputError(
            f"requests of {tokens:,} tokens (prompt + output) are over the {limit:,} {whose}",
            where="--prompt-tokens", hint="shorter requests, or a longer --max-model-len",
        )  # fmt: skip
    ttft, tpot, steps = ask.ttft, ask.tpot, max(0, ask.lengths.output - 1)
    if ttft is None or tpot is None or ask.limits.request is None:
        return
    allowed = ttft + steps * tpot
    if ask.limits.request > allowed * (1 + 1e-9):
        raise InputError(
            f"{ask.concurrency:,} requests in flight at {ask.request_rate:g} a second last {ask.limits.request:.4g} s "
            f"each (Little's law), and --ttft {ttft:g} with --tpot {tpot:g} allows {allowed:.4g} s",
            where="--concurrency", hint=f"leave it out, or at most {max(1, int(allowed * (ask.request_rate or 0)))}",
        )  # fmt: skip
