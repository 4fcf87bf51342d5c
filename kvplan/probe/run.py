"""A whole run: the device, the plan, the sections one by one within their limits, and the receipt.

A section that runs out of memory or fails is a row that says so; the others go on. What was measured before an
interruption is given back with it.
"""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan._version import __version__
from kvplan.errors import InputError
from kvplan.probe.allocator import expandable_segments
from kvplan.probe.busy import refuse_busy
from kvplan.probe.calibrate import WAITED, calibration_data, drift_rows, note_left_out
from kvplan.probe.device import ProbeDevice
from kvplan.probe.facts import device_payload
from kvplan.probe.layout import plan_layout
from kvplan.probe.memory import out_of_memory
from kvplan.probe.receipt import SCHEMA, Counts, Row, counts, row
from kvplan.probe.session import Limits, Session
from kvplan.probe.timing import cache_shortfall, core_seconds, quickest_threads, waited_share
from kvplan.units import GIB, MIB, human_bytes

if TYPE_CHECKING:
    from kvplan.planning.calibration import Calibration
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

STEPS: tuple[tuple[str, str, str], ...] = (
    ("device", "kvplan.probe.facts", "measure"),
    ("memory", "kvplan.probe.memory", "measure"),
    ("blocks", "kvplan.probe.blocks", "measure"),
    ("correctness", "kvplan.probe.correctness", "measure"),
    ("bandwidth", "kvplan.probe.bandwidth", "measure"),
    ("decode", "kvplan.probe.ram", "measure"),
    ("attention", "kvplan.probe.attention", "measure"),
    ("decode", "kvplan.probe.step", "measure"),
    ("prefill", "kvplan.probe.prefill", "measure"),
)
"""(section, module, function), in the order in which they run: later ones use the ceilings of earlier ones."""
LONG = {"kvplan.probe.ram": "decode in RAM", "kvplan.probe.step": "decode step", "kvplan.probe.prefill": "prompt"}
"""Modules whose preparation alone takes seconds: they are not begun once the time is up."""
FILL = ("fill", "kvplan.probe.fill", "measure")
DISTRIBUTED = ("distributed", "kvplan.probe.distributed", "measure")

FULL_SECONDS, QUICK_SECONDS = 260.0, 42.0
"""After which no new shape is begun: a full run stays under five minutes, a quick one under one."""
SLOW_SHARES = {"kvplan.probe.attention": 0.3, "kvplan.probe.step": 0.8}
"""Of the seconds left, on a CPU: its passes are long, and others come after them."""
CPU_BYTES = 2 * GIB
FREE_SHARE = 0.9
"""Of the free memory of a GPU that is used at most unless told otherwise."""
LEAST_BYTES = 64 * MIB


class Request(NamedTuple):
    """What the user asked for."""

    model: ModelSpec
    engine: str
    settings: dict[str, Any]
    device: ProbeDevice
    max_bytes: int | None = None
    quick: bool = False
    fill: bool = False
    busy: bool = False
    """Measure although other processes hold memory of the card."""
    sections: tuple[str, ...] | None = None
    """Only these."""
    debug: bool = False
    """A section that fails ends the run with its error, instead of being a row."""


