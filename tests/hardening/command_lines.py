"""The whole command line with something to damage: any verb, any flags, any files, run inside one process.

Whatever is typed, the status is 0, 1 or 2 and nothing is raised. With 2, standard error has one ``error:`` line and
at most one ``hint:``, standard output is empty (annotations apart, where they were asked for), no file has changed,
and it took at most `MOST_SECONDS` and `MOST_BYTES`. JSON that is printed is JSON. Run it for as long as you like;
failures are printed as they come::

    python tests/hardening/command_lines.py --runs 200000 --seed 7
    python tests/hardening/command_lines.py --one 7:1234        # run 1,234 of seed 7 again, and show it
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

import typer
from command_values import HOSTILE, Files, value
from readers import MOST_BYTES, MOST_SECONDS, _peak_bytes

from kvplan.cli import app as app_module
from kvplan.cli.main import main as kvplan_main

LONGEST_SECONDS = 20.0
"""Of processor time, after which a command line counts as hanging, whatever it would have answered."""
WEIGHTS = {
    "plan": 26, "explain": 10, "sweep": 4, "compare": 4, "fit": 0.6, "simulate": 3, "validate": 5, "log": 9, "check": 7,
    "trace describe": 8, "diff": 5, "models import": 6, "models lint": 4, "models schema": 0.1, "gpus list": 0.4,
    "engines": 1, "models list": 1,
}  # fmt: skip
"""How often a verb is called; 2 where nothing is said."""
FAMILIES = {
    "Engine": ("vllm", "vllm@0.20.0", "vllm@0.11.0"), "SGLang, TensorRT-LLM": ("sglang", "tensorrt-llm"),
    "transformers, MLX-LM, ExLlamaV3": ("transformers", "mlx", "exllamav3"), "llama.cpp": ("llama.cpp",),
    "Ollama": ("ollama",),
}  # fmt: skip
"""Headings of an engine's own flags, and those engines."""
ABSENT = ("torch", "ray", "pynvml", "huggingface_hub", "pyarrow")
"""Extras that are taken away: their work would take minutes a run, and their absence has an answer too."""


class Flag(NamedTuple):
    """One option or argument of a command."""

    names: tuple[str, ...]
    placeholder: str | None
    is_switch: bool
    many: bool
    heading: str
    """What it stands under in the help: flags of an engine go together."""


class Command(NamedTuple):
    """A verb, and what it takes, as the application itself says."""

    words: tuple[str, ...]
    arguments: tuple[Flag, ...]
    options: tuple[Flag, ...]
    formats: tuple[str, ...]


class Ran(NamedTuple):
    """How a command line ended."""

    status: int | None
    out: bytes
    err: str
    seconds: float
    grown_bytes: int
    raised: str
    changed: bool


class Hangs(BaseException):
    """Raised inside a command line that takes too long; no handler of errors takes it for one."""


def commands() -> list[Command]:
    """Every verb that the application has."""
    found = []
    root = typer.main.get_command(app_module.app)

    def walk(command: Any, words: tuple[str, ...]) -> None:
        inner = getattr(command, "commands", {})
        for name, each in inner.items():
            walk(each, (*words, name))
        if not inner:
            flags = [(p.param_type_name, _flag(p)) for p in command.params]
            arguments = tuple(flag for kind, flag in flags if kind == "argument")
            options = tuple(flag for kind, flag in flags if kind == "option" and "--debug" not in flag.names)
            found.append(Command(words, arguments, options, tuple(command.formats)))

    for verb in app_module.VERBS:
        walk(root.get_command(None, verb), (verb,))
    return found


def _flag(param: Any) -> Flag:
    option = param.param_type_name == "option"
    many = getattr(param, "multiple", False) or param.nargs == -1
    heading = getattr(param, "rich_help_panel", None) or ""
    return Flag(tuple(param.opts), param.metavar, option and param.is_flag, many, heading)


