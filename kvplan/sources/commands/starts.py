"""Where a command starts an engine: through wrappers, shells and ``docker run``, down to the engine's own words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kvplan.engines.command_line import Grammar, grammars
from kvplan.sources.commands import raw
from kvplan.sources.commands.script import Script
from kvplan.sources.commands.shell import Scope
from kvplan.sources.commands.wrappers import (
    CONTAINER_SWITCHES,
    CONTAINERS,
    SHELLS,
    WRAPPERS,
    past_options,
)

MAX_DEPTH = 8
"""How many wrappers deep an engine may stand."""
_VERSION = re.compile(r"v?([0-9]+\.[0-9]+(?:\.[0-9]+)?)(?:[.-]?post[0-9]+)?(?![0-9.]*(?:rc|a|b|dev)[0-9])")
_HANDED_ON = {"dynamo.vllm": "vllm.entrypoints.openai.api_server", "dynamo.sglang": "sglang.launch_server"}
"""Modules of NVIDIA Dynamo (``components/src/dynamo``) that hand an engine's own flags on to it."""
_INSTALLED = re.compile(r"\b(vllm|sglang|tensorrt[-_]llm)(?:\[[a-z,]*\])?==([0-9]+\.[0-9]+(?:\.[0-9]+)?)\b")


class Start(NamedTuple):
    """One place where an engine is started."""

    grammar: Grammar
    words: tuple[str, ...]
    """Raw words after the engine's name."""
    environment: dict[str, str]
    line: int = 1
    name: str = ""
    """What picks it among others: the container, the service, the line of a script."""
    owner: str = ""
    """What picks it too: the Deployment of a container, the last part of a long name."""
    version: str = ""
    """The engine's version, where the name of an image or an installation says it."""
    gpus: tuple[int, str] | None = None
    """(GPUs that it gets, what says so)."""
    gpu: str = ""
    """The accelerator, as a node's label calls it."""
    nodes: int = 1
    """Machines that share the model."""
    model: str = ""
    """The model, where something besides the words names it."""
    files: tuple[tuple[str, str], ...] = ()
    """(path, text) of files that the same source writes."""
    notes: tuple[str, ...] = ()


