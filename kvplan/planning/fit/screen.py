"""Candidates on many GPUs at once: which start, and with how many requests.

Bytes of weights and cache do not depend on the GPU, and what the engine spends beside them depends on little of it
(`Cases.keys`): both are worked out once for devices that have these in common, by the functions that plan a
single one. What is left for the cache is then an array, one entry a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from kvplan.engines import get_engine
from kvplan.errors import InputError, KvplanError, printable
from kvplan.planning.evaluate import weights_term
from kvplan.planning.fit.candidates import has_experts
from kvplan.planning.fit.cases import Case, Cases, Structure, settings_key
from kvplan.planning.fit.stack import RatesOf, taken
from kvplan.planning.settings import COMMON
from kvplan.planning.speed import decode
from kvplan.planning.speed.constants import BRIDGED
from kvplan.planning.speed.figures import Setup, chunk_tokens
from kvplan.planning.speed.profile import Lengths, Profile, profile
from kvplan.planning.speed.speculation import speculated
from kvplan.planning.speed.work import stage_work
from kvplan.planning.workload import slots_of

if TYPE_CHECKING:
    from kvplan.engines.base import Engine, Settings, Stage
    from kvplan.planning.calibration import Calibration
    from kvplan.planning.fit.ask import Ask
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

REFUSED, NO_FIGURES, WEIGHTS, CACHE, TARGETS, COPIES, LIMIT, CARRIES = range(8)
"""How far a GPU comes."""


class Failed(NamedTuple):
    """A case that does not start on some GPUs."""

    case: Case
    gpus: list[GpuSpec]
    reached: Any
    """`REFUSED` to `CACHE`, one entry a GPU (or one for all)."""
    miss: Any
    """Bytes needed over bytes there."""
    why: str = ""
    error: KvplanError | None = None
    """The refusal, with its hint."""


class Started(NamedTuple):
    """A case that starts on some GPUs."""

    case: Case
    gpus: list[GpuSpec]
    slots: Any
    """Requests that one replica runs at once, one entry a GPU."""
    profile: Profile


class _Memory(NamedTuple):
    """Bytes on GPUs, one entry each."""

    kv: list[Any]
    """Left for the cache, stage by stage."""
    heaviest: Any
    """Weights of the heaviest rank."""
    budgets: Any
    needed: Any
    """Weights and all that is spent beside them, of the rank that needs most."""


class _Group(NamedTuple):
    """Devices that are planned alike but for their bytes and rates: their rows in `Screen.gpus`."""

    rows: Any
    settings: Settings


class Screen:
    """A model under one engine on some GPUs.

    Args:
        name: of the engine, with its version as asked for.
        measured: GPU id -> measured rates (`measured_of`).
    """

    def __init__(
        self, model: ModelSpec, name: str, gpus: Sequence[GpuSpec], ask: Ask, measured: Mapping[str, Calibration]
    ) -> None:
        self.model, self.name, self.ask = model, name, ask
        self.gpus = list(gpus)
        self.engine: Engine = get_engine(name)
        known = COMMON | self.engine.settings
        self.given = {"max_model_len": ask.longest} | {k: v for k, v in ask.settings.items() if k in known}
        self.given |= {"prompt_tokens": ask.lengths.prompt, "output_tokens": ask.lengths.output}
        self.measured = measured
        self.rates = RatesOf(self.engine, self.gpus, measured)
        self.body = "routed_experts" if has_experts(model) else "dense_ffn"
        self.drafts = False
        """Whether speculative decoding runs; an engine that was not told of it decodes plainly beside others."""
        self.cases = Cases(model, name, self.engine, self.gpus, self.given)
        self.latent = any(mixer.kind == "mla" for _, mixer in model.mixers())
        self._has_states = any(mixer.states() for _, mixer in model.mixers())
        self._bytes = numpy.array([gpu.device_bytes for gpu in gpus], numpy.int64)

    def run(self, case: Case, rows: Any) -> Iterator[Failed | Started]:
        """The case on the GPUs `rows`, group by group."""
        families: dict[Any, list[_Group]] = {}
        rows, refused = self._refused(case, rows)
        yield from refused
        if not rows:
            return
        rows, lost = self._too_heavy(case, rows)
        if lost is not None:
            yield lost
        for members in self._groups(case, rows):
            gpus = [self.gpus[i] for i in members]
            settings = self.cases.settings(case, gpus[0], self.cases.keys[members[0]])
            if isinstance(settings, KvplanError):
                yield Failed(case, gpus, REFUSED, 1.0, str(settings), settings)
                continue
            structure = self.cases.structure(case, settings)
            assert not isinstance(structure, KvplanError)  # or its settings were refused for it
            formats = self.engine.kv_formats(structure.model, settings)
            families.setdefault((formats, settings.enforce_eager), []).append(_Group(members, settings))
        for groups in families.values():
            found = self.cases.structure(case, groups[0].settings)
            assert not isinstance(found, KvplanError)  # or there were no groups
            yield from self._family(case, found, groups)

    def _refused(self, case: Case, rows: Any) -> tuple[list[int], list[Failed]]:
        """(devices that are looked at one by one, those that are refused alike): one of each kind is asked."""
        kinds: dict[Any, list[int]] = {}
        for row in rows:
            kinds.setdefault(self.cases.refused_alike.get(row), []).append(row)
        rest, failed = kinds.pop(None, []), []
        for kind, members in kinds.items():
            found = self.cases.settings(case, self.gpus[members[0]], kind)
            if isinstance(found, KvplanError):
                failed.append(Failed(case, [self.gpus[row] for row in members], REFUSED, 1.0, str(found), found))
            else:
                rest += members
        return sorted(rest), failed

    def _too_heavy(self, case: Case, rows: Any) -> tuple[Any, Failed | None]:
        """(devices that may hold a rank's weights, those that cannot): most are told by their size alone."""
        settings = self.cases.settings(case, self.gpus[rows[0]], self.cases.keys[rows[0]])
        structure = settings if isinstance(settings, KvplanError) else self.cases.structure(case, settings)
        if isinstance(structure, KvplanError):
            return rows, None
        heaviest = max(stage.weights_bytes for stage in structure.stages)
        light = self._bytes[rows] >= heaviest
        if light.all():
            return rows, None
        lost = numpy.asarray(rows)[~light]
        failed = Failed(case, [self.gpus[row] for row in lost], WEIGHTS, heaviest / self._bytes[lost])
        return numpy.asarray(rows)[light].tolist(), failed

    def _groups(self, case: Case, rows: Any) -> list[list[int]]:
        found: dict[Any, list[int]] = {}
        for row in rows:
            key = self.cases.keys[row]
            if isinstance(key, tuple):
                fast, pairs = key[0]  # which matter where something goes over a link, and past a pair
                key = (fast and case.layout.world > 1 and not (pairs and case.layout.tp > BRIDGED), *key[1:])
            found.setdefault(key, []).append(row)
        return list(found.values())

    def _family(self, case: Case, structure: Structure, groups: list[_Group]) -> Iterator[Failed | Started]:
        """Groups whose cache is stored alike."""
        settings = groups[0].settings
        formats = self.engine.kv_formats(structure.model, settings)
        rates, known = self.rates.stacked(structure.weights.of(self.body), formats.k, settings)
        rows: list[int] = []
        slots: list[Any] = []
        chunks: list[int] = []
        alike: dict[Any, list[tuple[Settings, list[int], _Memory]]] = {}
        for group in groups:
            seeing = [row for row in group.rows if known[row]]
            blind = [self.gpus[row] for row in group.rows if not known[row]]
            if blind:
                yield Failed(case, blind, NO_FIGURES, 1.0, "no figure for its FLOPs or its bandwidth")
            if not seeing:
                continue
            memory = self._memory(structure, group.settings, seeing)
            alike.setdefault(settings_key(group.settings), []).append((group.settings, seeing, memory))
        for parts in alike.values():
            chosen, seen = parts[0][0], [row for _, some, _ in parts for row in some]
            kv, heaviest, budgets, needed = (
                [numpy.concatenate(each) for each in zip(*(m.kv for _, _, m in parts), strict=True)],
                *(numpy.concatenate([m[i] for _, _, m in parts]) for i in (1, 2, 3)),
            )
            count = numpy.zeros(len(seen), numpy.int64)
            some = numpy.flatnonzero(numpy.minimum.reduce(kv) > 0)
            if len(some):
                count[some] = self._slots(structure, chosen, [have[some] for have in kv])
            lost, kept = numpy.flatnonzero(count < 1), numpy.flatnonzero(count >= 1)
            if len(lost):
                start = max(self._starts_at(structure, chosen))
                heavy = heaviest[lost] > budgets[lost]
                miss = numpy.where(heavy, heaviest[lost], needed[lost] + start) / budgets[lost]
                yield Failed(case, [self.gpus[seen[i]] for i in lost], numpy.where(heavy, WEIGHTS, CACHE), miss)
            rows += [seen[i] for i in kept]
            slots.append(count[kept])
            chunks += [chunk_tokens(chosen)] * len(kept)
        if rows and rates is not None:
            works = tuple(
                stage_work(structure.model, stage, roles, formats, settings)
                for stage, roles in zip(structure.stages, structure.roles, strict=True)
            )
            layout = decode.Layout(case.layout.tp, case.layout.pp, case.layout.dp, case.layout.expert_parallel)
            chunk: Any = numpy.array(chunks, dtype=float)
            made = profile(Setup(works, taken(rates, rows), layout, chunk), self._lengths(structure, settings))
            yield Started(case, [self.gpus[row] for row in rows], numpy.concatenate(slots), made)

    def _lengths(self, structure: Structure, settings: Settings) -> Lengths:
        """The workload with its common prefix as the engine finds it, and its drafts."""
        shared = self.engine.shared_prefix_tokens(structure.model, settings) if settings.shared_prefix_tokens else 0
        found = self.ask.lengths._replace(shared=int(shared))
        if self.engine.speculation(settings) is None:
            return found
        self.drafts = True
        return speculated(found, structure.model, self.engine, settings)

    def _memory(self, structure: Structure, settings: Settings, rows: list[int]) -> _Memory:
        """What is left for the cache on each GPU."""
        engine, stages, gpu = self.engine, structure.stages, self.gpus[rows[0]]
        spent: dict[Any, tuple[int, int]] = {}
        keys = [_stage_key(stage) for stage in stages]
        for key, stage in zip(keys, stages, strict=True):
            if key not in spent or not engine.alike_by_generation:
                beside = sum(t.bytes for t in engine.terms(stage, structure.model, settings, gpu))
                spent[key] = weights_term(stage.weights_bytes, structure.weights).bytes, beside
        held = self._bytes[rows]
        budgets = numpy.array([int(engine.budget_bytes(size, settings)) for size in held.tolist()], numpy.int64)
        given = settings.kv_cache_memory_bytes
        if given is None:
            kv = [budgets - sum(spent[key]) for key in keys]
        else:
            kv = [numpy.where(held - sum(spent[key]) >= given, given, 0) for key in keys]
        heaviest, most = max(own for own, _ in spent.values()), max(map(sum, spent.values()))
        every = numpy.ones(len(rows))
        return _Memory(kv, heaviest * every, budgets * 1.0, most * every)

    def _starts_at(self, structure: Structure, settings: Settings) -> list[int]:
        """Bytes of cache with which each stage starts; equal stages are worked out once."""
        found: dict[Any, int] = {}
        keys = [_stage_key(stage) for stage in structure.stages]
        for key, stage in zip(keys, structure.stages, strict=True):
            if key not in found or not self.engine.alike_by_generation:
                found[key] = int(self.engine.start_bytes(stage, settings))
        return [found[key] for key in keys]

    def _starts(self, structure: Structure, settings: Settings, kv: tuple[int, ...]) -> bool:
        if not self.engine.lays_out_pool:
            pairs = zip(structure.stages, kv, strict=True)
            return all(self.engine.start_bytes(stage, settings) <= have for stage, have in pairs)
        pool = self.engine.pool(structure.stages, settings, kv)
        return not pool.refusal and bool(pool.starts)

    def _slots(self, structure: Structure, settings: Settings, kv: list[Any]) -> Any:
        """Requests that one replica runs at once; 0 where it does not start."""
        engine, stages = self.engine, structure.stages
        if "kv_cache_memory_bytes" not in engine.array_settings or settings.shared_prefix_tokens:
            found = []
            for row in zip(*(have.tolist() for have in kv), strict=True):
                runs = self._starts(structure, settings, row)
                found.append(slots_of(engine, stages, settings, row) if runs else 0)
            return numpy.array(found, numpy.int64)
        starts: Any = numpy.ones(len(kv[0]), bool)
        for least, have in zip(self._starts_at(structure, settings), kv, strict=True):
            starts &= have >= least
        if self._has_states and starts.any():  # these can limit the sequences of a start
            floor = tuple(int(have[starts].min()) for have in kv)
            if not self._starts(structure, settings, floor):  # what starts with the least starts with more
                pool = engine.pool(stages, settings, tuple(kv))
                starts = starts & pool.starts if not pool.refusal else starts & False
        count = engine.requests_at(stages, settings, tuple(kv), settings.request_tokens)
        return numpy.where(starts, numpy.minimum(count, settings.max_num_seqs or 1 << 20), 0)


def measured_of(ask: Ask, gpus: Sequence[GpuSpec]) -> dict[str, Calibration]:
    """GPU id -> its measured rates, for the one of all that are tried that the calibration is of.

    Raises:
        InputError: the file cannot be read, does not say of which GPU it is, or is of another one.
    """
    path = ask.settings.get("calibration")
    if path is None:
        return {}
    from kvplan.planning.calibration import FLAG, measured_on

    found, name = measured_on(path, [gpu.id for gpu in gpus])
    if name is None:
        raise InputError(
            f"{printable(path)} was measured on {printable(found.gpu or found.device)}, which is not among the GPUs "
            "that are tried", where=FLAG,
            hint="a CPU is none of them: leave it out" if found.kind == "cpu" else "add it to --gpu, or leave it out",
        )  # fmt: skip
    return {name: found}


def _stage_key(stage: Stage) -> tuple[Any, ...]:
    """What stages of one model must have in common to need the same bytes."""
    blocks = stage.spec.layer_counts
    where = stage.first_layer if len(blocks) > 1 else 0  # which layers share a page is a matter of their order
    return stage.weights_bytes, stage.first, stage.last, stage.spec.num_layers, tuple(blocks), where
