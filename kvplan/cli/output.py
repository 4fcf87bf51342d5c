"""Where an answer goes, in which format and colour; warnings and notes go to stderr.

Data is written to stdout or to ``-o FILE``; a reader that closes the pipe early is no error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from kvplan.errors import InputError, UnknownNameError, printable

if TYPE_CHECKING:
    from kvplan.render.grid import Document

WRITERS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "json": ("jsonout", (".json",), ()),
    "markdown": ("markdown", (".md", ".markdown"), ()),
    "text": ("text", (".txt",), ("color", "unicode")),
    "csv": ("csvout", (".csv",), ()),
    "jsonl": ("jsonrows", (".jsonl",), ()),
    "parquet": ("parquet", (".parquet",), ()),
    "html": ("html", (".html", ".htm"), ("foot",)),
    "svg": ("svgout", (".svg",), ()),
    "table": ("table", (), ("width", "color", "unicode")),
    "github": ("check_github", (), ()),
    "junit": ("check_junit", (".xml",), ()),
    "sarif": ("check_sarif", (".sarif",), ()),
    "gitlab": ("check_gitlab", (), ()),
}
"""format -> (module of `kvplan.render`, suffixes of its files, what its `draw` is told besides the document).

A module has ``draw(document)`` for reports, ``lines(names, rows)`` for finished rows, ``stream(file, names, types,
head)`` for rows that come in blocks (`kvplan.render.rows`), and those for `check` ``draw(result, base)``. A verb says
in `formats` which of them it writes."""
FORMATS = ("table", "text", "json", "markdown", "html")
PICTURED = (*FORMATS, "svg")
"""Of a verb whose answer has pictures."""
ROWS = ("csv", "jsonl")
"""Of a verb whose answer is rows."""
_OTHERS = {
    **dict.fromkeys((".pdf", ".ps", ".eps"), ("html", "a browser prints .html to PDF")),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff"), ("svg", "pictures are .svg")),
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pptx", ".ppt", ".odp"), ("html", "word processors open .html")),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), ("csv", "spreadsheets open .csv")),
    **dict.fromkeys((".zip", ".gz", ".xz", ".zst", ".bz2", ".7z"), ("", "write it plainly, then compress it")),
}  # fmt: skip
"""Suffixes of files that no program would open as text -> (the format that is nearest, what is done with it)."""
_COLORS = ("auto", "always", "never")
_WIDEST = 500
"""Columns beyond which a line is no easier to read, and a bar takes long to draw."""
_LONGEST = 2000
"""Characters of a message on stderr; a longer one comes from a hostile name."""


class Output:
    """What the output options of one call amount to.

    Args:
        format: ``--format``, None where it was not given.
        json: ``--json``.
        file: ``-o``; None or ``-`` is stdout.
        color: ``--color``, None where it was not given.
        quiet: ``--quiet``.
        formats: the formats that the verb can write.

    Raises:
        UnknownNameError: a format or a colour mode that does not exist.
        InputError: ``--json`` beside another format.
    """

    def __init__(
        self,
        *,
        format: str | None = None,
        json: bool = False,
        file: str | None = None,
        color: str | None = None,
        quiet: bool = False,
        formats: Sequence[str] = FORMATS,
    ) -> None:
        if format is not None and format not in formats:
            known = f"known: {', '.join(formats)}"
            raise UnknownNameError("output format", format, list(formats), where="--format", more=known)
        if json and "json" not in formats:
            raise InputError("this answer is no data", where="--json", hint=f"it is written as {', '.join(formats)}")
        if json and format not in (None, "json"):
            raise InputError(f"contradicts --format {format}", where="--json", hint="give one of them")
        if color is not None and color not in _COLORS:
            raise UnknownNameError("colour mode", color, [], where="--color", more=f"type {', '.join(_COLORS)}")
        if file == "":
            raise InputError("needs a file name", where="-o", hint="-o plan.json; - is stdout")
        if format is None and not json and _suffix(file) in _OTHERS:
            near, hint = _OTHERS[_suffix(file)]
            can = f"this answer can be {', '.join(_suffixes(formats))}"
            hint = f"{hint}; {can}" if near in ("", *formats) else can
            raise InputError(f"nothing is written as {_suffix(file)}", where="-o", hint=hint)
        elsewhere = _suffixes(tuple(WRITERS)).get(_suffix(file))
        if format is None and not json and elsewhere not in (None, *formats):
            can = f"it can be {', '.join(_suffixes(formats))}"
            raise InputError(f"this answer is not written as {_suffix(file)}", where="-o", hint=can)
        self.file = None if file == "-" else file
        if self.file is not None:
            from kvplan.cli.place import check_place

            check_place(self.file)
        self.quiet = quiet
        self.color = _wants_color(color, None if self.file else sys.stdout)
        self.format = "json" if json else format or self._default_format(formats)

    def _default_format(self, formats: Sequence[str]) -> str:
        if self.file is not None:
            return _suffixes(formats).get(_suffix(self.file), "text")
        return "table" if _is_terminal(sys.stdout) else "text"

    def emit(
        self, document: Document | Callable[[], Document], payload: Mapping[str, Any], *, warnings: Sequence[str] = ()
    ) -> None:
        """Write the answer: `payload` as JSON, or `document` drawn in the format that was asked for.

        A function in place of the document is called only where something is drawn. `warnings` go to
        stderr, and into whatever is read away from the terminal: Markdown and files.
        """
        if self.format == "json":
            self.emit_json(payload)
        else:
            self.write(self.drawn(document() if callable(document) else document, warnings))
        for warning in warnings:
            self.warn(warning)

    def emit_json(self, payload: Mapping[str, Any]) -> None:
        """Write `payload` as JSON, whatever the format; for verbs whose answer is JSON by nature."""
        from kvplan.render.jsonout import write

        self.write(write(payload))

    @property
    def pictured(self) -> bool:
        """Whether pictures are drawn in this format, so that a document should have them."""
        return self.format in ("table", "html", "svg")

    @property
    def unicode(self) -> bool:
        """Whether more than ASCII may be drawn."""
        return self.file is not None or _speaks_unicode(sys.stdout)

    def drawn(self, document: Document, warnings: Sequence[str] = ()) -> str:
        """`document` in the chosen format, which is not JSON."""
        if warnings and self.format != "svg" and (self.file is not None or self.format in ("markdown", "html")):
            from kvplan.render.grid import Warnings

            document = [*document, Warnings(warnings)]
        return draw(self.format, document, color=self.color, unicode=self.unicode)

    def write(self, text: str) -> None:
        """Put `text` on stdout or into the file, whole or not at all.

        Raises:
            InputError: the file or the stream cannot be written.
        """
        if self.file is None:
            _write_stdout(text)
            return
        from kvplan.cli.place import write_file

        write_file(self.file, text)
        self.note(f"wrote {self.file}")

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Stdout or the file, for an answer that comes bit by bit; the file appears whole or not at all.

        Raises:
            InputError: the file or the stream cannot be written.
        """
        if self.file is not None:
            from kvplan.cli.place import replacing

            with replacing(self.file) as file:
                yield file
            self.note(f"wrote {self.file}")
            return
        if sys.stdout is None:
            raise InputError("standard output is closed", hint="write to a file with -o FILE")
        sys.stdout.flush()
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            mute_stdout()
        except OSError as error:
            mute_stdout()
            raise InputError(f"cannot write to standard output: {error.strerror}", hint="is the disk full?") from None

    def warn(self, text: str) -> None:
        """A warning on stderr, unless ``--quiet``."""
        if not self.quiet:
            say(text, head="warning", color=_wants_color(None, sys.stderr))

    def note(self, text: str) -> None:
        """A remark on stderr, unless ``--quiet``."""
        if not self.quiet:
            say(text)


