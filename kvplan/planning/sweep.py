"""A grid of plans: every combination of the values of some settings, computed by the functions that compute one plan.

Settings that decide a deployment's structure (model, GPU, engine, layout, formats) are looped over. Sizes and
workload (`kvplan.engines.base.ARRAY_SETTINGS`) become NumPy arrays, one dimension each, where the engine takes
them; a figure that depends on one of them alone is computed once for each of its values. The grid is worked
through in blocks, so memory does not grow with it. What a plan refuses is a cell with a reason, not the end.
Cells come in the order of the structural axes as given, the length, then the other sizes as given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby, pairwise, product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines import get_engine
from kvplan.engines.base import ARRAY_SETTINGS, Engine, Settings
from kvplan.errors import InputError, UnsupportedError
from kvplan.planning.evaluate import resources, settled
from kvplan.planning.planner import read_calibration
from kvplan.planning.settings import COMMON, FIT, cut, flag_name, resolve
from kvplan.planning.sweep_axes import ATTENTION, VARIANTS, Axis, size_of
from kvplan.planning.sweep_figures import FIGURES, NOTHING, Case, Column, Prepared, prepare
from kvplan.planning.sweep_traffic import case_of, is_served

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

BLOCK = 1 << 16
"""Cells computed at once."""
_LENGTH, _SHARED = "max_model_len", "shared_prefix_tokens"
_EXACT, _WIDE = 1 << 53, 1 << 62
"""Up to where float64 divides integers exactly, and int64 holds a product with room to spare."""
REFUSALS = (InputError, UnsupportedError)


class Base(NamedTuple):
    """What stays the same, looked up."""

    model: ModelSpec
    gpu: GpuSpec | None
    engine: str
    settings: dict[str, Any]
    """As `plan_deployment` takes them."""


Lookup = Callable[[Mapping[str, Any]], Base]
"""From the values of the structural axes (setting -> value) to the deployment that has them."""


class Block(NamedTuple):
    """Some cells of the grid."""

    shape: tuple[int, ...]
    axes: dict[str, Any]
    """setting -> a value, or an array of values that broadcasts to `shape`."""
    figures: dict[str, Column]
    refused: Column
    """Reasons; missing where there is a plan."""
    limited: Any = False
    """Where `capacity.requests` is asked for: whether the engine's own limit of running requests sets it."""

    @property
    def size(self) -> int:
        return prod(self.shape)

    def cells(self) -> Iterator[dict[str, Any]]:
        """Cell by cell: axis or figure -> its value, None where there is none; ``refused`` last."""
        columns = {name: Column(values) for name, values in self.axes.items()} | self.figures
        columns["refused"] = self.refused
        lists = {name: _listed(column, self.shape) for name, column in columns.items()}
        for i in range(self.size):
            yield {name: values[i] for name, values in lists.items()}


class _Setup(NamedTuple):
    """A deployment of which only sizes and workload are open."""

    base: Base
    engine: Engine
    fixed: dict[str, Any]
    """Settings with those of the axes that are looped over."""
    shown: dict[str, Any]
    """Values of these axes as a row shows them."""


