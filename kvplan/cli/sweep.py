"""``kvplan sweep MODEL --vary NAME=V1,V2,...``: a grid of plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output
from kvplan.cli.app import SETTINGS
from kvplan.cli.output import PICTURED, Output
from kvplan.errors import InputError, KvplanError

if TYPE_CHECKING:
    from kvplan.deployment import Deployment
    from kvplan.planning.sweep import Block, Sweep
    from kvplan.planning.sweep_axes import Axis

app = typer.Typer(**SETTINGS)

MAX_ROWS = 100
"""Rows that are drawn; files have all."""
MAX_MAP = 200 * 200
"""Cells of which a heat map is made."""
FITS = "verdict.fits"
STREAMED = ("json", "csv", "jsonl", "parquet")
"""Formats that are written as the rows come."""
_DRAWN = ("table", "text", "html", "svg")
"""Formats that may draw a map."""
_FOUND_BY = ("model", "gpu", "gpu_memory", "gpu_bandwidth", "engine")
"""Settings that name something; the others are laid over what is found."""


class SweepVerb(flags.PlanVerb):
    """Planning flags but for those that read one plan's figures from elsewhere, and more formats."""

    flags = tuple(option for option in (*flags.PLAN, *flags.SERVICE) if option.setting != "from_log")
    formats = tuple(dict.fromkeys((*PICTURED, *STREAMED)))


@app.command(cls=SweepVerb)
def sweep(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="catalog id, hub name, folder, file, or an engine's command line")
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="NAME=VALUES",
            help="any planning flag: tp=1,2,4  max-model-len=1K..128K*2  concurrency=1..1000:10; repeatable",
        ),
    ] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure", metavar="NAME",
            help="a figure, a group (capacity) or all; one over two axes draws a heat map; repeatable",
        ),
    ] = None,
) -> int:  # fmt: skip
    """A grid of plans: every combination of the values that are varied."""
    from kvplan.planning.sweep import Sweep
    from kvplan.planning.sweep_axes import read_axes
    from kvplan.planning.sweep_figures import figure_names

    given, out = flags.read(ctx), output.of(ctx)
    vary = with_engines(vary or (), given)
    if not vary:
        raise InputError("nothing is varied", where="--vary", hint="--vary concurrency=1,8,64")
    axes = read_axes(vary, ctx.command.flags, given)  # type: ignore[attr-defined]
    asked = figure_names(figure) if figure else []
    lookup = lookup_of(model, given, out.warn)
    _look_up_names(lookup, axes)
    check_served(asked, figure or (), axes, given)
    try:
        usual = default_figures(lookup, axes)
        figures = asked or usual
        marked = len(axes) == 2 and out.format in _DRAWN and FITS in usual and FITS not in figures
        made = Sweep(lookup, axes, [*figures, FITS] if marked else figures)
        return _write(made, figures, out, f"{model}: {made.size:,} plans", bool(asked))
    except KeyboardInterrupt:
        if out.file is not None:
            out.note("interrupted: nothing is written")
        raise


def with_engines(vary: Sequence[str], given: dict[str, Any]) -> list[str]:
    """What is varied, and before it several engines of ``--engine``, which are an axis and no setting any more."""
    from kvplan.cli.plan import is_list
    from kvplan.planning.side_by_side import engine_names

    if not is_list(given.get("engine")):
        return list(vary)
    return [f"engine={','.join(engine_names(given.pop('engine')))}", *vary]


def lookup_of(
    model: str, given: Mapping[str, Any], note: Callable[[str], None] = lambda text: None
) -> Callable[[Mapping[str, Any]], Any]:
    """From values of structural settings to a deployment; what has the same names is looked up once.

    Args:
        note: gets, once a model, what is to be said of a calibration that was measured on another one.
    """
    from kvplan.deployment import find_deployment
    from kvplan.planning.sweep import Base

    said: set[str] = set()

    @cache
    def found(names: tuple[tuple[str, Any], ...]) -> Deployment:
        wanted = {**given, **dict(names)}
        deployment = find_deployment(wanted.pop("model", model), wanted)
        if (text := _of_other_lines(deployment)) is not None and text not in said:
            said.add(text)
            note(text)
        return deployment

    def lookup(chosen: Mapping[str, Any]) -> Base:
        deployment = found(tuple((k, v) for k, v in chosen.items() if k in _FOUND_BY))
        rest = {k: v for k, v in chosen.items() if k not in _FOUND_BY}
        return Base(deployment.model, deployment.gpu, deployment.engine, {**deployment.settings, **rest})

    return lookup


def _of_other_lines(deployment: Deployment) -> str | None:
    """What to say of a calibration whose lines are another model's; of a file that is of no use, its cells say so."""
    if deployment.gpu is None or (path := deployment.settings.get("calibration")) is None:
        return None
    from kvplan.planning.calibration import load_calibration

    with suppress(KvplanError):
        return load_calibration(path, deployment.gpu.id).note(deployment.model)
    return None


