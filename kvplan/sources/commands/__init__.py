"""Engine command lines as input: pasted, or inside a script, a Dockerfile, a compose file, a manifest or a unit.

`read_command` finds the place that starts an engine and turns its words into settings, through the engine's own
`kvplan.engines.command_line.Grammar`. Nothing is run, and no variable or file of this machine fills a gap.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvplan.errors import InputError, KvplanError, UnknownNameError, printable
from kvplan.sources.commands import raw
from kvplan.sources.commands.command import LINE, Command, Report, at_source
from kvplan.sources.commands.files import holds_command, read_text, split_name

if TYPE_CHECKING:
    from kvplan.engines.command_line import Reading, Word
    from kvplan.sources.commands.starts import Finder, Start

__all__ = ["Command", "Report", "is_command", "read_command"]

_PROMPT = re.compile(r"^[ \t]*[$%\u276f][ \t]+(?=\S)", re.MULTILINE)
"""What a terminal prints in front of a command that was copied with it."""
MAX_LINE = 200_000
"""Characters of a pasted command line."""
MAX_WORDS = 20_000
"""Words of one command; real ones have a hundred."""
_TEMPLATE = re.compile(r"\{\{-?\s*[.$(A-Za-z][^{}]{0,500}\}\}")
"""A place that Helm (or Go) fills in."""
_PROGRAMS = "vllm serve, python -m sglang.launch_server, trtllm-serve, llama-server and ollama run are known"


def is_command(text: str) -> bool:
    """Whether `text` is a command line or names a file with one, rather than a model."""
    return _is_line(text) or holds_command(text)


def _is_line(text: str) -> bool:
    """Whether a text with blanks in it is no file's name."""
    return any(c.isspace() for c in text.strip()) and not os.path.isfile(split_name(text)[0])


Opened = dict[tuple[str, str], "tuple[Finder, list[Start], list[str]]"]
"""What files start, for whoever picks from one file again and again: `read_command` fills it."""


def read_command(text: str, opened: Opened | None = None) -> Command:
    """The command in a pasted line, or in the file `text` names (``FILE#NAME`` picks one of several).

    Args:
        opened: files that were read before and have not changed since.

    Raises:
        InputError: no engine is started, or more than one and none was picked; text that cannot be read; a model
            that is not said.
    """
    from kvplan.sources.commands.starts import Finder

    if _is_line(text):
        if len(text) > MAX_LINE:
            raise InputError(f"is longer than {MAX_LINE:,} characters", where=LINE, hint="put it in a file")
        finder = Finder(LINE)
        found = finder.script(_PROMPT.sub("", raw.clean(text)), {})
        if not found:
            _refuse_name(text)
            raise InputError(f"starts no engine: {printable(' '.join(text.split()), 60)}", where=LINE, hint=_PROGRAMS)
        return _command(_only(found, LINE, ""), finder, LINE, "")
    path, picked = split_name(text)
    name = printable(path, 200)
    whole = path.lower().endswith((".yaml", ".yml"))
    key = (os.path.abspath(path), "" if whole else picked)
    if opened is None or key not in opened:
        finder = Finder(name)
        entry = (finder, *starts_in(read_text(path), path, finder, picked))
        opened = {key: entry} if opened is None else opened
        opened[key] = entry
    finder, found, names = opened[key]
    start = _only(found, name, picked, names)
    source = f"{name}#{start.name}" if picked else name
    try:
        return _command(start, finder, source, os.path.dirname(path) or ".")
    except KvplanError as error:
        raise at_source(error, source) from None


def _refuse_name(text: str) -> None:
    """A model's name with blanks in it, where a command line was looked for.

    Raises:
        UnknownNameError: it is one; the hint has it as the catalog does.
    """
    from kvplan.catalog import resolve_model_name

    words = text.split()
    known = resolve_model_name("-".join(words)) if len(words) < 6 else None
    if known is not None:
        raise UnknownNameError("model", " ".join(words), [], more=f"did you mean {known[0]}?")


