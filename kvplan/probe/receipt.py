"""A row of the receipt: what was predicted, what was measured, and whether they agree.

Rows are plain numbers in one unit each: ``bytes``, ``bytes/s``, ``s``, ``ratio`` or ``count``. The measured
figure is the median of the samples; all samples stay in the receipt, so that others can judge it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal, NamedTuple

SCHEMA = "kvplan.validation/1"

Unit = Literal["bytes", "bytes/s", "s", "ratio", "count", "flop/s"]
Sense = Literal["equal", "at_least", "at_most"]
"""What agreement means: within the tolerance on both sides, not lower than it allows, or not higher."""

SECTIONS = (
    "device", "memory", "fill", "blocks", "bandwidth", "attention", "decode", "prefill", "correctness", "distributed",
    "drift",
)  # fmt: skip
"""Names of sections, as ``--only`` takes them; `kvplan.probe.run.STEPS` has the order in which they run."""

WIDE = 0.10
"""A spread (see `spread`) from which on a row says that it is wide.

Source: ``torch/utils/benchmark/utils/common.py`` warns from an interquartile range of 10 % of the median.
"""


class Row(NamedTuple):
    """One quantity, predicted and measured. Build it with `row`."""

    section: str
    """One of `SECTIONS`."""
    name: str
    """What it is, for people: ``int8, 64 x 4096``; unique in its section."""
    predicted: float | None
    """None: nothing was predicted, the row informs."""
    measured: float | None
    """Median of `samples`; None: it could not be measured, `note` says why."""
    unit: Unit
    error: float | None
    """``measured / predicted - 1``."""
    tolerance: float | None
    """How far `error` may lie from 0; None: not judged."""
    passed: bool | None
    """None: not judged. In JSON ``pass``."""
    spread: float | None
    """Distance of the quartiles over the median; None for exact quantities and single samples."""
    samples: tuple[float, ...]
    sense: Sense = "equal"
    note: str = ""
    """How it was measured or predicted: which kernel, which model, why it failed. One line."""

    @property
    def wide(self) -> bool:
        """Whether the samples lie too far apart to say much."""
        return self.spread is not None and self.spread > WIDE

    def to_dict(self) -> dict[str, Any]:
        """The row as the contract has it, ready for ``json.dumps``."""
        plain = self._asdict()
        plain["pass"] = plain.pop("passed")
        plain["samples"] = list(self.samples)
        order = ("section", "name", "predicted", "measured", "unit", "error", "tolerance", "pass", "spread", "samples")
        return {key: plain[key] for key in (*order, "sense", "note")}


def row(
    section: str,
    name: str,
    *,
    predicted: float | None,
    measured: float | Sequence[float] | None,
    unit: Unit,
    tolerance: float | None = None,
    sense: Sense = "equal",
    note: str = "",
) -> Row:
    """A row with its error, spread and verdict worked out.

    Args:
        measured: one figure, or all samples, whose median counts; None or nothing: not measured. A figure that is
            no finite number (NaN, infinity) is a failed row that says so, judged or not.
        tolerance: as a share of the prediction; 0.0 asks for equality, None for no verdict.
        sense: ``at_least`` passes whatever lies above the prediction, ``at_most`` whatever lies below it.
    """
    if section not in SECTIONS:
        raise ValueError(f"no section {section!r}")
    drawn = () if measured is None else (measured,) if isinstance(measured, int | float) else tuple(measured)
    samples = tuple(x for x in drawn if isfinite(x))
    wrong = [f"{len(drawn) - len(samples)} of {len(drawn)} measured figures"] if len(samples) < len(drawn) else []
    if predicted is not None and not isfinite(predicted):
        predicted, wrong = None, [*wrong, "the prediction"]
    if wrong:  # JSON has no such numbers, and nothing agrees with them
        note = f"not a number: {', '.join(wrong)}" + (f"; {note}" if note else "")
        return Row(section, name, predicted, None, unit, None, tolerance, False, None, samples, sense, note)
    value = median(samples) if samples else None
    error = relative_error(predicted, value)
    return Row(
        section, name, predicted, value, unit, error, tolerance,
        _judge(predicted, value, error, tolerance, sense), spread(samples), samples, sense, note,
    )  # fmt: skip


def _judge(
    predicted: float | None, measured: float | None, error: float | None, tolerance: float | None, sense: Sense
) -> bool | None:
    if tolerance is None or predicted is None:
        return None
    if measured is None:
        return False
    if error is None:  # predicted 0
        return measured <= 0 if sense == "at_most" else sense == "at_least"
    if sense == "at_least":
        return error >= -tolerance
    return error <= tolerance if sense == "at_most" else abs(error) <= tolerance


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """``measured / predicted - 1``; None where one is missing, or 0 was predicted and something measured."""
    if predicted is None or measured is None:
        return None
    if predicted == measured:
        return 0.0
    return measured / predicted - 1 if predicted else None


def median(samples: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def spread(samples: Sequence[float]) -> float | None:
    """Distance of the quartiles over the median; None for fewer than three samples."""
    if len(samples) < 3:
        return None
    middle = median(samples)
    if not middle:
        return None
    return (quantile(samples, 0.75) - quantile(samples, 0.25)) / abs(middle)


def quantile(samples: Sequence[float], share: float) -> float:
    """The value below which `share` of the samples lie, linear between neighbours (NumPy's default)."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def said(error: BaseException) -> str:
    """An error as a row's note has it: its kind and its first line."""
    text = next(iter(str(error).splitlines()), "")[:200]
    return f"{type(error).__name__}{f': {text}' if text else ''}"


class Counts(NamedTuple):
    """How many rows agree, do not, and were not judged."""

    passed: int
    failed: int
    informative: int


def counts(rows: Sequence[Row]) -> Counts:
    """Verdicts over rows."""
    passed = sum(r.passed is True for r in rows)
    failed = sum(r.passed is False for r in rows)
    return Counts(passed, failed, len(rows) - passed - failed)
