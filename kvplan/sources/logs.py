"""Start-up logs: which engine wrote one, and what it said.

A log may be large, binary or hostile: it is read in pieces up to `MOST_BYTES`, only lines with a known marker are
looked at, and of those no more than `MOST_LINES` and `MOST_TEXT`.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import IO, NamedTuple

from kvplan.engines.log_table import Figure, Line, LogTable, Run, Setting, tables, take
from kvplan.errors import InputError, printable

MOST_BYTES = 128 << 20
MOST_LINES = 20_000
MOST_TEXT = 16 << 20
"""Characters of all lines together that patterns see."""
_PIECE = 1 << 20
_LONGEST_LINE = 1 << 16
"""Characters of one line that a pattern sees, from its marker on."""
_BEFORE = 200
"""Bytes before a marker that are kept as its prefix."""
_COLOURS = re.compile(rb"\x1b\[[0-9;]{0,20}m")
_NVIDIA_SMI = Line("|   0  NVIDIA ", r"\|   0  (?P<gpu>NVIDIA [\w\- ]{2,40}?)  ")
"""The first GPU in the table that nvidia-smi prints."""


class Log(NamedTuple):
    """What one start of an engine said."""

    engine: str
    version: str
    """Empty where the log does not say."""
    model: str
    gpu: str
    run: Run
    starts: int
    """Starts with figures in the log; this is the last one."""
    warnings: tuple[str, ...]

    def figure(self, name: str) -> Figure | None:
        """A figure, of the rank that decides: the least of what the cache gets, the most of what is spent."""
        return (
            self.run.least(name)
            if name in ("kv", "kv_tokens", "concurrency", "blocks", "total")
            else self.run.most(name)
        )

    @property
    def settings(self) -> dict[str, Setting]:
        return self.run.settings


def read_log(path: str) -> Log:
    """The last start in a log file; ``-`` is standard input.

    Raises:
        InputError: it cannot be read, or no engine's start is in it.
    """
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            if sys.stdin is None:
                raise ValueError("it is closed")
            return _read(sys.stdin.buffer, name)
        with open(os.path.expanduser(path), "rb") as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode) and not file.isatty():
                raise ValueError("a device, which may never end")
            return _read(file, name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot read the log: {reason}", where=printable(name), hint="name a start-up log, or - for standard input"
        ) from None


def read_lines(stream: IO[bytes], name: str = "log") -> Log:
    """The same for an open stream of bytes."""
    return _read(stream, name)


class _Reader:
    """One pass over a log: every engine's lines at once."""

    def __init__(self) -> None:
        self.tables = tables()
        self.lines: dict[bytes, list[tuple[LogTable | None, Line, re.Pattern[str]]]] = {}
        for table in self.tables:
            for line in table.lines:
                self._add(table, line)
        self._add(None, _NVIDIA_SMI)
        self.runs: dict[str, list[Run]] = {table.engine: [Run()] for table in self.tables}
        self.hits = self.text = self.number = 0
        self.gpus: list[str] = []

    def _add(self, table: LogTable | None, line: Line) -> None:
        compiled = re.compile(line.pattern or re.escape(line.marker))
        self.lines.setdefault(line.marker.encode(), []).append((table, line, compiled))

    def piece(self, text: bytes) -> bool:
        """Read whole lines; False where there were too many of them."""
        if b"\x1b[" in text:
            text = _COLOURS.sub(b"", text)
        counted = 0
        for at, marker in self._hits(text):
            self.number += text.count(b"\n", counted, at)
            counted = at
            end = text.find(b"\n", at, at + _LONGEST_LINE)
            line = text[at : end if end >= 0 else at + _LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
            begin = max(text.rfind(b"\n", max(0, at - _BEFORE), at) + 1, at - _BEFORE, 0)
            self._line(marker, line, text[begin:at].decode("utf-8", "replace"))
            self.text += len(line)
            if self.hits > MOST_LINES or self.text > MOST_TEXT:
                return False
        self.number += text.count(b"\n", counted)
        return True

    def _hits(self, text: bytes) -> list[tuple[int, bytes]]:
        """(position, marker) of every marker in `text`, in order; no more than can be used."""
        found: list[tuple[int, bytes]] = []
        for marker in self.lines:
            at = text.find(marker)
            while at >= 0 and len(found) <= 2 * MOST_LINES:
                found.append((at, marker))
                at = text.find(marker, at + 1)
        return sorted(found)

    def _line(self, marker: bytes, text: str, prefix: str) -> None:
        for table, line, pattern in self.lines[marker]:
            match = pattern.match(text)
            if match is None:
                continue
            self.hits += 1
            groups = match.groupdict()
            if table is None:
                self.gpus.append(groups["gpu"])
                continue
            run = self._run(table, line)
            if run.closed:
                continue
            run.lines, run.prefix = run.lines + 1, prefix
            if line.use is not None:
                line.use(run, {k: v for k, v in groups.items() if v is not None and "__" not in k}, self.number + 1)
                take(run, {k: v for k, v in groups.items() if "__" in k}, self.number + 1)
            else:
                take(run, groups, self.number + 1)

    def _run(self, table: LogTable, line: Line) -> Run:
        """The run that a line belongs to: a new one where an engine starts after another has said its figures."""
        runs = self.runs[table.engine]
        if line.starts and (runs[-1].closed or _has_result(runs[-1], table)):
            runs.append(Run())
        return runs[-1]


def _has_result(run: Run, table: LogTable) -> bool:
    return bool(run.caches or run.refusals or any(name in run.figures for name in table.result))


def _read(stream: IO[bytes], name: str) -> Log:
    reader, warnings = _Reader(), []
    total, rest, complete = 0, b"", True
    for piece in _pieces(stream):
        total += len(piece)
        if total == len(piece) and not piece.strip(b"\0"):  # a device or a hole: there is no text to come
            break
        cut = (rest + piece).rfind(b"\n")
        text = rest + piece
        if cut < 0 and len(text) < _LONGEST_LINE:
            rest = text
            continue
        rest = text[cut + 1 :] if cut >= 0 and len(text) - cut <= _LONGEST_LINE else b""
        complete = reader.piece(text[: cut + 1] if rest or cut == len(text) - 1 else text)
        if not complete:
            warnings.append(f"the log says too much to be one start: it was read up to line {reader.number:,}")
            break
        if total >= MOST_BYTES:
            warnings.append(f"the log was read up to {MOST_BYTES >> 20} MiB")
            break
    if rest and complete:
        reader.piece(rest)
    return _chosen(reader, name, warnings, total)


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    """Pieces of a log, in UTF-8 whatever it was written in."""
    first = stream.read(_PIECE)
    decoder = None
    for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        if first.startswith(mark):
            decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while first:
        yield first if decoder is None else decoder.decode(first).encode("utf-8", "replace")
        first = stream.read(_PIECE)


def _chosen(reader: _Reader, name: str, warnings: list[str], total: int) -> Log:
    """The engine whose lines there are most of, and its last start with figures."""
    found: list[tuple[int, LogTable, Run, int]] = []
    for table in reader.tables:
        runs = reader.runs[table.engine]
        for run in runs:
            if table.settle is not None:
                table.settle(run)
        told = [run for run in runs if _has_result(run, table)]
        if told:
            found.append((sum(run.lines for run in told), table, told[-1], len(told)))
    if not found:
        looked = "'Available KV cache memory', 'max_total_num_tokens', 'llama_kv_cache: size' and their like"
        what = "is empty" if not total else f"holds no engine's start-up lines; looked for {looked}"
        raise InputError(
            what, where=printable(name), hint="the log of a start of vLLM, SGLang, llama.cpp, Ollama or TensorRT-LLM"
        )
    _, table, run, starts = max(found, key=lambda item: item[0])
    if starts > 1:
        warnings.append(f"the log holds {starts} starts; the last one is read")
    engine = run.texts.get("engine", table.engine)
    gpu = next(iter((*run.gpus, *reader.gpus)), "")
    model = run.texts.get("model") or run.texts.get("name") or run.texts.get("path") or ""
    return Log(engine, run.texts.get("version", ""), model, gpu, run, starts, (*warnings, *run.warnings))