def _look_up_names(lookup: Callable[[Mapping[str, Any]], Any], axes: Sequence[Axis]) -> None:
    """Every model, GPU and engine once, before the first row is out: a name that is none ends the sweep.

    Raises:
        KvplanError: such a name, or a file that is no use for any cell.
    """
    from kvplan.planning.sweep import REFUSALS

    first = {a.setting: a.values[0] for a in axes if a.setting in _FOUND_BY}
    with suppress(*REFUSALS):
        lookup({k: v for k, v in first.items() if v is not None})
    for axis in axes:
        for value in axis.values if axis.setting in _FOUND_BY else ():
            with suppress(*REFUSALS):  # of cells, in which they are shown
                lookup({k: v for k, v in {**first, axis.setting: value}.items() if v is not None})


def check_served(figures: Sequence[str], typed: Sequence[str], axes: Sequence[Axis], given: Mapping[str, Any]) -> None:
    """Refuse figures of traffic where there is none.

    Raises:
        InputError: nothing is served, and a figure was asked for that says how.
    """
    from kvplan.planning.sweep_traffic import is_served

    named = [name for name in figures if name.startswith(("serving.", "cost."))]
    if named and "all" not in typed and not is_served((*given, *(a.setting for a in axes))):
        raise InputError(
            f"{named[0]} is about traffic, and none is given", where="--figure",
            hint="add --request-rate R, --ttft S, --tpot S or --price USD",
        )  # fmt: skip


def default_figures(lookup: Callable[[Mapping[str, Any]], Any], axes: Sequence[Axis]) -> list[str]:
    """The figures that are given where none is asked for: without memory, those of the cache alone."""
    from kvplan.engines.base import ARRAY_SETTINGS
    from kvplan.planning.sweep_axes import ATTENTION
    from kvplan.planning.sweep_figures import SERVED, SPEED, USUAL

    first = {a.setting: a.values[-1] for a in axes if a.setting not in ARRAY_SETTINGS and a.setting != ATTENTION}
    try:
        base = lookup({k: v for k, v in first.items() if v is not None})
    except KvplanError:
        return [*USUAL, *SPEED]  # the sweep will say what is wrong, or with which cells
    if base.gpu is not None:
        from kvplan.planning.sweep_traffic import is_served

        return [*USUAL, *SPEED, *(SERVED if is_served((*base.settings, *(a.setting for a in axes))) else ())]
    if "kv_cache_memory_bytes" in base.settings or any(a.setting == "kv_cache_memory_bytes" for a in axes):
        return list(USUAL)
    return [name for name in USUAL if name.startswith("kv.")]


def _write(made: Sweep, figures: Sequence[str], out: Output, title: str, asked: bool) -> int:
    """Put the grid out in the format that was asked for; 2 where every cell is refused.

    Args:
        figures: those that are shown; a map knows besides which plans fit.
    """
    from kvplan.cli.progress import Progress

    counts = _Counts()
    with Progress(made.size, "plans", quiet=out.quiet) as progress:

        def blocks(cells: int) -> Any:
            for block in made.blocks(cells):
                counts.add(block)
                yield block
                progress.step(block.size)

        if out.format in STREAMED:
            _stream(made, out, blocks, lambda: counts.answered(made.size))
            text = ""
        elif out.format in ("html", "svg"):
            text = _pictured(made, figures, out, title, asked, blocks)
        else:
            text = _drawn(made, figures, out, title, asked, blocks)
    if text:
        if out.file is not None:
            counts.answered(made.size)
        out.write(text)
    return counts.status(out, made.size)


class _Counts:
    """How many cells there were, and how many of them were refused."""

    def __init__(self) -> None:
        self.cells = self.refused = self.limited = 0
        self.reason = ""

    def add(self, block: Block) -> None:
        self.cells += block.size
        if block.limited is not False:
            import numpy

            self.limited += int(numpy.broadcast_to(block.limited, block.shape).sum())
        if block.refused.missing is True:
            return
        import numpy

        gone = ~numpy.broadcast_to(block.refused.missing, block.shape)
        self.refused += int(gone.sum())
        if gone.any() and not self.reason:
            reasons = numpy.broadcast_to(block.refused.values, block.shape)
            self.reason = str(reasons[gone][0])

    def answered(self, size: int) -> None:
        """Refuse a grid in which nothing is answered.

        Raises:
            InputError: every plan is refused.
        """
        if self.refused == size:
            raise InputError(f"every plan is refused; the first: {self.reason}", hint="vary within what is legal")

    def status(self, out: Output, size: int) -> int:
        """0; says how many are refused. `size` is that of the whole grid, of which a table may hold the first part.

        Raises:
            InputError: all are.
        """
        self.answered(size)
        of = f"{size:,} plans" if self.cells == size else f"the first {self.cells:,} plans"
        drawn = out.format not in STREAMED  # of which a reader sees the first rows on purpose
        if self.limited and (drawn or self.cells == size):
            limit = "the engine's limit of running requests, not the cache,"
            out.note(f"{limit} decides how many run at once in {self.limited:,} of {of}")
        if self.refused:
            out.note(f"refused: {self.refused:,} of {of}, for instance {self.reason}")
        return 0


