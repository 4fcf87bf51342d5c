"""What `fit` answers. Field names are the keys of ``fit --json`` (schema ``kvplan.fit/1``)."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvplan.planning.plan import to_plain

SCHEMA = "kvplan.fit/1"


class Margins(NamedTuple):
    """How far a candidate stays from what was asked, as a share of it; None: not asked."""

    slots: float
    """Of the requests that run at once by memory and settings, those that are free."""
    request_rate: float | None
    """Of the rate that the targets allow, what is not used."""
    ttft: float | None
    tpot: float | None


class Row(NamedTuple):
    """One way to carry the workload, as ``kvplan plan`` gives it. Figures are of all copies unless the name says."""

    rank: int
    gpu: str
    gpus: int
    """Of all copies."""
    copies: int
    """Independent copies of the layout, which share the traffic evenly."""
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    decode_context_parallel_size: int
    enable_expert_parallel: bool
    engine: str
    engine_version: str
    weights: str
    """The format of the weights."""
    kv_cache: str
    """The format of the cache."""
    max_model_len: int
    usd_per_hour: float | None
    usd_per_gpu_hour: float | None
    price_source: str | None
    price_date: str | None
    per_million_input_tokens: float | None
    per_million_output_tokens: float | None
    ttft_seconds: float
    tpot_seconds: float | None
    request_seconds: float
    """From a request's arrival to its last token, on average."""
    requests_per_second: float
    output_tokens_per_second: float
    in_flight: float
    max_request_rate: float
    """Requests a second at random that are carried within the targets."""
    slots: int
    """Requests that one replica runs at once."""
    margin: float
    """The smallest of `margins`."""
    margins: Margins
    device_bytes: int
    """Memory of all GPUs."""
    kv_bytes: int
    """Of the cache, on the GPU that has least."""
    prefill_utilization: float
    confidence: str
    """Of the GPU's figures."""
    speed_reported: bool
    """Whether reports of the engine on the vendor's devices, or a calibration, stand behind the speed."""
    warnings: tuple[str, ...]
    """What the engine says of this deployment."""
    flags: str
    """What to type after ``kvplan plan MODEL`` for the plan of one copy."""


class Nearest(NamedTuple):
    """The candidate that fails by least."""

    gpu: str
    engine: str
    layout: str
    weights: str
    kv_cache: str
    factor: float
    """What it needs over what there is, or takes over what was asked."""
    text: str


class Failure(NamedTuple):
    """GPUs of which no candidate carries the workload, for one reason."""

    reason: str
    gpus: tuple[str, ...]
    nearest: Nearest | None


class NotTried(NamedTuple):
    """A format that nobody asked for and that is left out on some GPUs."""

    format: str
    use: str
    """``weights`` or ``cache``."""
    reason: str
    gpus: tuple[str, ...]


class FitVerdict(NamedTuple):
    """Whether anything carries it."""

    carries: bool
    reason: str


class Fit(NamedTuple):
    """Hardware for a workload, cheapest first."""

    schema: str
    inputs: dict[str, Any]
    candidates: int
    """Combinations of GPU, engine, layout and formats that were worked out."""
    feasible: int
    """Those that carry the workload."""
    gpus_tried: int
    gpus_feasible: int
    rows: tuple[Row, ...]
    """By dollars an hour, the unpriced after them by GPUs, then by memory; the best of each GPU, or every one."""
    front: tuple[Row, ...]
    """Nothing is both cheaper and faster: dollars (GPUs where nothing has a price) against `request_seconds`."""
    failures: tuple[Failure, ...]
    not_tried: tuple[NotTried, ...]
    verdict: FitVerdict
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for ``json.dumps``."""
        plain: dict[str, Any] = to_plain(self)
        return plain