class Finder:
    """Finds what a command starts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.grammars = grammars()
        self.files: dict[str, str] = {}

    def script(
        self, text: str, environment: dict[str, str], arguments: Sequence[str] | None = None,
        *, line: int = 1, depth: int = 0,
    ) -> list[Start]:  # fmt: skip
        """What a shell script starts.

        Args:
            arguments: ``$0``, ``$1``, ... of the script; None: not known.
        """
        scope = Scope(environment)
        if arguments is not None:
            places = list(arguments[1:])
            scope.values |= {str(n): value for n, value in enumerate(arguments)}
            scope.values |= {"@": places, "*": places, "#": str(len(places))}
        script = Script(text, self.name, scope, line=line)
        self.files.update(script.files)
        found: list[Start] = []
        installs = text if len(text) < 100_000 else ""
        for command in script.commands:
            found += self.command(list(command.words), command.environment, line=command.line, depth=depth)
            if "install" in command.words or "add" in command.words:
                installs += "\n" + raw.plain(" ".join(command.words))[:2000]
        versions = {start.grammar.engine: installed_version(installs, start.grammar) for start in found}
        found = [start._replace(version=start.version or versions[start.grammar.engine]) for start in found]
        return self._one_ollama(found)

    def command(self, words: list[str], environment: dict[str, str], *, line: int = 1, depth: int = 0) -> list[Start]:
        """What the words of one command start; no more than one place, unless they hold a script."""
        if not words or depth > MAX_DEPTH:
            return []
        own = self._own(words)
        if own is not None:
            return [Start(own[0], tuple(own[1]), environment, line)]
        program, rest = raw.plain(words[0]).rsplit("/", 1)[-1], words[1:]
        if program == "env":
            return self._env(rest, environment, line, depth)
        if program in SHELLS:
            return self._shell(rest, environment, line, depth)
        if program == "eval":
            return self.script(" ".join(rest), environment, line=line, depth=depth + 1)
        if program in CONTAINERS:
            return self._container(rest, line, depth)
        if program == "tmux":
            texts = [word for word in rest if " " in word]
            return self.script(texts[-1], environment, line=line, depth=depth + 1) if texts else []
        wrapper = WRAPPERS.get(program)
        if wrapper is None:
            return []
        inner = past_options(rest, wrapper)
        for word in rest[: len(rest) - len(inner)]:
            name, equals, value = word.partition("=")
            if equals and name.isidentifier():
                environment = {**environment, name: value}
        tool, pin, version = inner[0].partition("@") if inner and program in ("uvx", "pipx", "uv") else ("", "", "")
        if pin and version:  # uvx vllm@0.15.0 serve MODEL
            inner = [tool, *inner[1:]]
        found = self.command(inner, environment, line=line, depth=depth + 1)
        said = " ".join([*rest[: len(rest) - len(inner)], f"{tool}=={version}" if pin else ""])
        return [s._replace(version=s.version or installed_version(raw.plain(said), s.grammar)) for s in found]

    def _own(self, words: list[str]) -> tuple[Grammar, list[str]] | None:
        """(grammar, words after the engine's name), where the first words are an engine."""
        program = words[0].rsplit("/", 1)[-1]
        if re.fullmatch(r"python[0-9.]*(?:\.exe)?", program):
            return self._python(words[1:])
        for grammar in self.grammars:
            subcommands = grammar.programs.get(program)
            if subcommands is None:
                continue
            if not subcommands:
                return grammar, words[1:]
            if len(words) > 1 and words[1] in subcommands:
                return grammar, words[2:]
            if "" in subcommands and len(words) > 1:
                return grammar, words[1:]
        return None

    def _python(self, words: list[str]) -> tuple[Grammar, list[str]] | None:
        """The same behind ``python``: ``-m MODULE``, or the path of a program."""
        at = 0
        while at < len(words) and words[at].startswith("-"):
            if words[at] == "-m" and at + 1 < len(words):
                module = _HANDED_ON.get(words[at + 1], words[at + 1])
                for grammar in self.grammars:
                    if module in grammar.modules:
                        return grammar, words[at + 2 :]
                return self._own([module, *words[at + 2 :]]) if module in ("vllm", "sglang") else None
            at += 2 if words[at] in ("-W", "-X") else 1
        return self._own(words[at:]) if at < len(words) and "python" not in words[at] else None

    def _env(self, words: list[str], environment: dict[str, str], line: int, depth: int) -> list[Start]:
        environment, at = dict(environment), 0
        while at < len(words):
            name, equals, value = words[at].partition("=")
            if words[at] in ("-i", "-", "--ignore-environment"):
                environment = {}
            elif words[at] in ("-u", "--unset", "-C", "--chdir"):
                if words[at] in ("-u", "--unset"):
                    environment.pop(words[at + 1] if at + 1 < len(words) else "", None)
                at += 1
            elif equals and name.isidentifier():
                environment[name] = value
            elif words[at] != "--" and not words[at].startswith("-"):
                break
            at += 1
        return self.command(words[at:], environment, line=line, depth=depth + 1)

    def _shell(self, words: list[str], environment: dict[str, str], line: int, depth: int) -> list[Start]:
        at = 0
        while at < len(words) and words[at].startswith(("-", "+")):
            if words[at] == "-o":
                at += 1
            elif re.fullmatch(r"-[a-z]*c[a-z]*", words[at]):
                rest = words[at + 1 :]
                return self.script(rest[0], environment, rest[1:], line=line, depth=depth + 1) if rest else []
            at += 1
        return []

    def _container(self, words: list[str], line: int, depth: int) -> list[Start]:
        """``docker run [options] IMAGE [words]``, or ``docker exec [options] CONTAINER words``."""
        while words and (words[0] in ("container", "--remote") or words[0].startswith("--context=")):
            words = words[1:]
        if not words or words[0] not in ("run", "create", "exec"):
            return []
        environment: dict[str, str] = {}
        entry: list[str] | None = None
        gpus: tuple[int, str] | None = None
        at = 1
        while at < len(words) and words[at].startswith("-"):
            option, equals, value = words[at].partition("=")
            at += 1
            if option in CONTAINER_SWITCHES or (not option.startswith("--") and set(option[1:]) <= set("ditPq")):
                continue
            if not option.startswith("--") and len(option) > 2 and not equals:
                option, value = option[:2], option[2:]
            elif not equals:
                value, at = (words[at] if at < len(words) else ""), at + 1
            elif not option.startswith("--") and len(option) > 2:
                option, value = option[:2], f"{option[2:]}={value}"
            if option in ("-e", "--env"):
                name, has_value, content = value.partition("=")
                environment[name] = content if has_value else raw.unknown(f"${name}")
            elif option == "--entrypoint":
                entry = [value] if value else None
            elif option in ("--gpus", "--device"):
                gpus = device_count(value) or gpus
        if at >= len(words):
            return []
        if words[0] == "exec":
            return self.command(words[at + 1 :], environment, line=line, depth=depth + 1)
        found = self.image(words[at], entry, words[at + 1 :], environment, line=line, depth=depth + 1)
        return [start._replace(gpus=start.gpus or gpus) for start in found]

    def image(
        self, image: str, entry: list[str] | None, words: list[str], environment: dict[str, str],
        *, line: int = 1, depth: int = 0,
    ) -> list[Start]:  # fmt: skip
        """What a container starts: its entry point, or where that is None its image's, with words behind it."""
        found: list[Start] = []
        if entry is not None:
            found = self.command([*entry, *words], environment, line=line, depth=depth)
        else:
            found = self.command(words, environment, line=line, depth=depth)
            grammar = next((g for g in self.grammars if names_image(image, g.images)), None)
            if not found and grammar is not None:
                rest = words[1:] if words[:1] == ["--server"] else words
                found = [Start(grammar, tuple(rest), environment, line)]
        return [start._replace(version=start.version or image_version(image, start.grammar)) for start in found]

    @staticmethod
    def _one_ollama(found: list[Start]) -> list[Start]:
        """``ollama serve`` and the ``ollama run MODEL`` that talks to it are one start."""
        ours = [start for start in found if start.grammar.engine == "ollama"]
        named = [start for start in ours if start.words]
        if len(ours) < 2:
            return found
        environment = {name: value for start in ours for name, value in start.environment.items()}
        models = list(dict.fromkeys(start.words[0] for start in named))
        gpus, version = next((s.gpus for s in ours if s.gpus), None), next((s.version for s in ours if s.version), "")
        first = [next(s for s in named if s.words[0] == m) for m in models]
        merged = [s._replace(environment=environment, gpus=gpus, version=version) for s in first]
        return [start for start in found if start.grammar.engine != "ollama"] + (merged or ours[:1])


def image_version(image: str, grammar: Grammar) -> str:
    """The engine's version in the tag of one of its images; empty where there is none."""
    name, tag = split_image(image)
    match = _VERSION.match(tag) if names_image(name, grammar.version_images) else None
    return match.group(1) if match else ""


def installed_version(text: str, grammar: Grammar) -> str:
    """The version in ``pip install vllm==0.11.0``; empty where there is none."""
    found = [m.group(2) for m in _INSTALLED.finditer(text) if m.group(1).replace("_", "-") == _package(grammar)]
    return found[-1] if found else ""


def _package(grammar: Grammar) -> str:
    return grammar.engine


def split_image(image: str) -> tuple[str, str]:
    """(name without tag and digest, tag)."""
    name = raw.plain(image).partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "")


def names_image(image: str, ends: tuple[str, ...]) -> bool:
    """Whether an image is one of these, in whatever registry."""
    name = split_image(image)[0]
    return any(name == end or name.endswith(f"/{end}") for end in ends)


def device_count(value: str) -> tuple[int, str] | None:
    """GPUs of ``--gpus 2``, ``--gpus '"device=0,1"'`` or ``--device nvidia.com/gpu=0``; None for all of them."""
    text = raw.plain(value).strip("\"' ")
    if text.isdecimal() and len(text) < 6:
        return int(text), f"--gpus {text}"
    match = re.search(r"device=([0-9A-Za-z,:\-]+)", text) or re.fullmatch(r"count=([0-9]{1,5})", text)
    if match is None:
        return None
    count = int(match.group(1)) if text.startswith("count=") else len([d for d in match.group(1).split(",") if d])
    return (count, f"--gpus {text[:40]}") if count else None