def _suffix(path: str | None) -> str:
    return os.path.splitext(path or "")[1].lower()


def _suffixes(formats: Sequence[str]) -> dict[str, str]:
    """Suffix of a file -> the one of `formats` that it stands for."""
    return {suffix: name for name, (_, suffixes, _) in WRITERS.items() if name in formats for suffix in suffixes}


def writer(name: str, needs: str = "draw") -> Any:
    """The module that writes a format.

    Args:
        needs: the function that is wanted of it.

    Raises:
        UnknownNameError: `WRITERS` has no such format.
        InputError: its module has no such function: not every answer can be written so.
    """
    from importlib import import_module

    if name not in WRITERS:
        raise UnknownNameError("output format", name, list(WRITERS), where="--format")
    module = import_module(f"kvplan.render.{WRITERS[name][0]}")
    if not hasattr(module, needs):
        raise InputError(f"this answer is not written as {name}", where="--format", hint="--format json has all of it")
    return module


def draw(name: str, document: Document, *, color: bool = False, unicode: bool = True) -> str:
    """`document` in the format `name`."""
    told: dict[str, Any] = {"color": color, "unicode": unicode}
    wanted = WRITERS[name][2] if name in WRITERS else ()
    if "width" in wanted:
        told["width"] = terminal_width()
    if "foot" in wanted:
        from kvplan._version import __version__

        told["foot"] = f"kvplan {__version__}"
    text: str = writer(name).draw(document, **{key: told[key] for key in wanted})
    return text


def of(ctx: Any) -> Output:
    """The output of the verb that runs in this context."""
    output: Output = ctx.obj
    return output


def say(text: str, *, head: str = "", color: bool = False) -> None:
    """One line on stderr; a stderr that is closed or broken is no error."""
    line = printable(text, _LONGEST)
    if head:
        styles = {"error": "\033[1;31m", "warning": "\033[33m", "hint": "\033[36m"}
        line = f"{styles[head]}{head}:\033[0m {line}" if color else f"{head}: {line}"
    if sys.stderr is None:  # print() would take standard output instead
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def report(message: str, hint: str | None) -> None:
    """An error and its hint on stderr."""
    color = _wants_color(None, sys.stderr)
    say(message, head="error", color=color)
    if hint:
        say(hint, head="hint", color=color)


def terminal_width() -> int:
    """Columns to draw a table in: ``COLUMNS``, the terminal's, or 80."""
    from shutil import get_terminal_size

    return min(max(get_terminal_size((80, 24)).columns, 20), _WIDEST)


def _write_stdout(text: str) -> None:
    stream = sys.stdout
    if stream is None:
        raise InputError("standard output is closed", hint="write to a file with -o FILE")
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        mute_stdout()
    except OSError as error:
        mute_stdout()
        raise InputError(f"cannot write to standard output: {error.strerror}", hint="is the disk full?") from None


def mute_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's last flush cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _speaks_unicode(stream: TextIO | None) -> bool:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        "─█▲".encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def _wants_color(mode: str | None, stream: TextIO | None) -> bool:
    """Colour or not: the flag decides, then ``NO_COLOR``, ``FORCE_COLOR``, ``TERM``, the terminal."""
    if mode in ("always", "never"):
        return mode == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if stream is None:
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and _is_terminal(stream)
