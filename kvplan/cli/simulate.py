"""``kvplan simulate MODEL --trace FILE``: a request trace through the memory and the scheduler of a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output, place
from kvplan.cli.app import SETTINGS
from kvplan.cli.output import PICTURED, ROWS
from kvplan.cli.trace_flags import TRACE, said
from kvplan.engines.options import Option
from kvplan.errors import InputError, printable

if TYPE_CHECKING:
    from kvplan.cli.output import Output
    from kvplan.render.grid import Document
    from kvplan.simulate.run import Run

app = typer.Typer(**SETTINGS)

OPTIONS = (
    Option(
        "allocator", ("--allocator",), "text", "NAME",
        "paged (default), or contiguous reservations: max, pow2, oracle", "Simulation",
    ),
    Option("scheduler", ("--scheduler",), "text", "NAME", "continuous (default) or static batching", "Simulation"),
    Option(
        "preemption", ("--preemption",), "text", "NAME", "recompute (default) or swap to host memory", "Simulation"
    ),
    Option(
        "routing", ("--routing",), "text", "NAME",
        "over -dp replicas: round-robin (default), least-loaded, prefix-aware", "Simulation",
    ),
    Option("samples", ("--samples",), "count", "N", "sequences generated from each prompt", "Simulation"),
    Option(
        "chunked_prefill", ("--no-enable-chunked-prefill",), "false", "", "prompts are computed whole", "Simulation"
    ),
)  # fmt: skip
"""The fields of `kvplan.simulate.run.Options`."""
SPREAD = (
    Option("workers", ("--workers",), "count", "N", "processes of --vary; default: one a core", "Simulation"),
    Option(
        "ray", ("--ray",), "text", "ADDRESS", "run --vary on a Ray cluster (extra ray); local starts one", "Simulation"
    ),
    Option("requests", ("--requests",), "text", "FILE", "write a row a request there, CSV", "Simulation"),
)  # fmt: skip
_NOT_HERE = frozenset(
    {"from_log", "concurrency", "prompt_tokens", "output_tokens", "shared_prefix_tokens"}
    | {option.setting for option in TRACE}
)  # fmt: skip
"""Planning flags that the trace replaces."""


class SimulateVerb(flags.PlanVerb):
    """The flags of a deployment, of a trace, and of how it is served."""

    flags = (*TRACE, *OPTIONS, *SPREAD, *flags.of_one_engine(flags.PLAN, _NOT_HERE))
    formats = (*PICTURED, *ROWS)


@app.command(cls=SimulateVerb)
def simulate(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="catalog id, hub name, folder, file, or an engine's command line")
    ],
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="FILE", help="a request trace", rich_help_panel="Trace")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="NAME=VALUES", rich_help_panel="Simulation",
            help="any flag above: allocator=max,paged  request-rate=1,2,4  tp=1,2; repeatable",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target", metavar="FIGURE<=VALUE", rich_help_panel="Simulation",
            help="find the smallest pool that meets it: 'ttft.p99<=2' 'hit_rate>=30%'; repeatable",
        ),
    ] = None,
) -> int:  # fmt: skip
    """A request trace through paged memory: what paging, shared prefixes and batching are worth here.

    Memory is the planner's pool, step times are the planner's roofline or a --calibration.
    """
    given, out = flags.read(ctx), output.of(ctx)
    options = {o.setting: given.pop(o.setting) for o in OPTIONS if o.setting in given}
    requests, workers, ray = (given.pop(name, None) for name in ("requests", "workers", "ray"))
    traced = {o.setting: given.pop(o.setting) for o in TRACE if o.setting in given}
    if vary and (target or requests):
        raise InputError(
            "goes with one simulation", where="--target" if target else "--requests", hint="leave out --vary"
        )
    try:
        if vary:
            return _study(ctx, out, (model, given, trace, traced, options), vary, workers, ray)
        _check_spread(out, workers, ray)
        return _one(out, (model, given, trace, traced, options), requests, target or [])
    except KeyboardInterrupt:
        out.note("interrupted: nothing is written")
        return 130


def _check_spread(out: Output, workers: int | None, ray: str | None) -> None:
    """Refuse what goes with --vary alone.

    Raises:
        InputError: it is given.
    """
    for name, value in (("--ray", ray), ("--workers", workers)):
        if value is not None:
            raise InputError("spreads the simulations of --vary", where=name, hint="add --vary NAME=V1,V2")
    if out.format in ROWS:
        raise InputError(
            "is for the rows of --vary", where=f"--format {out.format}", hint="--requests FILE has a row a request"
        )


def _one(
    out: Output, wanted: tuple[str, dict[str, Any], str | None, dict[str, Any], dict[str, Any]], requests: str | None,
    targets: list[str],
) -> int:  # fmt: skip
    """One simulation, and the search for a pool where there is a target."""
    from kvplan.cli.progress import Progress
    from kvplan.deployment import find_deployment
    from kvplan.engines.vllm.engine import NULL_BLOCKS
    from kvplan.planning.plan import to_plain
    from kvplan.simulate import run as running
    from kvplan.simulate.results import figures
    from kvplan.simulate.search import read_target, smallest_pool
    from kvplan.simulate.site import plain as one_pool
    from kvplan.simulate.site import prepare
    from kvplan.simulate.taking import take_trace

    model, given, path, traced, options = wanted
    aims = [read_target(text) for text in targets]
    if requests is not None:
        _check_writable(requests)
    chosen = running.Options(**options)
    chosen.check()
    trace = take_trace(path, traced)
    deployment = find_deployment(model, given)
    site = prepare(deployment)
    if deployment.report is not None:
        out.note(deployment.report.note())
    if chosen.allocator != "paged" or chosen.scheduler == "static":
        site = one_pool(site)
    with Progress(len(trace), "requests", quiet=out.quiet) as progress:
        run = running.simulate(site, trace, chosen, progress=progress.step)
    result = figures(run)
    if result.interrupted and not result.scheduling.finished:
        out.note(f"interrupted before any of {len(trace):,} requests was done: nothing is written")
        return 130
    found = None
    if aims and not result.interrupted:
        with Progress(20, "simulations", quiet=out.quiet) as progress:
            found = smallest_pool(site, trace, chosen, aims, told=lambda _: progress.step(1))
        result = result._replace(smallest_pool=found)
        if found.blocks and site.inputs["engine"] == "vllm" and run.replicas[0].memory.paged:
            out.note(f"vLLM counts its null block too: --num-gpu-blocks-override {found.blocks + NULL_BLOCKS}")
    if requests is not None:
        _write_requests(requests, run)
        out.note(f"wrote {requests}")
    plain = to_plain(result)
    out.emit(
        lambda: _document(plain, out.pictured), plain,
        warnings=(*said(trace.notes, trace.broken), *site.warnings, *_rejections(run), *_early(run)),
    )  # fmt: skip
    if result.interrupted:
        out.note("interrupted: these are the figures so far")
        return 130
    if found is not None and found.interrupted:
        out.note(
            f"the search was interrupted after {found.runs:,} simulations: the target says what it found until then"
        )
        return 130
    missed = found is not None and not found.met
    return 1 if missed or len(run.rows.rejected) == len(trace) else 0


def _rejections(run: Run) -> list[str]:
    """What was turned away, and the first reason."""
    rejected = run.rows.rejected
    if not rejected:
        return []
    index, why = next(iter(rejected.items()))
    return [f"{len(rejected):,} of {len(run.trace):,} requests were rejected; the first, number {index}: {why}"]


def _early(run: Run) -> list[str]:
    """How many turns of conversations came before the answer that they repeat was done."""
    from kvplan.simulate.results import early_turns

    early = early_turns(run)
    if not early:
        return []
    turns = "a turn of a conversation" if early == 1 else f"{early:,} turns of conversations"
    return [f"{turns} arrived before the answer before was done: think= is from arrival to arrival"]


def _check_writable(path: str) -> None:
    """Look before a long run whether its rows can be written.

    Raises:
        InputError: they cannot.
    """
    import os

    try:
        target = os.path.realpath(path)
        folder = os.path.dirname(target)
        if os.path.isdir(target):
            reason = "it is a folder"
        elif not os.path.isdir(folder):
            reason = "there is no such folder"
        elif not os.access(target if os.path.exists(target) and not os.path.isfile(target) else folder, os.W_OK):
            reason = "permission denied"
        else:
            return
    except ValueError as error:  # a NUL in the name
        reason = str(error)
    raise InputError(
        f"cannot write {printable(path)}: {reason}", where="--requests", hint="name a file that can be written"
    )


def _write_requests(path: str, run: Run) -> None:
    from kvplan.render.csvout import cell
    from kvplan.simulate.results import COLUMNS, request_rows

    try:
        with place.replacing(path) as file:
            file.write((",".join(COLUMNS) + "\n").encode())
            for row in request_rows(run):
                file.write((",".join("" if v is None else cell(v) for v in row) + "\n").encode())
    except InputError as error:
        error.where = "--requests"
        raise


def _study(
    ctx: typer.Context, out: Output,
    wanted: tuple[str, dict[str, Any], str | None, dict[str, Any], dict[str, Any]], vary: list[str],
    workers: int | None, ray: str | None,
) -> int:  # fmt: skip
    """A simulation for every combination of what is varied."""
    from kvplan.cli.progress import Progress
    from kvplan.planning.sweep_axes import read_axes, size_of
    from kvplan.simulate.run import Options
    from kvplan.simulate.taking import NAMES, take_trace
    from kvplan.simulate.vary import ROW, Point, points, run_study

    model, given, path, traced, options = wanted
    fixed = {**given, **traced, **options}
    free = tuple(o for o in ctx.command.flags if o not in SPREAD)  # type: ignore[attr-defined]
    axes = read_axes(vary, free, fixed)
    size = size_of(axes)
    if size > 100_000:
        raise InputError(f"{size:,} simulations are too many", where="--vary", hint="at most 100,000")
    varied = {a.setting for a in axes}
    if not varied.intersection(NAMES):
        trace = take_trace(path, dict(traced))
        for text in said(trace.notes, trace.broken):
            out.warn(text)
    todo = list(points(Point(model, given, path, traced, options), axes, of_trace=NAMES, of_options=Options._fields))
    with Progress(size, "simulations", quiet=out.quiet) as progress:
        study = run_study(todo, workers=workers, ray=ray, told=progress.step)
    if study.interrupted and not study.rows:
        out.note(f"interrupted before any of {size:,} simulations was done: nothing is written")
        return 130
    if study.rows and all(row["refused"] for row in study.rows):
        raise InputError(f"every simulation is refused; the first: {study.rows[0]['refused']}", hint="change the flags")
    _write_study(out, f"{model}: {size:,} simulations", [a.setting for a in axes], list(ROW), study.rows)
    if study.interrupted:
        out.note(f"interrupted: {len(study.rows):,} of {size:,} simulations are done")
        return 130
    return 0


def _write_study(out: Output, title: str, axes: list[str], figures: list[str], rows: list[dict[str, Any]]) -> None:
    from kvplan.planning.plan import to_plain
    from kvplan.render.simulation import study_report
    from kvplan.simulate.documents import STUDY_SCHEMA, Simulations

    names = [*axes, *figures, "refused"]
    for row in rows:
        for name in axes:
            row[name] = "default" if row[name] is None else row[name]
    if out.format in ROWS:
        out.write(output.writer(out.format, "lines").lines(names, rows))
    else:
        kept = tuple({n: r[n] for n in names} for r in rows)
        payload = to_plain(Simulations(STUDY_SCHEMA, tuple(axes), tuple(figures), kept))
        out.emit(lambda: study_report(title, axes, figures, rows, pictures=out.pictured), payload)


def _document(result: dict[str, Any], pictures: bool) -> Document:
    from kvplan.render.simulation import simulation_report

    return simulation_report(result, pictures=pictures)