class Receipt(NamedTuple):
    """Everything that was found out."""

    device: dict[str, Any]
    software: dict[str, Any]
    inputs: dict[str, Any]
    rows: tuple[Row, ...]
    calibration: dict[str, Any] | None
    exhibits: dict[str, Any]
    counts: Counts
    seconds: float
    complete: bool
    """Whether every section ran to its end, over all of its shapes."""
    warnings: tuple[str, ...]

    @property
    def agrees(self) -> bool | None:
        """Whether no judged row is off; None: no row was judged."""
        return self.counts.failed == 0 if self.counts.passed + self.counts.failed else None

    def to_dict(self) -> dict[str, Any]:
        """The object of ``validate --json``."""
        judged = self.counts.passed + self.counts.failed
        reason = f"{self.counts.passed} of {judged} predictions hold" if judged else "no prediction was judged"
        if not self.complete:
            reason += "; not all was measured"
        return {
            "schema": SCHEMA,
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "device": self.device,
            "software": self.software,
            "inputs": self.inputs,
            "rows": [r.to_dict() for r in self.rows],
            "calibration": self.calibration,
            "exhibits": self.exhibits,
            "seconds": round(self.seconds, 3),
            "verdict": {
                "agrees": self.agrees, "reason": reason, "passed": self.counts.passed, "failed": self.counts.failed,
                "informative": self.counts.informative, "complete": self.complete,
            },
            "warnings": list(self.warnings),
        }  # fmt: skip


Progress = Callable[[str, float], None]
"""Called with what is being done and the share of the sections that are done."""


def planner_gpu(device: ProbeDevice) -> GpuSpec:
    """The device as the planner takes it: the catalog's entry with the bytes that were read, or a new one."""
    from kvplan.spec.gpu import GpuSpec

    if device.gpu is not None:
        return replace(device.gpu, torch_total_bytes=device.total_bytes, torch_total_source="this machine")
    rate = device.theoretical_bandwidth
    vendor = {"cuda": "nvidia", "rocm": "amd"}.get(device.kind, "custom")  # a CPU holds what any GPU would
    return GpuSpec(
        id=device.kind if device.kind == "cpu" else "this-machine", name=device.name, vendor=vendor,
        architecture="unknown", compute_capability=device.compute_capability,
        datasheet_gb=device.total_bytes / 1e9, torch_total_bytes=device.total_bytes,
        torch_total_source="this machine", bandwidth_bytes_per_second=int(rate) if rate else None,
        confidence="read on this machine",
    )  # fmt: skip


def open_session(request: Request, say: Callable[[str], None]) -> Session:
    """The plan worked through, and the limits.

    Raises:
        KvplanError: the model, the engine or the settings cannot be planned, or the limit is too small.
    """
    from kvplan.engines import get_engine
    from kvplan.planning.drafts import served_model
    from kvplan.planning.evaluate import evaluate, fit_length
    from kvplan.planning.settings import FIT, resolve

    device, gpu = request.device, planner_gpu(request.device)
    engine = get_engine(request.engine)
    settings, _ = resolve(request.model, gpu, engine, request.settings)
    model = served_model(request.model, engine, settings)
    if settings.max_model_len == FIT:
        settings = fit_length(model, gpu, engine, settings)
    outcome = evaluate(model, gpu, engine, settings)
    budget = QUICK_SECONDS if request.quick else FULL_SECONDS
    limits = Limits(
        allowed_bytes(device, request.max_bytes), request.quick, time.monotonic() + budget, device.kind == "cpu"
    )
    session = Session(
        device=device, model=model, layout=plan_layout(engine, settings, outcome, model), gpu=gpu, engine=engine,
        settings=settings, outcome=outcome, limits=limits, say=say,
    )  # fmt: skip
    if (stages := settings.pipeline_parallel_size) > 1:
        session.lack(f"pipeline: of {stages} stages the first is measured")
    return session


def allowed_bytes(device: ProbeDevice, asked: int | None) -> int:
    """What a section may hold at once.

    Raises:
        InputError: more than is free, or too little to measure anything.
    """
    share = int(FREE_SHARE * device.free_bytes)
    most = asked if asked is not None else share if device.kind != "cpu" else min(CPU_BYTES, share)
    if most > device.free_bytes:
        raise InputError(
            f"{human_bytes(most)} is more than the {human_bytes(device.free_bytes)} that are free",
            where="--max-memory", hint=f"type at most {device.free_bytes // MIB}MiB, or leave it out",
        )  # fmt: skip
    if most < LEAST_BYTES:
        if asked is None:
            raise InputError(
                f"{human_bytes(device.free_bytes)} are free on {device.name}, too little to measure anything",
                where="--device", hint=f"free some: {human_bytes(LEAST_BYTES)} are needed at least",
            )  # fmt: skip
        raise InputError(
            f"{human_bytes(most)} is too little to measure anything", where="--max-memory", hint="at least 64MiB"
        )
    return most