def starts_in(text: str, path: str, finder: Finder, picked: str) -> tuple[list[Start], list[str]]:
    """(starts in a file, the names of what could be picked in it)."""
    from kvplan.sources.commands import compose, dockerfile, helm, kubernetes, served, unit

    if path.lower().endswith((".yaml", ".yml")):
        from kvplan.sources.commands.documents import read_documents

        documents = read_documents(text, finder.name)
        if kubernetes.is_manifest(documents):
            found, names = kubernetes.find(documents, finder)
            found = found or [start for part in documents for start in served.embedded(part, finder)]
            if found or names:
                return found, [*names, *(start.name for start in found if start.name not in names)]
            return helm.find(documents, finder)  # an operator's own kind of object
        if compose.is_compose(documents):
            return compose.find(documents, finder, os.path.dirname(path) or ".")
        if served.is_known(documents):
            return served.find(documents, finder)
        return helm.find(documents, finder)
    if dockerfile.is_dockerfile(text):
        return dockerfile.find(text, finder, picked)
    if unit.is_unit(text):
        return unit.find(text, finder)
    from kvplan.sources.commands.starts import installed_version

    found = [
        start._replace(name=str(start.line), version=start.version or installed_version(text, start.grammar))
        for start in finder.script(text, {})
    ]
    return found, [start.name for start in found]


def _only(found: Sequence[Start], name: str, picked: str, names: Sequence[str] = ()) -> Start:
    """The one start that is meant."""
    listed = _names([start.name for start in found])
    there = _names(names)
    hint = f"engines start in: {listed}" if listed else f"there are: {there}" if there else _PROGRAMS
    if picked:
        chosen = [s for s in found if picked in (s.name, s.owner, s.name.rpartition("/")[2])]
        if not chosen:
            what = "starts no engine" if picked in names else "is not in it"
            raise InputError(f"{printable(picked, 60)!r} {what}", where=name, hint=hint)
        found = chosen
    if not found:
        raise InputError("starts no engine that is known", where=name, hint=hint)
    if len({(s.grammar.engine, s.words, s.name) for s in found}) > 1:
        engines = ", ".join(_shown(start) for start in found[:12])
        hint = f"pick one: {name}#{found[0].name}" if found[0].name and name != LINE else "paste one of them"
        raise InputError(f"starts {len(found)} engines: {engines}", where=name, hint=hint)
    return found[0]


def _names(names: Sequence[str]) -> str:
    """The first names of a list, each once."""
    return ", ".join(printable(name, 60) for name in [*dict.fromkeys(filter(None, names))][:20])


def _shown(start: Start) -> str:
    return f"{printable(start.name, 60)} ({start.grammar.engine})" if start.name else start.grammar.engine


def _command(start: Start, finder: Finder, source: str, base: str) -> Command:
    """A start with its words read."""
    from kvplan.engines.command_line import read_words
    from kvplan.sources.commands.places import locate

    grammar = start.grammar
    if len(start.words) > MAX_WORDS:
        raise InputError(f"has more than {MAX_WORDS:,} words", where=source, hint="is it the right file?")
    environment = {name: raw.word(_templated(value)) for name, value in start.environment.items()}
    words = [raw.word(_templated(text)) for text in start.words]
    reading = read_words(grammar, words, environment)
    notes = list(start.notes)
    extra = _config_words(reading, start, finder, base, notes)
    if extra:
        more = [raw.word(text) for text in extra]
        reading = read_words(grammar, [*words, *more] if grammar.config_wins else [*more, *words], environment)
    model = reading.model or (start.model and raw.plain(start.model)) or ""
    if not model:
        what = "`ollama run NAME`" if grammar.engine == "ollama" else "add it to the command"
        read = "".join(f" ({note})" for note in notes if note not in start.notes)
        raise InputError(
            f"{grammar.engine} is started without a model{read}", where=source, hint=f"name the model: {what}"
        )
    if _TEMPLATE.search(model):
        hint = "render it first: helm template CHART > manifest.yaml"
        raise InputError(f"the model is {printable(model, 60)}, which a template fills in", where=source, hint=hint)
    place, note = locate(model, base)
    if grammar.engine == "ollama" and "/" not in place:
        _in_library(model, place)
    _count_gpus(reading, start, environment)
    from kvplan.sources.commands.strangers import judge

    unknown = judge(reading, grammar, start.version) if reading.strange else tuple(reading.unknown)
    warnings = dict.fromkeys((*reading.warnings, *filter(None, (note,)), *notes))
    return Command(
        engine=f"{grammar.engine}@{start.version}" if start.version else grammar.engine, model=place, source=source,
        settings=reading.settings, typed=reading.typed, problems=reading.problems, ignored=tuple(reading.ignored),
        unknown=unknown, warnings=tuple(warnings),
        quantization=reading.quantization, assumed=reading.assumed, gpu=start.gpu,
        changes=reading.changes,
    )  # fmt: skip