def compose(known: Sequence[Command], chance: random.Random) -> list[str]:
    """A command line: mostly a few flags that the verb has, sometimes anything."""
    weights = [WEIGHTS.get(" ".join(command.words), 2) for command in known]
    command = chance.choices(known, weights)[0]
    words: list[str] = []
    for argument in command.arguments:
        for _ in range(chance.choice((1, 2, 3)) if argument.many else chance.random() < 0.96):
            words.append(value(chance, argument.names[0], argument.placeholder))
    options = command.options
    family = chance.choice((*FAMILIES, "", ""))
    if family and "--engine" in {name for option in options for name in option.names}:
        others = [other for other in FAMILIES if other != family]
        options = tuple(option for option in options if option.heading not in others)
        words += ["--engine", chance.choice(FAMILIES[family])]
    for _ in range(chance.choice((0, 0, 1, 1, 2, 2, 3, 4, 6, 10))):
        option = chance.choice(options)
        name = chance.choice(option.names)
        if name == "--format":
            text = chance.choice(command.formats) if chance.random() < 0.9 else chance.choice(HOSTILE)
        elif option.is_switch:
            words.append(name)
            continue
        else:
            text = value(
                chance, option.names[-1] if "--output" in option.names else option.names[0], option.placeholder
            )
        words += [f"{name}={text}"] if chance.random() < 0.3 else [name, text]
    if "simulate" in command.words and chance.random() < 0.8:
        words += ["--trace", chance.choice(("trace.jsonl", "trace.csv"))]
    if chance.random() < 0.6 and "--gpu" in {name for option in command.options for name in option.names}:
        words += ["--gpu", value(chance, "--gpu", "NAME")]
    if chance.random() < 0.05:
        words.insert(chance.randrange(len(words) + 1), chance.choice(HOSTILE))
    if chance.random() < 0.05:
        chance.shuffle(words)
    return [*command.words, *words] if chance.random() < 0.995 else words