def validate(
    request: Request, *, progress: Progress | None = None, before: Calibration | None = None,
    stopped: Callable[[Receipt], None] | None = None,
) -> Receipt:  # fmt: skip
    """Run the sections, and put the receipt together.

    Args:
        before: an earlier calibration, which this run is held against.
        stopped: gets what was measured so far when the run is interrupted, before the interruption goes on.

    Raises:
        KvplanError: nothing could be measured.
        KeyboardInterrupt: after everything was freed.
    """
    cache_shortfall()  # of what was timed outside a run
    with request.device.current(), quickest_threads(request.device) as threads:
        return _validate(request, progress, before, stopped, threads)


def _validate(
    request: Request, progress: Progress | None, before: Calibration | None,
    stopped: Callable[[Receipt], None] | None, threads: int | None,
) -> Receipt:  # fmt: skip
    from kvplan.probe.kernels import between

    start = time.monotonic()
    steps = _steps(request, drift=before is not None)
    done = 0

    def say(text: str) -> None:
        if progress is not None:
            progress(text, done / len(steps))

    if not request.busy:
        refuse_busy(request.device)
    session = open_session(request, say)
    limits = session.limits
    rows: list[Row] = []
    warnings: list[str] = []
    complete, began = True, core_seconds()
    try:
        for section, module, function in steps:
            say(section)
            if module in LONG and limits.seconds_left <= 0:
                note = "not begun: the time was up"
                rows.append(row(section, LONG[module], predicted=None, measured=None, unit="s", note=note))
                session.lack(f"{section}, {LONG[module]}: {note}")
                done += 1
                continue
            if session.limits.slow:
                share = SLOW_SHARES.get(module, 1.0) * limits.seconds_left
                session.limits = limits._replace(deadline=time.monotonic() + share)
            found, ended = _section(session, section, module, function, debug=request.debug)
            rows += found
            session.limits = limits
            if (short := cache_shortfall()) is not None:
                session.lack(f"{section}: {short}: --max-memory is small")
            if section == "bandwidth":
                _as_datasheet(session)
            complete &= ended
            done += 1
            _release(session)
    except KeyboardInterrupt:
        _release(session)
        if stopped is not None:
            stopped(_receipt(session, request, rows, start, False, ("interrupted",), threads))
        raise
    waited = waited_share(began) if request.device.kind == "cpu" else 0.0
    if before is not None:
        rows += drift_rows(before, session, {step[0] for step in steps}, waited)
    note_left_out(session)
    complete &= not session.lacks
    warnings += [*session.lacks, *between.unfused()]
    if waited > WAITED:
        warnings.append(f"for {waited:.0%} of its time this run waited for a core that others had: times are longer")
    if any(r.wide for r in rows):
        warnings.append("the spread of some rows is wide: something else was at work, or clocks changed")
    return _receipt(session, request, rows, start, complete, tuple(warnings), threads)


def _as_datasheet(session: Session) -> None:
    """A device whose bandwidth nothing states is planned with what was measured."""
    read = session.figures.read_bytes_per_second
    if session.gpu.bandwidth_bytes_per_second is None and read is not None:
        session.gpu = replace(session.gpu, bandwidth_bytes_per_second=int(read.value))