def _templated(text: str) -> str:
    """A raw word in which every place of a template is unknown."""
    return _TEMPLATE.sub(lambda m: raw.unknown(m.group(), "is filled in by `helm template CHART`"), text)


def _in_library(model: str, place: str) -> None:
    """Refuse a name of Ollama's library that the catalog does not know, with the way past."""
    from kvplan.catalog import resolve_model_name
    from kvplan.engines.ollama_command import SHOW

    if resolve_model_name(place) is None:
        shown = printable(model, 60)
        raise InputError(
            f"the catalog knows no model that Ollama's library calls {shown!r}", hint=SHOW.replace("NAME", shown)
        )


def _config_words(reading: Reading, start: Start, finder: Finder, base: str, notes: list[str]) -> list[str]:
    """The flags in the YAML file that a flag names, where that file is here or the source writes it."""
    grammar = start.grammar
    named = [(flag, reading.other[flag]) for flag in grammar.config if reading.other.get(flag)]
    if not named:
        return []
    flag, path = named[-1]
    written = {**finder.files, **{os.path.basename(name): text for name, text in finder.files.items()}}
    text = written.get(path, written.get(os.path.basename(path)))
    local = os.path.join(base, os.path.expanduser(path))
    if text is None and os.path.isfile(local):
        text = read_text(local)
    if text is None:
        notes.append(f"{flag} {printable(path, 80)} is not here: what it sets is not read")
        return []
    from kvplan.sources.commands.documents import read_documents

    documents = read_documents(text, printable(path, 80))
    return _flattened(documents[0], "", 0) if documents and isinstance(documents[0], dict) else []


def _flattened(settings: dict[str, object], prefix: str, depth: int) -> list[str]:
    """``{a: {b: 1}, c: true}`` -> ``--a.b 1 --c``."""
    found: list[str] = []
    for key, value in settings.items():
        flag = f"{prefix or '--'}{key.replace('_', '-')}"
        if isinstance(value, dict) and depth < 8:
            found += _flattened(value, f"{flag}.", depth + 1)
        elif isinstance(value, list):
            found.append(f"{flag}={','.join(item for item in value if isinstance(item, str))}")
        elif isinstance(value, str) and value.lower() in ("true", "yes", "on"):
            found.append(flag)
        elif isinstance(value, str):
            found.append(f"{flag}={value}")
    return found


def _count_gpus(reading: Reading, start: Start, environment: Mapping[str, Word]) -> None:
    """The GPUs of the deployment, where the source says how many there are."""
    gpus = start.gpus
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        value = environment.get(name, raw.word(""))
        devices = [d for d in value.split(",") if d.strip().isdecimal() or d.strip().startswith(("GPU-", "MIG-"))]
        if devices and not value.missing and (gpus is None or len(devices) < gpus[0]):
            gpus = (len(devices), f"{name}={printable(value, 40)}")
    if gpus is not None and "gpus" not in reading.settings:
        nodes = max(reading.nodes, start.nodes)
        reading.set("gpus", gpus[0] * nodes, f"{gpus[1]}, {nodes} nodes" if nodes > 1 else gpus[1])