class Bench:
    """A folder with a file of each kind, in which command lines run one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "some" / "folder" / "deep"
        self.folder.mkdir(parents=True)
        self.files = Files()
        self.files.lay_out(self.folder)
        self.known = commands()
        self.sound = {name: (self.folder / name).read_bytes() for name in self.files.seeds}

    def prepare(self, chance: random.Random) -> tuple[list[str], dict[str, bytes]]:
        """A command line, and the damaged files that it may name."""
        words = compose(self.known, chance)
        text = " ".join(words)
        named = [name for name in self.files.seeds if name in text]
        if "check" in words[:1] and "rules.yaml" not in named:
            named.append("rules.yaml")
        damaged = {}
        for name in named:
            if chance.random() < 0.75:
                damaged[name] = self.files.damage(self.folder, name, chance)
        return words, damaged

    def run(self, words: list[str], damaged: dict[str, bytes]) -> Ran:
        """Run it, and put the folder back as it was."""
        before = _listing(self.folder)
        ran = _run(words)
        changed = _listing(self.folder) != before
        if changed:
            for path in self.folder.iterdir():
                if path.name not in self.sound:
                    path.unlink()
        for name in self.sound if changed else damaged:
            (self.folder / name).write_bytes(self.sound[name])
        return ran._replace(changed=changed)


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        return sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in entries)


def _run(words: list[str]) -> Ran:
    streams = [TextIOWrapper(BytesIO(), "utf-8", "strict", write_through=True) for _ in range(2)]
    status, raised, peak, started = None, "", _peak_bytes(), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)
    try:
        with mock.patch.multiple(sys, stdout=streams[0], stderr=streams[1], stdin=None):
            status = kvplan_main(words)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        raised = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds, grown = time.process_time() - started, _peak_bytes() - peak
    out, err = (stream.buffer.getvalue() for stream in streams)  # type: ignore[attr-defined]
    return Ran(status, out, err.decode(), seconds, grown, raised, changed=False)


def fault(words: list[str], ran: Ran) -> str:
    """What a command line did that none may; empty: nothing."""
    if ran.raised:
        return f"raised {ran.raised}"
    lines = ran.err.splitlines()
    if ran.status not in (0, 1, 2):
        return f"status {ran.status}"
    if "Traceback" in ran.err or "internal error" in ran.err:
        return next(line for line in lines if "Traceback" in line or "internal error" in line)
    if not all(line.isprintable() for line in lines):
        return f"unprintable: {next(line for line in lines if not line.isprintable())!r}"
    if ran.status != 2:
        return _fault_of_json(words, ran.out) if "--json" in words else ""
    heads = [line.partition(":")[0] for line in lines]
    if words[:1] == ["check"] and set(heads) == {"error"}:  # a rule file: a line for each place that is wrong
        heads = heads[:1]
    if "cannot write" in ran.err:  # what was said of the answer that has no place
        heads = heads[heads.index("error") :]
    while heads[:1] == ["warning"]:
        heads = heads[1:]
    if heads not in (["error"], ["error", "hint"]):
        return f"status 2 and standard error {heads[:6]}"
    if words[:1] == ["sweep"] and "every plan is refused" in ran.err:
        return "status 2 and a file has changed" if ran.changed else ""  # its rows say why, each of them
    annotated = words[:1] == ["check"] and any(word.endswith("github") for word in words)
    if ran.out and not (annotated and all(line.startswith(b"::error file=") for line in ran.out.splitlines())):
        return f"status 2 and on standard output {ran.out[:60]!r}"
    if ran.changed:
        return "status 2 and a file has changed"
    if ran.seconds > MOST_SECONDS:
        return f"status 2 after {ran.seconds:.1f} s"
    return f"status 2 after {ran.grown_bytes:,} bytes" if ran.grown_bytes > MOST_BYTES else ""


def _fault_of_json(words: list[str], out: bytes) -> str:
    if not out or any(word in words for word in ("--help", "-h")):
        return ""

    def refuse(text: str) -> object:
        raise ValueError(f"{text} is not JSON")

    try:
        json.loads(out, parse_constant=refuse)
    except ValueError as error:
        return f"no JSON: {error}"
    return ""


def failures(runs: int, seed: int, tally: Counter[str], first: int = 0) -> Iterator[tuple[str, str, list[str]]]:
    """(which, why, words) of the failures among so many command lines; `tally` counts how they ended."""
    here = os.getcwd()
    with TemporaryDirectory() as name, _alone():
        bench = Bench(Path(name))
        os.chdir(bench.folder)
        try:
            for number in range(first, first + runs):
                words, damaged = bench.prepare(random.Random(f"{seed} {number}"))
                ran = bench.run(words, damaged)
                tally[f"status {ran.status}"] += 1
                tally["slowest status 2, ms"] = max(
                    tally["slowest status 2, ms"], int(ran.seconds * 1000) if ran.status == 2 else 0
                )
                if runs == 1:
                    print(ran, damaged, sep="\n")
                why = fault(words, ran)
                if why:
                    yield f"{seed}:{number}", why, words
        finally:
            os.chdir(here)


class _alone:
    """No network, none of the extras, an application that is put together once, and a clock that stops what hangs."""

    def __enter__(self) -> None:
        def stop(*_: object) -> None:
            raise Hangs

        def refuse(*_: object, **__: object) -> None:
            raise OSError("no network here")

        self.handler = signal.signal(signal.SIGPROF, stop)
        self.modules = {name: sys.modules.pop(name, None) for name in ABSENT}
        sys.modules.update(dict.fromkeys(ABSENT))  # type: ignore[arg-type]
        self.patches = [
            mock.patch.dict(os.environ, {"COLUMNS": "80", "HF_HUB_OFFLINE": "1"}),
            mock.patch.object(socket.socket, "connect", refuse),
            mock.patch.object(socket, "getaddrinfo", refuse),
            mock.patch.object(typer.main, "get_command", lru_cache(typer.main.get_command)),
        ]
        for patch in self.patches:
            patch.__enter__()

    def __exit__(self, *_: object) -> None:
        for patch in reversed(self.patches):
            patch.__exit__(None, None, None)
        for name, module in self.modules.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
        signal.signal(signal.SIGPROF, self.handler)


def main(arguments: list[str]) -> int:
    """Compose and run; exit status 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", metavar="SEED:NUMBER", help="run a single one again, and show it")
    found = parser.parse_args(arguments)
    runs, seed, first = found.runs, found.seed, 0
    if found.one:
        seed, first = map(int, found.one.split(":"))
        runs = 1
    tally: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    started = time.perf_counter()
    done, step = 0, min(runs, 10_000)
    while done < runs:
        for which, why, words in failures(min(step, runs - done), seed, tally, first + done):
            kind = why[:90]
            seen[kind] += 1
            if seen[kind] <= 3:
                print(f"{which} {why}\n    {words!r}"[:1500], flush=True)
        done += step
        print(f"# {done:,} of seed {seed}, {sum(seen.values()):,} failures, {dict(tally)}, "
              f"{_peak_bytes() >> 20} MiB, {time.perf_counter() - started:.0f} s", flush=True)  # fmt: skip
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
