"""The smallest change to a deployment with which a broken rule holds, tried and not guessed.

One setting is changed at a time. Of a setting that counts, the value closest to the present one that passes is found
by bisection; among settings the one whose ratio of new to old is smallest wins. A smaller cache format counts as a
halving, more GPUs as that and what they multiply, other weights and fewer requests (which give up on the workload)
come last. A change that breaks another rule of the deployment is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, log2
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cache.sharding import legal_sizes
from kvplan.check.figures import LIGHT, Subject, Worked
from kvplan.engines.command_line import grammars
from kvplan.errors import KvplanError
from kvplan.sources.commands import command as commands

if TYPE_CHECKING:
    from kvplan.check.lookup import Case

MAX_TP = 8
"""GPUs of one host: what several nodes do is not modelled."""
LENGTHS = ("num_ctx", "ctx_size", "max_model_len")
SEQUENCES = ("max_num_seqs", "max_running_requests")
SHARES = ("gpu_memory_utilization", "mem_fraction_static", "free_gpu_memory_fraction")
_FORMAT, _GPUS, _WEIGHTS, _REQUESTS = 1.0, 1.5, 3.0, 4.0
"""What a change of kind costs, in halvings."""
_KILO = 1000


class Fix(NamedTuple):
    """A change that passes."""

    setting: str
    value: Any
    text: str
    """As it is typed."""


class _Dial(NamedTuple):
    """A setting that counts."""

    setting: str
    now: int
    low: int
    high: int
    scale: int = 1
    """What the value is divided by."""
    cost: float = 0.0
    floor: int = 0
    """No value below it counts, whichever way it is turned."""


class Search:
    """Looks for the change of one case.

    Args:
        passes: whether the broken rule holds for a subject that is worked out.
        keeps: whether every rule of the deployment that holds now still does, under all of its workloads, with
            these settings changed.
        least_tokens: what no length may fall below.
    """

    def __init__(
        self,
        case: Case,
        worked: Worked,
        passes: Callable[[Worked], bool],
        keeps: Callable[[dict[str, Any]], bool],
        least_tokens: int,
    ) -> None:
        self.case, self.worked, self.passes, self.keeps = case, worked, passes, keeps
        self.least_tokens = least_tokens
        self.tried: dict[tuple[tuple[str, str], ...], bool] = {}
        self.best: tuple[float, dict[str, Any]] | None = None

    def run(self) -> Fix | None:
        """The cheapest change; None where nothing alone is enough."""
        for dial in self.dials():
            self.turn(dial)
        for cost, changes in self.switches():
            if (self.best is None or cost < self.best[0]) and self.tries(changes) and self.keeps(changes):
                self.best = cost, changes
        for dial in self.requests():
            self.turn(dial)
        if self.best is None:
            return None
        setting, value = next(iter(self.best[1].items()))
        text = typed(self.case, self.worked, setting, value)
        if setting == "tensor_parallel_size" and self._counts_gpus():
            text += f" with {self.best[1]['gpus']:,} GPUs"
        return Fix(setting, value, text)

    def _counts_gpus(self) -> bool:
        """Whether the deployment says how many GPUs it has, which then has to change too."""
        given = self.case.subject.given
        return given.get("gpus") is not None or "gpus" in self.case.command

    def tries(self, changes: dict[str, Any]) -> bool:
        """Whether the rule holds with these settings changed."""
        key = tuple((name, repr(value)) for name, value in changes.items())
        if key not in self.tried:
            light = set(changes) <= LIGHT
            try:
                changed = changed_subject(self.case.subject, changes)
                self.tried[key] = self.passes(Worked(changed, self.worked if light else None))
            except KvplanError:
                self.tried[key] = False
        return self.tried[key]

    def turn(self, dial: _Dial) -> None:
        """The value of a dial closest to its present one that passes, if it is cheaper than the best so far."""
        for end in (dial.low, dial.high):
            limit = self.within(dial, end)
            if limit == dial.now or limit < dial.floor or not self.tries(self.set(dial, limit)):
                continue
            bad, good = dial.now, limit
            while abs(good - bad) > 1:
                middle = (good + bad) // 2
                if middle >= dial.floor and self.tries(self.set(dial, middle)):
                    good = middle
                else:
                    bad = middle
            changes = self.set(dial, good)
            cost = dial.cost + abs(log2(good / dial.now))
            if (self.best is None or cost < self.best[0]) and self.keeps(changes):
                self.best = cost, changes

    def within(self, dial: _Dial, end: int) -> int:
        """`end`, or the furthest value towards it that is still cheaper than the best."""
        if self.best is None:
            return end
        ratio = 2 ** max(0.0, self.best[0] - dial.cost)
        return max(end, ceil(dial.now / ratio)) if end < dial.now else min(end, int(dial.now * ratio))

    @staticmethod
    def set(dial: _Dial, value: int) -> dict[str, Any]:
        return {dial.setting: value / dial.scale if dial.scale > 1 else value}

    def dials(self) -> Iterator[_Dial]:
        """The settings of the engine that count."""
        settings, engine, given = self.worked.settings, self.worked.engine, self.case.subject.given
        own = engine.settings | {"max_model_len"}
        for name in SHARES:
            share = self._now(name)
            if name in own and isinstance(share, float | int) and settings.kv_cache_memory_bytes is None:
                now = round(share * _KILO)
                yield _Dial(name, now, min(now, 50), max(now, round(engine.highest_utilization * _KILO)), _KILO)
        name = next((n for n in LENGTHS if n in given), next(n for n in LENGTHS if n in own))
        now = self._now(name)
        if isinstance(now, int) and now > 0:
            slots = max(1, now // settings.max_model_len)
            longest = (self.worked.model.max_position_embeddings or settings.max_model_len) * slots
            least = self.least_tokens * slots
            yield _Dial(name, now, min(now, least), max(now, longest), floor=least)
        for name in SEQUENCES:
            now = self._now(name)
            if name in own and isinstance(now, int) and now > 0:
                yield _Dial(name, now, 1, max(now, 1 << 14))

    def _now(self, name: str) -> Any:
        """The present value of a setting."""
        settings = self.worked.settings
        found = getattr(settings, name, settings.extra.get(name))
        return found if found is not None or name not in LENGTHS else settings.max_model_len

    def switches(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Changes of kind, with what they cost, mildest first."""
        settings, engine = self.worked.settings, self.worked.engine
        for step, name in enumerate(engine.smaller_kv_formats):
            if name != settings.kv_cache_dtype:
                yield _FORMAT + step, {"kv_cache_dtype": name}
        rest = settings.pipeline_parallel_size * settings.data_parallel_size
        tp = settings.tensor_parallel_size
        if engine.splits_tensors:
            sizes = sorted(legal_sizes(self.worked.model, MAX_TP), key=lambda n: (abs(log2(n / tp)), -n))
            for size in sizes:
                if size != tp:
                    yield _GPUS + abs(log2(size / tp)), {"tensor_parallel_size": size, "gpus": size * rest}
        else:
            for count in range(settings.gpus + 1, min(8, self.worked.model.num_layers) + 1):
                yield _GPUS + log2(count / settings.gpus), {"gpus": count}
        if settings.weights == "auto":
            for step, name in enumerate(engine.smaller_weights):
                yield _WEIGHTS + step, {"weights": name}

    def requests(self) -> Iterator[_Dial]:
        """Fewer requests at once, where the workload fixes them."""
        given = self.case.subject.given
        if self.worked.settings.concurrency > 1 and given.get("request_rate") is None:
            yield _Dial(
                "concurrency", self.worked.settings.concurrency, 1, self.worked.settings.concurrency, 1, _REQUESTS
            )


