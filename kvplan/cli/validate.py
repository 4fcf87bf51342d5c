"""``kvplan validate MODEL``: the same predictions, measured on this machine."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output, place
from kvplan.cli.app import SETTINGS
from kvplan.cli.progress import CLEAR, put
from kvplan.engines.options import Option
from kvplan.errors import InputError, KvplanError, UnknownNameError, printable

if TYPE_CHECKING:
    from kvplan.planning.calibration import Calibration
    from kvplan.probe.device import ProbeDevice
    from kvplan.probe.run import Receipt
    from kvplan.render.grid import Document

app = typer.Typer(**SETTINGS)

PROBE = (
    Option(
        "device", ("--device",), "text", "NAME", "cuda, cuda:1, rocm, mps or cpu; default: the best there is", "Probe"
    ),
    Option("quick", ("--quick",), "true", "", "fewer shapes and samples: under a minute", "Probe"),
    Option(
        "fill", ("--fill",), "true", "", "fill the GPU to the last block, and one beyond (takes all free memory)",
        "Probe",
    ),
    Option(
        "max_memory", ("--max-memory",), "size", "SIZE", "bytes held at once; default 90 % of free, 2 GiB on a CPU",
        "Probe",
    ),
    Option("busy", ("--busy",), "true", "", "measure although other processes use the GPU", "Probe"),
    Option("only", ("--only",), "text", "SECTION,...", "these sections alone", "Probe"),
    Option("save", ("--save",), "text", "FILE", "write what was measured as a calibration", "Probe"),
    Option("check", ("--check",), "text", "FILE", "exit 1 where this run drifts from that calibration", "Probe"),
)  # fmt: skip
_OTHERS = ("gpu", "gpu_memory", "gpu_bandwidth", "calibration", "from_log")
"""Planning flags that mean nothing here: the device is this machine's."""
_DEBUG = "kvplan.debug"
_NAMES = tuple(option.setting for option in PROBE)


class ValidateVerb(flags.PlanVerb):
    """The planning flags, and those of the probe."""

    flags = (*PROBE, *flags.of_one_engine(flags.PLAN, _OTHERS))

    def invoke(self, ctx: Any) -> Any:
        ctx.meta[_DEBUG] = ctx.params["out_debug"]
        return super().invoke(ctx)


@app.command(cls=ValidateVerb)
def validate(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="catalog id, hub name, folder, file, or a command line")
    ],
) -> int:
    """Allocates real caches on this machine, times decode, and sets each figure beside the predicted one.

    Needs torch and no engine, no weights, no network. Exit status 1 where a prediction is off, 2 where nothing could
    be measured or checked.
    """
    from kvplan.deployment import find_deployment
    from kvplan.probe.device import detect
    from kvplan.probe.run import Request, validate, world_size

    given = flags.read(ctx)
    asked = {name: given.pop(name) for name in _NAMES if name in given}
    sections = _sections(asked.get("only"))
    ranks = world_size()
    for name in ("save", "check"):
        if name in asked:
            _refuse_uncalibrated(f"--{name}", sections, ranks)
    out = output.of(ctx)
    _refuse_files(asked.get("save"), out.file)
    _refuse_engines(given.get("engine"))
    asked["device"] = _local_device(asked.get("device"))
    if ranks > 1:
        given.setdefault("tensor_parallel_size", ranks)
    deployment = find_deployment(model, given)
    device = detect(asked["device"])
    before = _earlier(asked["check"], device) if "check" in asked else None
    request = Request(
        deployment.model, deployment.engine, deployment.settings, device, asked.get("max_memory"),
        asked.get("quick", False), asked.get("fill", False), asked.get("busy", False), sections, ctx.meta[_DEBUG],
    )  # fmt: skip
    leads = _leads()
    with StepBar(quiet=out.quiet or not leads) as bar:
        receipt = validate(
            request, progress=bar.show, before=before,
            stopped=lambda so_far: bar.note(f"interrupted after {len(so_far.rows)} rows; everything is freed"),
        )  # fmt: skip
    if not leads:
        return _follow(receipt)
    _answer(out, receipt, (*deployment.warnings, *receipt.warnings), asked.get("save"))
    return _status(receipt, check="check" in asked)


def _follow(receipt: Receipt) -> int:
    """The exit status of a rank that is not the first, which says what went wrong on it alone.

    On CPUs the first rank, whose messages then fail, reports and exits with 1: a launcher that saw this one fail
    before would end it without a word. NCCL waits for those that are gone, so there the launcher has to end all.
    """
    found = [r for r in receipt.rows if r.section == "distributed" and r.measured is None]
    troubles = [f"{r.name}: {r.note}" for r in found if r.name in ("out of memory", "distributed failed")]
    for trouble in troubles:
        output.say(f"rank {os.environ.get('RANK', '?')}: {trouble}")
    if troubles:
        return 0 if receipt.device["kind"] == "cpu" else 1
    return _status(receipt, check=False)


def _status(receipt: Receipt, *, check: bool) -> int:
    """0: every prediction holds, or rows inform alone; 1: one is off; 2: nothing was measured or checked."""
    if receipt.agrees is not None:
        return 0 if receipt.agrees else 1
    return 2 if check or all(row.measured is None for row in receipt.rows) else 0


def _answer(out: output.Output, receipt: Receipt, warnings: tuple[str, ...], save: str | None) -> None:
    plain = receipt.to_dict()
    refused: KvplanError | None = None
    if save is not None:  # first: minutes of measuring are not lost to a reader that went away
        try:
            _save(receipt, save)
        except KvplanError as error:
            error.where = "--save"
            refused = error  # nor are the rows lost to a full disk
    out.emit(lambda: _report(plain), plain, warnings=warnings)
    if refused is not None:
        raise refused
    if save is not None:
        out.note(f"wrote {save}")
    if not receipt.agrees and (out.format == "json" or out.file is not None):
        out.note(plain["verdict"]["reason"])