class Sweep:
    """The plans of a grid, block by block.

    Args:
        lookup: makes a deployment of one combination of structural values; its errors that are no
            refusals (an unknown name, a file that cannot be used) end the sweep.
        axes: what varies.
        figures: names in `FIGURES`.
    """

    def __init__(self, lookup: Lookup, axes: Sequence[Axis], figures: Sequence[str]) -> None:
        self.lookup = lookup
        self.axes = tuple(axes)
        self.figures = tuple(figures)

    @property
    def size(self) -> int:
        """Cells of the grid."""
        return size_of(self.axes)

    def blocks(self, cells: int = BLOCK) -> Iterator[Block]:
        """The grid in blocks of at most `cells` cells.

        Raises:
            KvplanError: a name or a file that is no use for any cell.
        """
        structural = [a for a in self.axes if a.setting not in ARRAY_SETTINGS]
        sizes = [a for a in self.axes if a.setting in ARRAY_SETTINGS]
        sizes.sort(key=lambda axis: axis.setting != _LENGTH)
        for values in product(*(a.values for a in structural)):
            chosen = dict(zip((a.setting for a in structural), values, strict=True))
            shown = {a.setting: a.shown(chosen[a.setting]) for a in structural}
            try:
                base = self.lookup({k: v for k, v in chosen.items() if k != ATTENTION and v is not None})
                engine = get_engine(base.engine)
                _check_names(engine, base.settings)
                if chosen.get(ATTENTION):
                    base = base._replace(model=with_attention(base.model, chosen[ATTENTION]))
            except REFUSALS as error:
                yield from self._refused(shown, sizes, cells, str(error))
                continue
            yield from self._sizes(_Setup(base, engine, base.settings, shown), sizes, cells)

    def _sizes(self, setup: _Setup, sizes: Sequence[Axis], cells: int) -> Iterator[Block]:
        """All sizes and workloads of one deployment."""
        known = setup.engine.array_settings
        if is_served((*setup.fixed, *(a.setting for a in sizes))):
            known = frozenset()  # queues are solved one by one
        arrays = [a for a in sizes if a.setting in known and not {None, FIT} & set(_ends(a))]
        loops = [a for a in sizes if a not in arrays]
        for values in product(*(a.values for a in loops)):
            chosen = dict(zip((a.setting for a in loops), values, strict=True))
            fixed = setup.fixed | {k: v for k, v in chosen.items() if v is not None}
            shown = setup.shown | {a.setting: a.shown(chosen[a.setting]) for a in loops}
            each = setup._replace(fixed=fixed, shown=shown)
            if arrays and fixed.get(_LENGTH) != FIT:
                yield from self._together(each, arrays, cells)
            else:
                yield from self._one_by_one(each, arrays)

    def _one_by_one(self, setup: _Setup, axes: Sequence[Axis]) -> Iterator[Block]:
        """Every cell by itself, in Python's own numbers."""
        for values in product(*(a.values for a in axes)):
            chosen = dict(zip((a.setting for a in axes), values, strict=True))
            shown = setup.shown | chosen
            try:
                prepared, settings = _prepare(setup, chosen)
                served = is_served(setup.fixed)
                case = (
                    case_of(prepared, settings, setup.fixed | chosen) if served else Case(prepared, settings, settings)
                )
            except REFUSALS as error:
                yield Block((), shown, dict.fromkeys(self.figures, NOTHING), Column(str(error)))
                continue
            yield Block((), shown, {n: FIGURES[n].read(case) for n in self.figures}, NOTHING, self._limited(case))

    def _together(self, setup: _Setup, axes: Sequence[Axis], cells: int) -> Iterator[Block]:
        """Blocks of cells as arrays, over lengths that share everything else."""
        rest = [a for a in axes if a.setting != _LENGTH]
        for lengths, found in _segments(setup, next((a for a in axes if a.setting == _LENGTH), None), rest):
            varied = [lengths, *rest] if lengths is not None else rest
            if isinstance(found, str):
                yield from self._refused(setup.shown, varied, cells, found)
            elif not _is_safe(*found, varied):
                yield from self._one_by_one(setup, varied)
            else:
                for shape, arrays in _open_grids(varied, cells):
                    yield self._block(setup, *found, shape, arrays)

    def _block(
        self, setup: _Setup, prepared: Prepared, settings: Settings, shape: tuple[int, ...], arrays: dict[str, Any]
    ) -> Block:
        with_prefix = {_SHARED: setup.fixed[_SHARED], **arrays} if _SHARED in setup.fixed else arrays
        whole = cut(replace(settings, **with_prefix))
        case = Case(prepared, whole, replace(whole, max_model_len=settings.max_model_len))
        figures = {name: FIGURES[name].read(case) for name in self.figures}
        refused = NOTHING
        too_long = whole.shared_prefix_tokens > whole.prompt_tokens
        if too_long is not False:
            figures = {name: Column(c.values, c.missing | too_long) for name, c in figures.items()}
            why = f"{flag_name(_SHARED)}: the shared prefix is longer than the prompt"
            refused = Column(why, ~too_long if too_long is not True else False)
        return Block(shape, setup.shown | arrays, figures, refused, self._limited(case))

    def _limited(self, case: Case) -> Any:
        return case.limited if "capacity.requests" in self.figures else False

    def _refused(self, shown: dict[str, Any], axes: Sequence[Axis], cells: int, why: str) -> Iterator[Block]:
        """Cells that one reason covers; ``{length}`` in it stands for the cell's length."""
        nothing = dict.fromkeys(self.figures, NOTHING)
        if not axes:
            yield Block((), shown, nothing, Column(why))
            return
        for shape, arrays in _open_grids(axes, cells, [a for a in axes if None in _ends(a)]):
            yield Block(shape, shown | arrays, nothing, Column(_with_lengths(why, arrays.get(_LENGTH))))


