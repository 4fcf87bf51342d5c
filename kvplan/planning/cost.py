"""What GPUs cost an hour, and what that makes of a token read and of a token written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import InputError, printable

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec

FLAG = "--price"
MILLION = 1_000_000


class Price(NamedTuple):
    """US dollars of one GPU for an hour."""

    usd_per_hour: float
    low: float
    high: float
    source: str
    date: str | None
    """When the source said so; None: given by hand."""


class CostFigures(NamedTuple):
    """What a deployment costs, and its tokens at the load it carries. None: no price is known, or nothing runs."""

    usd_per_hour: float | None
    """Of all GPUs of the deployment, those that idle included."""
    usd_per_gpu_hour: float | None
    low_usd_per_gpu_hour: float | None
    high_usd_per_gpu_hour: float | None
    price_source: str | None
    price_date: str | None
    requests_per_second: float | None
    """The load that these figures are for: that of the workload, as far as it is carried."""
    per_request: float | None
    prefill_share: float | None
    """Of a request's seconds, the part of its prompt."""
    per_million_input_tokens: float | None
    """The prompt's seconds at the price, over the prompt's tokens (those found in a shared prefix included)."""
    per_million_output_tokens: float | None
    """The same of decode over the output's tokens; None where no step of decode writes one."""
    low_per_request: float | None = None
    """Here and below: of the range of the price and, where the load is the most that is carried, of the speed."""
    high_per_request: float | None = None
    low_per_million_input_tokens: float | None = None
    high_per_million_input_tokens: float | None = None
    low_per_million_output_tokens: float | None = None
    high_per_million_output_tokens: float | None = None


def read_prices(given: Any) -> dict[str | None, float]:
    """GPU id -> dollars an hour, from what ``--price`` or a caller gave; None stands for the GPU that is planned.

    Args:
        given: a number, pairs of (name or None, dollars), or a mapping of names to dollars.

    Raises:
        InputError: not a price; UnknownNameError: no such GPU.
    """
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = ((None, float(given)),)
    if hasattr(given, "items"):
        given = tuple(given.items())
    if not isinstance(given, tuple | list):
        raise InputError(f"{given!r:.40} is no price", where=FLAG, hint="pass a number, or {name: dollars an hour}")
    found: dict[str | None, float] = {}
    for pair in given:
        name, usd = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, pair)
        if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 < usd < 1e6:
            raise InputError(f"{usd!r:.40} is no price", where=FLAG, hint="dollars an hour, above 0: 2.5")
        key = _gpu_id(name) if name is not None else None
        if found.setdefault(key, float(usd)) != usd:
            what = printable(str(name), 40) if name is not None else "the GPU"
            raise InputError(f"two prices for {what}", where=FLAG, hint="leave out one of them")
    return found


def _gpu_id(name: str) -> str:
    """The catalog's id of a GPU; ``custom`` and paths of files stand for themselves."""
    from kvplan.sources import find_gpu

    return "custom" if name == "custom" else find_gpu(name).id


def price_of(gpu: GpuSpec, prices: dict[str | None, float]) -> Price | None:
    """The price of a GPU: as given, else the middle of the catalog's range; None where neither says."""
    given = prices.get(gpu.id, prices.get(None))
    if given is not None:
        return Price(given, given, given, FLAG, None)
    known = gpu.price
    if known is None:
        return None
    low, high = known.low_usd_per_hour, known.high_usd_per_hour
    return Price((low + high) / 2, low, high, known.source, known.date)


def cost_figures(
    price: Price | None, gpus: int, *, prompt: int, output: int, rate: float | None, share: float | None,
    speed: tuple[float, float] = (1.0, 1.0),
) -> CostFigures:  # fmt: skip
    """The cost of a deployment of `gpus` GPUs that carries `rate` requests a second.

    A request costs what the deployment does in ``1 / rate`` seconds. Its prompt pays for `share` of that, its
    output for the rest, so the two add up to what is paid, idle seconds included.

    Args:
        speed: the bounds of the rate, as shares of it; of a load that is given, and carried, there are none.
    """
    if price is None:
        return CostFigures(None, None, None, None, None, None, rate, None, share, None, None)
    hourly = price.usd_per_hour * gpus
    known = (hourly, price.usd_per_hour, price.low, price.high, price.source, price.date)
    if not rate or share is None:
        return CostFigures(*known, None, None, None, None, None)
    request = hourly / 3600 / rate
    read, written = request * share / prompt * MILLION, None
    if output > 1:  # the first comes out of the prompt's seconds
        written = request * (1 - share) / output * MILLION
    least, most = price.low / price.usd_per_hour / speed[1], price.high / price.usd_per_hour / speed[0]
    ends = (each and each * end for each in (request, read, written) for end in (least, most))
    return CostFigures(*known, rate, request, share, read, written, *ends)


def throughput_bounds(share: float, decode: tuple[float, float], prefill: tuple[float, float]) -> tuple[float, float]:
    """The bounds of a throughput as shares of it, of which prompts take `share` of the seconds.

    Args:
        decode: (low, high) of its rate over what is predicted; `prefill` likewise.
    """
    low, high = (1 / (share / p + (1 - share) / d) for p, d in zip(prefill, decode, strict=True))
    return low, high