def _columns(made: Sweep, block: Block) -> list[tuple[Any, Any]]:
    """(values, missing) in the order of the names."""
    axes: list[tuple[Any, Any]] = [(block.axes[a.setting], False) for a in made.axes]
    return [*axes, *((block.figures[n].values, block.figures[n].missing) for n in made.figures), tuple(block.refused)]


def _stream(made: Sweep, out: Output, blocks: Callable[[int], Any], answered: Callable[[], None]) -> None:
    """Write block by block; a file appears only when all is in it, and something is answered."""
    from kvplan.planning.sweep import BLOCK
    from kvplan.planning.sweep_document import SCHEMA, SweepDocument
    from kvplan.planning.sweep_figures import FIGURES

    module = output.writer(out.format, "stream")
    if getattr(module, "BINARY", False) and out.file is None:
        name = out.format
        raise InputError(f"{name.title()} is no text", where=f"--format {name}", hint=f"add -o FILE.{name}")
    names = [*(a.setting for a in made.axes), *made.figures, "refused"]
    types = [_type_of(a) for a in made.axes] + [FIGURES[n].type for n in made.figures] + ["text"]
    axes = {a.setting: [a.shown(v) for v in a.values] for a in made.axes}
    head = SweepDocument(SCHEMA, made.size, axes, made.figures, ())._asdict()
    del head["rows"]  # they follow
    with out.opened() as file:
        rows = module.stream(file, names, types, head)
        for block in blocks(rows.cells or BLOCK):
            rows.write(block.shape, _columns(made, block))
        rows.close()
        answered()


def _type_of(axis: Axis) -> str:
    kinds = {type(v) for v in (axis.values[0], axis.values[-1])} if isinstance(axis.values, range) else {
        type(v) for v in axis.values
    }  # fmt: skip
    return {int: "int", float: "float", bool: "bool"}.get(kinds.pop(), "text") if len(kinds) == 1 else "text"


def _drawn(
    made: Sweep, figures: Sequence[str], out: Output, title: str, asked: bool, blocks: Callable[[int], Any]
) -> str:
    """A heat map of one figure over two axes, else a table of the first rows."""
    from kvplan.render import heatmap
    from kvplan.render.sweep_table import heading, sweep_map, sweep_report

    names = [a.setting for a in made.axes]
    if asked and len(figures) == 1 and len(names) == 2 and out.format != "markdown" and made.size <= MAX_MAP:
        cells = [cell for block in blocks(MAX_MAP) for cell in block.cells()]
        values = [[a.shown(v) for v in a.values] for a in made.axes]
        head = f"{title.partition(':')[0]}: {heading(figures[0])}"
        picture = sweep_map(head, values, names, figures[0], cells)
        width = output.terminal_width() if out.format == "table" else None
        return heatmap.draw(picture, width=width, color=out.color, unicode=out.unicode)
    cells = list(islice((cell for block in blocks(MAX_ROWS) for cell in block.cells()), MAX_ROWS))
    return out.drawn(sweep_report(title, names, figures, cells, made.size - len(cells), asked=asked))


def _pictured(
    made: Sweep, figures: Sequence[str], out: Output, title: str, asked: bool, blocks: Callable[[int], Any]
) -> str:
    """A page with pictures of all cells and a table of the first; pictures alone as SVG.

    Raises:
        InputError: more cells than a picture shows.
    """
    from kvplan.render.sweep_pictures import sweep_pictures
    from kvplan.render.sweep_table import sweep_report

    if made.size > MAX_MAP:
        raise InputError(
            f"{made.size:,} plans are too many for a picture", where=f"--format {out.format}",
            hint=f"at most {MAX_MAP:,}, or --format csv",
        )  # fmt: skip
    names, values = [a.setting for a in made.axes], [[a.shown(v) for v in a.values] for a in made.axes]
    cells = [cell for block in blocks(MAX_MAP) for cell in block.cells()]
    pictures = sweep_pictures(title.partition(":")[0], names, values, figures, cells, asked=asked)
    first = cells[:MAX_ROWS]
    report = sweep_report(title, names, figures, first, made.size - len(first), asked=asked)
    return out.drawn([*report[:1], *pictures, *report[1:]])