def changed_subject(subject: Subject, changes: dict[str, Any]) -> Subject:
    """The subject with some settings changed; what says the same in another way gives way."""
    gone = {n for name in changes for group in commands.SAME if name in group for n in group}
    if "tensor_parallel_size" in changes or "gpus" in changes:
        gone |= {"gpus", "tensor_split"} | (
            {"pipeline_parallel_size"} if "tensor_parallel_size" not in changes else set()
        )
    given = {name: value for name, value in subject.given.items() if name not in gone}
    return subject._replace(given={**given, **changes})


def typed(case: Case, worked: Worked, setting: str, value: Any) -> str:
    """A change as the engine's own command line takes it; a workload's in kvplan's flags."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    grammar = next((g for g in grammars() if g.engine == worked.engine.name), None)
    if grammar is not None and case.declared.source != "model":
        words = case.command.get(setting, "")
        if words.startswith("-"):
            return f"{words.split()[0].partition('=')[0]} {text}"
        alias = next(
            (flag for flag, name in grammar.aliases.items() if name == setting and flag.startswith("--")), None
        )
        if alias is not None:
            return f"{alias} {text}"
    if setting == "kv_cache_dtype" and "cache_type_k" in worked.engine.settings:
        return f"--cache-type-k {text} --cache-type-v {text}"
    return f"--{setting.replace('_', '-')} {text}"