def _listed(column: Column, shape: tuple[int, ...]) -> list[Any]:
    """One value for each cell, None where there is none."""
    if column.missing is True or column.values is None:
        return [None] * prod(shape)
    if shape == ():
        return [column.values]
    import numpy

    values = numpy.broadcast_to(column.values, shape).ravel().tolist()
    if column.missing is False:
        return values
    missing = numpy.broadcast_to(column.missing, shape).ravel().tolist()
    return [None if gone else value for value, gone in zip(values, missing, strict=True)]


def with_attention(model: ModelSpec, variant: str) -> ModelSpec:
    """The model with its attention as in `VARIANTS`; layers that have no such variant stay as they are.

    Raises:
        UnsupportedError: the sizes of a layer go with its own number of heads alone.
    """
    change = VARIANTS[variant]
    if change is None:
        return model
    try:
        blocks = {n: replace(b, mixers=tuple(getattr(m, change)() for m in b.mixers)) for n, b in model.blocks.items()}
    except ValueError as error:
        raise UnsupportedError(f"{model.id} as {variant}: {error}", where="--vary attention") from None
    return replace(model, blocks=blocks)


def _check_names(engine: Engine, settings: Mapping[str, Any]) -> None:
    for name in settings:
        if name not in COMMON | engine.settings | {"calibration"}:
            raise InputError(f"{engine.name} has no such setting", where=flag_name(name))


def _prepare(setup: _Setup, values: Mapping[str, Any]) -> tuple[Prepared, Settings]:
    """One deployment, checked, and its settings.

    Raises:
        InputError, UnsupportedError: it is refused.
    """
    (model, gpu, _, _), engine = setup.base, setup.engine
    given = setup.fixed | dict(values)
    calibration = read_calibration(given.get("calibration"), gpu)
    model, settings, _ = settled(model, gpu, engine, given)
    return prepare(model, gpu, engine, settings, calibration), settings


def _segments(
    setup: _Setup, lengths: Axis | None, rest: Sequence[Axis]
) -> Iterator[tuple[Axis | None, tuple[Prepared, Settings] | str]]:
    """The lengths in runs that share everything else, with a deployment of each, or why there is none."""
    example = {a.setting: a.values[0] for a in rest}
    fixed = {k: v for k, v in setup.fixed.items() if k != _SHARED}
    example.pop(_SHARED, None)  # whether the prompt holds it is a matter of each cell
    bare = setup._replace(fixed=fixed)
    first: list[Prepared] = []

    def find(length: int | None) -> tuple[Prepared, Settings] | str:
        chosen = example if length is None else example | {_LENGTH: length}
        try:
            if not first:
                prepared, settings = _prepare(bare, chosen)
                first.append(prepared)
                return prepared, settings
            given = {k: v for k, v in (fixed | chosen).items() if k != "calibration"}
            settings, _ = resolve(setup.base.model, setup.base.gpu, setup.engine, given)
            setup.engine.check(first[0].model, settings, setup.base.gpu)
            return first[0], settings
        except REFUSALS as error:
            text = str(error).replace("{", "(").replace("}", ")")
            return text.replace(f"{length:,}", "{length}") if length is not None else text

    if lengths is None:
        yield None, find(None)
        return
    values = lengths.values
    at = lru_cache(maxsize=64)(find)
    for start, stop in _runs(values, lru_cache(maxsize=64)(lambda i: _key(at(values[i])))):
        yield lengths._replace(values=values[start:stop]), at(values[start])


