"""Why GPUs fail: how far each of them comes at best, and the nearest miss of every reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from kvplan.planning.fit.cases import Case
from kvplan.planning.fit.judge import MOST_COPIES, NAMES, Judged
from kvplan.planning.fit.result import Failure, Nearest, NotTried
from kvplan.planning.fit.screen import (
    CACHE,
    CARRIES,
    COPIES,
    LIMIT,
    NO_FIGURES,
    REFUSED,
    TARGETS,
    WEIGHTS,
    Failed,
)
from kvplan.planning.workload_advice import seconds

if TYPE_CHECKING:
    from kvplan.errors import KvplanError
    from kvplan.planning.fit.ask import Ask
    from kvplan.spec.gpu import GpuSpec

_WORDS = {
    WEIGHTS: "the weights do not load", CACHE: "no room for the longest request beside the weights",
    LIMIT: "more GPUs than --max-gpus", COPIES: f"more than {MOST_COPIES:,} copies, the most that are counted",
}  # fmt: skip
_TIMES = {"ttft": "time to first token", "tpot": "time per output token", "concurrency": "seconds of a request"}


class _Best(NamedTuple):
    """How far one GPU came."""

    reached: int
    miss: float
    why: str
    case: Case | None
    seconds: float = 0.0
    error: KvplanError | None = None


class Misses:
    """Collects what fails while candidates are worked out."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._best: dict[str, _Best] = {}
        self._floors: dict[str, tuple[float, str]] = {}
        """Target -> (the least seconds of a single request, on what)."""

        self._left_out: dict[tuple[str, str, str], list[str]] = {}
        """(format, weights or cache, reason) -> the GPUs that were not tried with it."""

    def _add(self, gpu: str, found: _Best) -> None:
        known = self._best.get(gpu)
        if known is None or (found.reached, -found.miss) > (known.reached, -known.miss):
            self._best[gpu] = found

    def refused(self, gpu: GpuSpec, error: KvplanError, distance: float = numpy.inf) -> None:
        """It is not tried at all.

        Args:
            distance: over 1, that of a layout which an engine refuses; infinite where no engine runs on it.
        """
        self._add(gpu.id, _Best(REFUSED, distance, error.message, None, error=error))

    def left_out(self, gpu: GpuSpec, fmt: str, use: str, why: str) -> None:
        """A format is not tried on a GPU."""
        names = self._left_out.setdefault((fmt, use, why), [])
        if gpu.id not in names:
            names.append(gpu.id)

    def not_tried(self) -> tuple[NotTried, ...]:
        """The formats that were left out."""
        return tuple(NotTried(fmt, use, why, tuple(gpus)) for (fmt, use, why), gpus in self._left_out.items())

    def failed(self, part: Failed) -> None:
        """A case that does not start on these GPUs."""
        reached, miss = numpy.broadcast_arrays(part.reached, part.miss, numpy.zeros(len(part.gpus)))[:2]
        for gpu, how, by in zip(part.gpus, reached.tolist(), miss.tolist(), strict=True):
            self._add(gpu.id, _Best(how, by, part.why, part.case, error=part.error))

    def judged(self, where: Iterable[tuple[Case, GpuSpec]], result: Judged) -> None:
        """Candidates that start, with what became of them."""
        where = list(where)
        for name, floors in (("ttft", result.floor_ttft), ("tpot", result.floor_tpot)):
            i = int(numpy.argmin(floors))
            if float(floors[i]) < self._floors.get(name, (numpy.inf, ""))[0]:
                self._floors[name] = (float(floors[i]), f"{where[i][1].id}, {text_of(where[i][0])}")
        for i in numpy.flatnonzero(result.reached != CARRIES).tolist():
            case, gpu = where[i]
            which = NAMES[int(result.which[i])]
            self._add(gpu.id, _Best(int(result.reached[i]), float(result.miss[i]), which, case, float(result.floor[i])))

    def grouped(self, carrying: set[str]) -> tuple[Failure, ...]:
        """The GPUs that nothing runs on, by reason, the commonest first."""
        groups: dict[str, list[tuple[str, _Best]]] = {}
        for gpu, best in self._best.items():
            if gpu not in carrying:
                groups.setdefault(self._reason(best), []).append((gpu, best))
        found = []
        for reason, members in groups.items():
            gpu, best = min(members, key=lambda pair: pair[1].miss)
            found.append(Failure(reason, tuple(name for name, _ in members), self._nearest(gpu, best)))
        return tuple(sorted(found, key=lambda failure: -len(failure.gpus)))

    def _reason(self, best: _Best) -> str:
        if best.reached == TARGETS:
            return f"{_TIMES[best.why]} over the target" if best.miss > 1 else "the targets do not hold under load"
        return _WORDS.get(best.reached, best.why)

    def _nearest(self, gpu: str, best: _Best) -> Nearest | None:
        if best.case is None or best.reached in (REFUSED, NO_FIGURES):
            return None
        if best.reached in (WEIGHTS, CACHE):
            text = f"{best.miss:.3g} x the memory of a GPU"
        elif best.reached == LIMIT:
            text = f"{round(best.miss * (self.ask.max_gpus or 0)):,} GPUs"
        elif best.reached == COPIES:
            text = f"{best.miss * MOST_COPIES:,.0f} copies"
        else:
            target = {"ttft": self.ask.ttft, "tpot": self.ask.tpot, "concurrency": self.ask.limits.request}[best.why]
            took, asked = _apart(best.seconds, target or 0.0)
            text = f"{took} for a request that is alone, {asked} asked"
        case = best.case
        return Nearest(
            gpu, case.engine, layout_text(case), case.weights, case.cache, best.miss, f"{text}, {case.weights} weights"
        )

    def all_refused(self) -> KvplanError | None:
        """Why nothing was legal, with the hint of whoever refused what is nearest; None where something was.

        Devices that the engines do not run on say nothing of what was typed: the others speak first.
        """
        refused = [best for best in self._best.values() if best.reached == REFUSED]
        if not refused or len(refused) < len(self._best):
            return None
        return min(refused, key=lambda best: (best.case is None, best.miss)).error

    def verdict(self) -> str:
        """Why nothing carries the workload, in one sentence."""
        best = max(b.reached for b in self._best.values())
        gpu, nearest = min(((g, b) for g, b in self._best.items() if b.reached == best), key=lambda pair: pair[1].miss)
        if best == TARGETS:
            return self._targets(gpu, nearest)
        near = self._nearest(gpu, nearest)
        said = f"; nearest: {gpu}, {near.layout}: {near.text}" if near else ""
        return f"nothing carries it: {self._reason(nearest)}{said}"

    def _targets(self, gpu: str, nearest: _Best) -> str:
        asked = {"ttft": self.ask.ttft, "tpot": self.ask.tpot}
        for name, target in asked.items():
            floor, where = self._floors.get(name, (0.0, ""))
            if target is not None and floor > target:
                return (
                    f"--{name} {seconds(target)} is below what any of them reaches with a single request: the best is "
                    f"{seconds(floor)} ({where})"
                )
        if all(target is not None for target in asked.values()) and nearest.miss > 1 and nearest.why != "concurrency":
            best = "; ".join(f"--{name} alone is met by {self._floors[name][1]}" for name in asked)
            return f"--ttft and --tpot contradict each other here: nothing meets both ({best})"
        if nearest.why == "concurrency":
            allowed = seconds(self.ask.limits.request or 0.0)
            return (
                f"--concurrency and --request-rate contradict each other: together they allow {allowed} a request "
                f"(Little's law), and the fastest takes {seconds(nearest.seconds)} ({gpu})"
            )
        return "nothing carries it: single requests meet the targets, no load does"


def text_of(case: Case) -> str:
    """A case in a few words."""
    formats = [
        f"{case.weights} weights" if case.weights != "auto" else "",
        f"{case.cache} cache" if case.cache != "auto" else "",
    ]
    return ", ".join(filter(None, (case.engine, layout_text(case), *formats)))


def layout_text(case: Case) -> str:
    """``tp 4, pp 2``; ``1 GPU``."""
    layout: Any = case.layout
    names = [f"{name} {getattr(layout, name)}" for name in ("tp", "pp", "dp", "dcp") if getattr(layout, name) > 1]
    return ", ".join([*names, *(["experts dealt"] if layout.expert_parallel else [])]) or "1 GPU"


def _apart(value: float, limit: float) -> tuple[str, str]:
    """Both as text, with more digits where three would make one of them."""
    for digits in range(3, 9):
        texts = seconds(value, digits), seconds(limit, digits)
        if texts[0] != texts[1] or value == limit:
            break
    return texts
