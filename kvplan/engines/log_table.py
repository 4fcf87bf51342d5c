"""An engine's start-up log as data: what a line must hold, and what its numbers are.

Each engine lists its lines in ``kvplan/engines/<engine>/log_lines.py`` as a `LogTable`. A `Line` begins with a
literal marker, which is looked for as it stands; the pattern is then matched from the marker on, so that prefixes
(times, process names, colours, a container's wrapping) do not matter. Named groups say what was found and in which
unit: ``kv__gib``, ``kv_tokens__int``; ``set__NAME__KIND`` is a setting of the engine, ``model``, ``version`` and
``gpu`` are what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.options import READERS
from kvplan.errors import KvplanError
from kvplan.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from kvplan.engines.command_line import Grammar

LOCAL = ("llama.cpp", "ollama")
"""Engines that lay caches out by their settings, not by what a budget leaves."""

_UNITS = {"gib": GIB, "mib": MIB, "kib": KIB, "bytes": 1}
_MOST_DIGITS = 24


class Figure(NamedTuple):
    """A number that a log prints."""

    value: float
    """Bytes (whole), tokens, or a plain number."""
    half: float
    """Half of the last digit that is printed, in the same unit: 0 where the number is exact."""
    unit: str
    """``bytes``, ``tokens`` or ``number``."""
    line: int
    """Where it stands, counted from 1."""


class Setting(NamedTuple):
    """A setting that a log prints."""

    value: Any
    line: int


class Cache(NamedTuple):
    """One cache that a local engine prints at start."""

    kind: str
    """``kv``, ``swa``, ``index`` or ``state``."""
    bytes: Figure
    cells: int
    layers: int
    sequences: int


class Run:
    """What the lines of one start amount to."""

    def __init__(self) -> None:
        self.figures: dict[str, list[Figure]] = {}
        self.settings: dict[str, Setting] = {}
        self.caches: list[Cache] = []
        self.buffers: dict[str, dict[str, Figure]] = {}
        """What for (``model``, ``compute``, ``kv``, ...) -> device -> its size."""
        self.texts: dict[str, str] = {}
        """``model``, ``version``, ``gpu``, ``weights`` and what only one engine prints."""
        self.gpus: list[str] = []
        self.warnings: list[str] = []
        self.refusals: list[str] = []
        self.lines = 0
        """Lines that said something."""
        self.closed = False
        """Whether what follows belongs to something else: a second model of the same process."""
        self.prefix = ""
        """What stands before the marker in the line that is being read (a device, a rank)."""

    def figure(self, name: str, text: str, unit: str, line: int) -> None:
        """Keep a printed number; one that cannot be read is left out."""
        found = number(text, unit, line)
        if found is not None:
            self.figures.setdefault(name, []).append(found)

    def set(self, name: str, value: Any, line: int) -> None:
        """A setting; the last one of a name counts."""
        self.settings[name] = Setting(value, line)

    def text(self, name: str, value: str) -> None:
        """A text; the first one of a name counts."""
        if value.strip():
            self.texts.setdefault(name, value.strip())

    def least(self, name: str) -> Figure | None:
        """The smallest of a figure over the ranks that print it."""
        return min(self.figures.get(name, ()), key=lambda f: f.value, default=None)

    def most(self, name: str) -> Figure | None:
        """The largest of a figure over the ranks that print it."""
        return max(self.figures.get(name, ()), key=lambda f: f.value, default=None)

    def last(self, name: str) -> Figure | None:
        """The figure as it was printed last."""
        found = self.figures.get(name)
        return found[-1] if found else None


class Line(NamedTuple):
    """One kind of line."""

    marker: str
    """What it begins with, as far as kvplan is concerned: a literal, found wherever it stands in a line."""
    pattern: str = ""
    """A regular expression that is matched from the marker on; no part of it may look back or nest repetitions."""
    use: Callable[[Run, Mapping[str, str], int], None] | None = None
    """What to do with the groups where their names do not say it: (run, groups, line number)."""
    starts: bool = False
    """Whether an engine that prints this is starting."""


class Share(NamedTuple):
    """One sum of the memory that an engine prints, and the terms of a plan that it stands for."""

    name: str
    said: Figure
    terms: tuple[str, ...]
    """Names of terms, or of the parts they belong to (``weights``, ``activation``, ``cuda_graph``, ``runtime``)."""
    computed: str = ""
    """How it follows from printed figures, where it is not printed itself."""


class Device(NamedTuple):
    """What a plan takes the device to be, for sums that the log leaves to its reader."""

    total: int
    budget: int
    graphs_charged: bool


class LogTable(NamedTuple):
    """The lines of one engine's log."""

    engine: str
    lines: tuple[Line, ...]
    result: tuple[str, ...]
    """Figures of which one at least makes a log worth comparing."""
    settle: Callable[[Run], None] | None = None
    """The engine's last word on a run, when all its lines are read."""
    shares: Callable[[Run, Device], list[Share]] | None = None
    """What the budget went to, as printed: together with the cache it adds up to the budget."""