def _key(found: tuple[Prepared, Settings] | str) -> Any:
    """What lengths must have in common to be computed together."""
    if isinstance(found, str):
        return found
    prepared, settings = found
    falls, _ = resources(*prepared[:3], settings, prepared.stages, prepared.weights)
    terms = [[(t.bytes, t.low_bytes, t.high_bytes) for t in fall.terms] for fall in falls or ()]
    cut_anew: dict[str, Any] = {n: 0 for n in ("prompt_tokens", "output_tokens") if n in settings.defaults}
    alike = replace(settings, max_model_len=0, **cut_anew)
    return alike, terms, prepared.engine.length_key(prepared.stages, settings)


def _runs(values: Sequence[int], key: Callable[[int], Any]) -> Iterator[tuple[int, int]]:
    """(start, stop) of runs of equal keys; where values rise, ends are found by doubling the step, then halving it."""
    rising = isinstance(values, range) or all(a < b for a, b in pairwise(values))
    if not rising:
        for _, run in groupby(enumerate(key(i) for i in range(len(values))), lambda pair: pair[1]):
            found = [i for i, _ in run]
            yield found[0], found[-1] + 1
        return
    start = 0
    while start < len(values):
        here, low, high, step = key(start), start, len(values), 1
        while low + step < high:
            if key(low + step) == here:
                low, step = low + step, 2 * step
            else:
                high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if key(middle) == here else (low, middle)
        yield start, high
        start = high


def _is_safe(prepared: Prepared, settings: Settings, axes: Sequence[Axis]) -> bool:
    """Whether the largest cell stays within what int64 and float64 hold exactly."""
    most = {a.setting: max(_ends(a)) if isinstance(a.values, range) else max(a.values) for a in axes}
    largest = replace(settings, **most)
    sizes = [largest.request_tokens, largest.max_model_len, largest.kv_cache_memory_bytes or 0]
    products = []
    for stage in prepared.stages:
        request = prepared.engine.request_bytes(stage, largest, largest.request_tokens)
        sizes += [request, prepared.engine.request_bytes(stage, largest, largest.max_model_len)]
        products.append(request * largest.concurrency)
    return max(sizes) < _EXACT and max(products) < _WIDE


def _open_grids(
    axes: Sequence[Axis], cells: int, texts: Sequence[Axis] = ()
) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """The grid in blocks: (shape, setting -> its values along its own dimension).

    Args:
        texts: axes whose values are shown, not computed with.
    """
    counts = [len(a.values) for a in axes]
    for slices in _slices(counts, cells):
        shape = tuple(s.stop - s.start for s in slices)
        arrays = {}
        for dimension, (axis, part) in enumerate(zip(axes, slices, strict=True)):
            along = [1] * len(axes)
            along[dimension] = shape[dimension]
            arrays[axis.setting] = _array(axis, part, axis in texts).reshape(along)
        yield shape, arrays


def _array(axis: Axis, part: slice, as_text: bool) -> Any:
    import numpy

    values = axis.values[part]
    if as_text:
        return numpy.asarray([str(axis.shown(v)) for v in values])
    if isinstance(values, range):
        return numpy.arange(values.start, values.stop, values.step, dtype=numpy.int64)
    return numpy.asarray(values, dtype=numpy.float64 if isinstance(values[0], float) else numpy.int64)


def _slices(counts: Sequence[int], cells: int) -> Iterator[tuple[slice, ...]]:
    """Slices of a grid in row order, each of at most `cells` cells where no dimension has to be less than 1."""
    if not counts:
        yield ()
        return
    inner = prod(counts[1:])
    step = max(1, cells // inner)
    for start in range(0, counts[0], step):
        part = slice(start, min(start + step, counts[0]))
        if inner <= cells:
            yield (part, *(slice(0, n) for n in counts[1:]))
        else:
            for rest in _slices(counts[1:], cells):
                yield (part, *rest)


def _with_lengths(why: str, lengths: Any) -> Any:
    if "{length}" not in why:
        return why
    import numpy

    return numpy.asarray([why.format(length=f"{n:,}") for n in lengths.ravel().tolist()]).reshape(lengths.shape)


def _ends(axis: Axis) -> tuple[Any, ...]:
    """The values of an axis that may be out of the ordinary: all of a list, the ends of a range."""
    values = axis.values
    return (values[0], values[-1]) if isinstance(values, range) else tuple(values)