def _steps(request: Request, *, drift: bool) -> list[tuple[str, str, str]]:
    if request.device.is_cuda and request.fill:
        steps = [*STEPS[:2], FILL, *STEPS[2:]]
    elif request.fill:
        raise InputError(f"fills a GPU, and the device is a {request.device.kind}", where="--fill", hint="leave it out")
    else:
        steps = list(STEPS)
    if world_size() > 1:
        steps = [STEPS[0], DISTRIBUTED]
    if request.sections is not None:
        _refuse_absent(request.sections, {s[0] for s in steps} | ({"drift"} if drift else set()), request.device)
        steps = [s for s in steps if s[0] in request.sections]
    if not steps:
        raise InputError("drift is worked out from what other sections measure", where="--only",
                         hint="add bandwidth to it, or leave --only out")  # fmt: skip
    return steps


def _refuse_absent(asked: tuple[str, ...], there: set[str], device: ProbeDevice) -> None:
    """Raise where sections are asked for that this run does not have."""
    for name in asked:
        if name in there:
            continue
        if name == "drift":
            hint = "add --check FILE, a calibration that this run is held against"
        elif name == "distributed":
            hint = "start it under torchrun: torchrun --nproc-per-node 2 -m kvplan validate ..."
        elif name == "fill":
            hint = "add --fill: it takes all free memory of the GPU for moments"
            if not device.is_cuda:
                hint = f"it fills a GPU, and the device is a {device.kind}: leave it out"
        else:
            hint = "under torchrun there are device and distributed; run the others without it"
        raise InputError(f"nothing to measure for {name} in this run", where="--only", hint=hint)


def world_size() -> int:
    """Processes that ``torchrun`` started; 1 without it."""
    text = os.environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdigit() and "RANK" in os.environ else 1


def _section(session: Session, section: str, module: str, function: str, *, debug: bool) -> tuple[list[Row], bool]:
    """(rows of one section, whether it ran to its end).

    Whatever goes wrong in one section (a kernel that this card or this torch cannot run) leaves the others' rows.
    """
    try:
        return getattr(import_module(module), function)(session), True
    except InputError:
        raise
    except Exception as error:
        _release(session)
        if out_of_memory(error):
            limit = human_bytes(session.limits.max_bytes)
            note = f"out of memory within {limit}; free some, or lower --max-memory"
            return [row(section, "out of memory", predicted=None, measured=None, unit="bytes", note=note)], False
        if debug:
            raise
        said = next(iter(str(error).splitlines()), "")[:200]
        note = f"{type(error).__name__}{f': {said}' if said else ''}; --debug shows where"
        if section == "distributed" and ("by peer" in said or "timed out" in said.lower()):
            note = "another rank stopped or went silent; it says why on stderr, or its launcher does"
        name = f"{LONG[module]} failed" if module in LONG else f"{section} failed"
        failed = row(section, name, predicted=None, measured=None, unit="count", note=note)
        return [failed._replace(passed=False)], False


def _release(session: Session) -> None:
    """Give memory back; a driver that has failed says so again here, and has nothing to give."""
    with suppress(Exception):
        session.device.release()


def _receipt(
    session: Session, request: Request, rows: list[Row], start: float, complete: bool, warnings: tuple[str, ...],
    threads: int | None,
) -> Receipt:  # fmt: skip
    device = session.device
    software = {
        "kvplan": __version__, "python": platform.python_version(), "torch": device.torch_version,
        "triton": device.triton_version, "runtime": device.runtime_version, "driver": device.driver,
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "expandable_segments": expandable_segments(), "threads": threads,
    }  # fmt: skip
    settings = session.settings
    inputs = {
        "model": session.model.id, "engine": f"{settings.engine} {settings.engine_version}",
        "tensor_parallel_size": settings.tensor_parallel_size, "block_size": session.layout.block_size,
        "kv_cache_format": session.layout.formats.k.name, "quick": request.quick, "fill": request.fill,
        "max_memory_bytes": session.limits.max_bytes, "world_size": world_size(),
    }  # fmt: skip
    return Receipt(
        device_payload(device), software, inputs, tuple(rows), calibration_data(session), session.exhibits,
        counts(rows), time.monotonic() - start, complete, warnings,
    )  # fmt: skip