def number(text: str, unit: str, line: int) -> Figure | None:
    """The figure behind printed digits; None where they are none.

    Args:
        unit: ``gib``, ``mib``, ``kib``, ``bytes``, ``int`` (tokens or a count) or ``float``.
    """
    digits = text.replace(",", "").strip()
    whole, _, fraction = digits.lstrip("-").partition(".")
    if len(digits) > _MOST_DIGITS or not (whole + fraction).isascii() or not (whole + fraction).isdigit():
        return None
    scale = _UNITS.get(unit)
    last = 10.0 ** -len(fraction)
    if scale is not None:
        exact = unit == "bytes" and not fraction
        return Figure(round(float(digits) * scale), 0 if exact else last * scale / 2, "bytes", line)
    if unit == "int":
        return Figure(int(float(digits)), 0, "tokens", line)
    return Figure(float(digits), last / 2, "number", line)


def take(run: Run, groups: Mapping[str, str | None], line: int) -> None:
    """Put named groups where their names say."""
    for name, text in groups.items():
        if text is None:
            continue
        if name.startswith("set__"):
            _, setting, kind = name.split("__")
            value = read_setting(kind, text)
            if value is not None:
                run.set(setting, value, line)
        elif "__" in name:
            figure, unit = name.rsplit("__", 1)
            run.figure(figure, text, unit, line)
        elif name == "gpu":
            run.gpus.append(text.strip())
        elif name == "version":
            run.texts["version"] = text.strip()
        else:
            run.text(name, text)


def read_setting(kind: str, text: str) -> Any:
    """A setting's value as its reader takes it; None where it cannot be read."""
    if kind == "flag":
        return text.strip().lower() in ("true", "1", "yes", "on")
    try:
        return READERS[kind](text.strip().strip("'\""), "log")
    except KvplanError:
        return None


def difference(whole: Figure, *parts: Figure) -> Figure:
    """`whole` less `parts`; their roundings add up."""
    left = whole.value - sum(p.value for p in parts)
    return whole._replace(value=left, half=whole.half + sum(p.half for p in parts))


MODULES = {
    "vllm": "vllm.log_lines",
    "sglang": "sglang.log_lines",
    "llama.cpp": "llama_cpp.log_lines",
    "tensorrt-llm": "tensorrt_llm.log_lines",
}
"""Engine -> the module with its `LogTable`, called ``TABLE``."""


def table_of(engine: str) -> LogTable:
    """The table that reads the logs of an engine; Ollama's are llama.cpp's."""
    name = MODULES["llama.cpp" if engine == "ollama" else engine]
    table: LogTable = import_module(f"kvplan.engines.{name}").TABLE
    return table


def tables() -> list[LogTable]:
    """The tables of all engines whose logs are read."""
    return [import_module(f"kvplan.engines.{module}").TABLE for module in MODULES.values()]


def pairs(text: str) -> dict[str, str]:
    """The settings in a printed dict (``{'model': 'x', 'tp': 2}``) or object (``ServerArgs(model='x', tp=2)``).

    Values stay as they are printed, quotes taken off; of a key that comes twice (inside a nested object) the first
    counts, which is the outer one's.
    """
    import re

    style = _DICT if text.lstrip().startswith("{") else _KEYWORDS
    found: dict[str, str] = {}
    for match in re.finditer(style, text):
        found.setdefault(match.group(1), match.group(2))
    return {key: value[1:-1] if value[:1] in "'\"" else value for key, value in found.items()}


_VALUE = r"""'[^'\\]*'|"[^"\\]*"|-?[\w./:\-]+"""
_KEYWORDS = rf"\b(\w+)=({_VALUE})"
_DICT = rf"'(\w+)': ({_VALUE}|\{{[^{{}}]*\}})"


def read_arguments(
    run: Run, grammar: Grammar, printed: Mapping[str, str], line: int, *, names: Mapping[str, str] | None = None
) -> None:
    """Settings that an engine prints by the names of its arguments, read by the grammar of its command line.

    Args:
        names: the argument that a printed key stands for, where it is called otherwise; a key with an empty name is
            left out.
    """
    from kvplan.engines.command_line import Word, read_words

    words: list[Word] = []
    known = _known_flags(grammar)
    for key, value in printed.items():
        name = (names or {}).get(key, key)
        flag = f"--{name.replace('_', '-')}"
        if not name or value in ("None", "") or (flag not in known and f"--no-{flag[2:]}" not in known):
            continue
        if value in ("True", "False"):
            if value == "True" or f"--no-{flag[2:]}" in known:
                words.append(Word(flag if value == "True" else f"--no-{flag[2:]}"))
        else:
            words += [Word(flag), Word(_plain(value))]
    reading = read_words(grammar, words)
    for setting, value in reading.settings.items():
        run.set(setting, value, line)
    run.text("model", reading.model)
    if reading.quantization is not None:
        run.text("weights", reading.quantization[1])
    run.warnings += [text for text in reading.warnings if text not in run.warnings]


def _known_flags(grammar: Grammar) -> set[str]:
    """Flags that mean something to kvplan."""
    own = {flag for option in grammar.options for flag in option.flags}
    more = {*grammar.aliases, *grammar.model, "--quantization", "--enable-dp-attention", "--ep-size"}
    return {flag for flag in own | more | set(grammar.unmodelled) if flag.startswith("--")}


def _plain(value: str) -> str:
    """A printed value as it is typed: a dict becomes JSON."""
    if not value.startswith("{"):
        return value
    import ast
    import json

    try:
        return json.dumps(ast.literal_eval(value))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value