def _sections(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    from kvplan.probe.receipt import SECTIONS

    found = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for name in found:
        if name not in SECTIONS:
            raise UnknownNameError(
                "section", name, list(SECTIONS), where="--only", more=f"known: {', '.join(SECTIONS)}"
            )
    if not found:
        raise InputError(f"{text!r} names no section", where="--only", hint=f"known: {', '.join(SECTIONS)}")
    return found


_CALIBRATING = {"--save": {"bandwidth", "decode"}, "--check": {"bandwidth", "attention", "decode", "prefill"}}
"""Sections of which one must run before there is a calibration to write, or a figure to compare."""


def _refuse_uncalibrated(flag: str, sections: tuple[str, ...] | None, ranks: int) -> None:
    """Raise where this run measures nothing that a calibration holds.

    Raises:
        InputError: says what to leave out.
    """
    if ranks > 1:
        raise InputError(
            "under torchrun nothing is measured that a calibration holds", where=flag,
            hint="run it without torchrun, on one GPU",
        )  # fmt: skip
    if sections is not None and not set(sections) & _CALIBRATING[flag]:
        raise InputError(
            "these sections measure nothing that a calibration holds", where=flag,
            hint="leave --only out, or add bandwidth to it",
        )  # fmt: skip


def _refuse_engines(names: str | None) -> None:
    """Raise where several engines are asked for.

    Raises:
        InputError: says that there is one layout to allocate.
    """
    if names is not None and (names == "all" or "," in names):
        raise InputError("one engine's layout is allocated at a time", where="--engine", hint="type --engine vllm")


def _refuse_files(save: str | None, receipt: str | None) -> None:
    """Raise where the calibration could not be written, or the receipt would replace it.

    Raises:
        InputError: which of them.
    """
    if save is None:
        return
    if save == "-":
        raise InputError("'-' is no file", where="--save", hint="--json shows what was measured; --save names a file")
    place.check_place(save, where="--save")
    if receipt is not None and os.path.realpath(save) == os.path.realpath(receipt):
        raise InputError(
            f"-o would write the receipt over {printable(save)}", where="--save", hint="name two files for the two"
        )


def _earlier(path: str, device: ProbeDevice) -> Calibration:
    """The calibration that this run is held against.

    Raises:
        InputError: no such file, or one of another device; SpecError: it is no calibration.
    """
    from kvplan.planning.calibration import load_calibration

    try:
        found = load_calibration(path, device.gpu.id if device.gpu else None)
    except KvplanError as error:
        if error.where == "--calibration":
            error.where = "--check"
        raise
    kinds = ("", "") if found.kind in (None, device.kind) else (f" ({found.kind})", f" ({device.kind})")
    if device.gpu is None and (found.gpu is not None or found.device != device.name or any(kinds)):
        raise InputError(
            f"{printable(path)} was measured on {printable(found.device)}{kinds[0]}, not on {device.name}{kinds[1]}",
            where="--check", hint="measure this one with --save FILE first",
        )  # fmt: skip
    return found


def _save(receipt: Receipt, path: str) -> None:
    from kvplan.render.jsonout import write

    if receipt.calibration is None:
        raise InputError(
            "nothing was measured that a calibration holds", where="--save",
            hint="leave --only out, or add bandwidth to it",
        )  # fmt: skip
    place.write_file(path, write(receipt.calibration))


def _local_device(name: str | None) -> str | None:
    """The device of this process: under ``torchrun`` every one has a card of its own."""
    local = os.environ.get("LOCAL_RANK")
    kind = None if name is None or name.lower() == "auto" else name.lower()
    if local is None or kind not in (None, "cuda", "rocm"):
        return name
    from kvplan.probe import extras

    torch = extras.torch()
    kind = kind or ("rocm" if torch.version.hip else "cuda")
    return f"{kind}:{local}" if torch.cuda.is_available() else name


def _leads() -> bool:
    """Whether this process speaks: of those that ``torchrun`` starts, the first."""
    from kvplan.probe.run import world_size

    return world_size() < 2 or os.environ.get("RANK", "0") == "0"


def _report(plain: dict[str, Any]) -> Document:
    from kvplan.render.validation import validation_report

    return validation_report(plain)


class StepBar:
    """A bar on a terminal's stderr that says what is being measured; gone at the end."""

    WIDTH = 20
    NEXT_SECONDS = 0.1

    def __init__(self, *, quiet: bool) -> None:
        stream = sys.stderr
        self.quiet = quiet
        self.silent = quiet or stream is None or not stream.isatty()
        self.shown, self.next = False, 0.0

    def show(self, text: str, share: float) -> None:
        """What is done now, and the share of all that is done."""
        if self.silent or time.monotonic() < self.next:
            return
        self.next = time.monotonic() + self.NEXT_SECONDS
        full = int(share * self.WIDTH)
        room = max(10, output.terminal_width() - self.WIDTH - 10)
        self._say(f"{CLEAR}[{'#' * full}{'.' * (self.WIDTH - full)}] {share:4.0%} {text[:room]}")
        self.shown = True

    def note(self, text: str) -> None:
        """A line that stays."""
        if self.shown:
            self._say(CLEAR)
        if not self.quiet:
            output.say(text)

    def _say(self, text: str) -> None:
        self.silent = self.silent or not put(text)

    def __enter__(self) -> StepBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self.shown:
            self._say(CLEAR)
