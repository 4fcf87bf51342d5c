"""Dockerfiles: what ENTRYPOINT and CMD of a stage start, with its ENV and ARG."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from kvplan.errors import InputError
from kvplan.sources.commands import raw
from kvplan.sources.commands.shell import Scope, split
from kvplan.sources.commands.starts import Finder, Start, installed_version

_BEGINS = re.compile(r"\s*(?:#\s*[a-z]+\s*=.*\n|#.*\n|\s*\n|ARG\s.*\n)*\s*FROM\s", re.IGNORECASE)
_HEREDOC = re.compile(r"<<-?([\"']?)([A-Za-z_][A-Za-z0-9_]*)\1")
_KEYED = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*=")


_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


def _value(scope: Scope, match: re.Match[str]) -> str:
    """What a variable of a RUN line stands for, as far as ARG and ENV say it."""
    value = scope.values.get(match.group(1) or match.group(2))
    return raw.plain(value) if isinstance(value, str) and len(value) < 200 else match.group()


class _Stage(NamedTuple):
    name: str
    image: str
    entry: tuple[str, ...] | None
    """None: that of the image."""
    words: tuple[str, ...]
    environment: dict[str, str]
    builds: str
    """What RUN lines do."""
    line: int
    own: bool = False
    """Whether the words are this stage's and not the ones it inherits."""


def is_dockerfile(text: str) -> bool:
    """Whether a text begins with FROM."""
    return _BEGINS.match(text) is not None


def find(text: str, finder: Finder, picked: str = "") -> tuple[list[Start], list[str]]:
    """(what the last stage starts, or every stage where one is picked; names of the stages that start something)."""
    stages = _stages(text, finder.name)
    found = [(stage, _starts(stage, finder)) for stage in stages]
    if not picked:
        found = found[-1:] if found and found[-1][1] else []
    return [s for _, starts in found for s in starts], [stage.name for stage in stages if _starts(stage, finder)]


def _starts(stage: _Stage, finder: Finder) -> list[Start]:
    entry, words = stage.entry, stage.words
    if entry is not None and entry[:1] == (_SHELL,):
        words = ()  # a shell form takes no arguments
    first = _unshelled(entry) if entry is not None else None
    starts = finder.image(stage.image, first, _unshelled(words), stage.environment, line=stage.line)
    return [
        start._replace(name=stage.name, version=start.version or installed_version(stage.builds, start.grammar))
        for start in starts
    ]


_SHELL = "\0shell"
"""In front of the text of a shell form."""


def _unshelled(words: tuple[str, ...]) -> list[str]:
    return ["sh", "-c", *words[1:]] if words[:1] == (_SHELL,) else list(words)


def _stages(text: str, name: str) -> list[_Stage]:
    stages: list[_Stage] = []
    arguments = Scope()
    scope = Scope()
    for line, keyword, rest in _instructions(text):
        if keyword == "FROM":
            words = [w for w in split(rest, name, arguments, line=line) if not w.startswith("--")]
            if not words:
                raise InputError("FROM names no image", where=f"{name}:{line}", hint="FROM IMAGE [AS NAME]")
            label = words[2] if len(words) > 2 and words[1].lower() == "as" else str(len(stages))
            base = next((s for s in stages if s.name == words[0]), None)
            scope = Scope(base.environment if base else None)
            stages.append(
                base._replace(name=label, environment=dict(base.environment), line=line, own=False) if base
                else _Stage(label, words[0], None, (), {}, "", line)
            )  # fmt: skip
        elif keyword == "ARG":
            for word in split(rest, name, scope if stages else arguments, line=line):
                key, equals, value = word.partition("=")
                if not equals:
                    value = str(arguments.values.get(key, raw.unknown(f"${key}")))
                (scope if stages else arguments).assign(key, value)
        elif stages:
            stages[-1] = _applied(stages[-1], keyword, rest, scope, name, line)
    return stages


def _applied(stage: _Stage, keyword: str, rest: str, scope: Scope, name: str, line: int) -> _Stage:
    if keyword == "ENV":
        if _KEYED.match(rest):
            pairs = [word.partition("=")[::2] for word in split(rest, name, scope, line=line)]
        else:
            key, _, value = rest.partition(" ")
            pairs = [(key, " ".join(split(value, name, scope, line=line)))]
        for key, value in pairs:
            scope.assign(key, value)
        return stage._replace(environment={**stage.environment, **dict(pairs)})
    if keyword == "ENTRYPOINT":
        return stage._replace(entry=_form(rest, name, line), words=stage.words if stage.own else (), line=line)
    if keyword == "CMD":
        return stage._replace(words=_form(rest, name, line), line=line, own=True)
    if keyword == "RUN":
        done = _VARIABLE.sub(lambda match: _value(scope, match), rest[:50_000])
        return stage._replace(builds=raw.bounded(stage.builds[-100_000:] + "\n" + done[:50_000]))
    return stage


def _form(text: str, name: str, line: int) -> tuple[str, ...]:
    """The words of an exec form, or the text of a shell form behind `_SHELL`."""
    if text.startswith("["):
        try:
            words = json.loads(text)
        except (ValueError, RecursionError):
            words = None
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return tuple(raw.clean(word) for word in words)
        if text.rstrip().endswith("]"):
            raise InputError(
                "is no JSON list of texts", where=f"{name}:{line}", hint='["vllm", "serve", "MODEL"], in double quotes'
            )
    return (_SHELL, text)


def _instructions(text: str) -> list[tuple[int, str, str]]:
    """(line, keyword in capitals, the rest with its continuation lines joined)."""
    found: list[tuple[int, str, str]] = []
    lines = text.split("\n")
    escape = "`" if re.match(r"(?:#[^\n]*\n)*#\s*escape\s*=\s*`", text) else "\\"
    at = 0
    while at < len(lines):
        first = at + 1
        parts: list[str] = []
        while at < len(lines):
            line = lines[at].rstrip("\r \t")
            at += 1
            if line.lstrip().startswith("#") or (parts and not line.strip()):
                if not parts:
                    break
                continue
            if line.endswith(escape):
                parts.append(line[:-1])
                continue
            parts.append(line)
            break
        joined = " ".join(part.strip() for part in parts).strip()
        if not joined:
            continue
        keyword, _, rest = joined.partition(" ")
        keyword = keyword.upper()
        if keyword in ("RUN", "COPY", "ADD"):
            for match in _HEREDOC.finditer(rest):
                while at < len(lines) and lines[at].strip() != match.group(2):
                    at += 1
                at += 1
        found.append((first, keyword, rest.strip()))
    return found
