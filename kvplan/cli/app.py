"""Verbs, found by name and imported on use, and the command classes that read their flags.

To add a verb: a line in `VERBS` and a module with ``app = typer.Typer(**SETTINGS)``, on which one
function is registered with ``@app.command(cls=Verb)`` (or several, for a verb with verbs of its own,
with ``cls=Group`` for the app itself). The function returns its exit status, None for 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from kvplan._version import __version__
from kvplan.cli.output import FORMATS, Output
from kvplan.errors import InputError, UnknownNameError, nearest, printable

VERBS: dict[str, tuple[str, str]] = {
    "plan": ("kvplan.cli.plan", "does this deployment fit, how many tokens and requests"),
    "explain": ("kvplan.cli.explain", "where each byte per token comes from"),
    "sweep": ("kvplan.cli.sweep", "a grid of plans: any flag varied"),
    "fit": ("kvplan.cli.fit", "which GPUs, layouts and formats carry a workload, cheapest first"),
    "compare": ("kvplan.cli.compare", "models, formats, attention, engines or layouts side by side"),
    "models": ("kvplan.cli.models", "the models of the catalog, and files of your own"),
    "gpus": ("kvplan.cli.gpus", "the accelerators of the catalog"),
    "engines": ("kvplan.cli.engines", "the engines that are known, their versions and policies"),
    "log": ("kvplan.cli.log", "an engine's start-up log, held against the plan"),
    "validate": ("kvplan.cli.validate", "the same predictions, measured on this machine"),
    "simulate": ("kvplan.cli.simulate", "a request trace through the memory and the scheduler"),
    "trace": ("kvplan.cli.trace", "what is in a request trace"),
    "check": ("kvplan.cli.check", "sizing rules of a repository, held in CI"),
    "diff": ("kvplan.cli.diff", "two results of check, and what changed"),
    "formats": ("kvplan.cli.formats", "the storage formats of caches and weights"),
    "completion": ("kvplan.cli.completion", "a script that lets your shell complete verbs, flags and names"),
}
"""verb -> (module, what it answers)."""

EXAMPLES: tuple[tuple[str, str], ...] = (
    ("plan llama-3.1-70b --gpu h100-sxm -tp 4", "does it fit, how many requests"),
    ("plan deepseek-v3 --max-model-len 32K", "what the cache costs, on no GPU in particular"),
    ('plan "vllm serve Qwen/Qwen3-32B -tp 2" --gpu l40s', "the line that starts a server"),
    ("explain gemma-3-27b", "the formula with the numbers in it"),
    ("fit qwen3-32b --request-rate 2 --ttft 1", "which GPUs carry a load, cheapest first"),
    ("sweep llama-3.1-8b --gpu h100-sxm --vary max-model-len=8K,32K --vary tp=1,2", "a grid"),
    ("compare llama-3.1-8b qwen3-32b deepseek-v3", "side by side"),
    ("models list qwen3", "which models are known"),
    ("gpus list h100", "which GPUs are known"),
    ("engines vllm", "what changed in which version"),
    ("formats fp8", "what an fp8 cache takes"),
    ("log vllm.log --fail-over 5%", "a start that is over, held against its plan"),
    ("check --init", "a first file of promises for CI"),
    ("check", "are the promises of kvplan.yaml kept"),
    ("simulate llama-3.1-8b --gpu h100-sxm --synthetic requests=1000,rate=8", "traffic through that memory"),
    ("trace describe conversation.csv", "what a trace holds, and what its prompts share"),
    ("validate llama-3.1-8b --quick", "is it true on this machine"),
)
"""What the help of a verb ends with."""

FIRST: tuple[int, ...] = (0, 2, 3, 4, 7, 8, 12)
"""Those of `EXAMPLES` on the start page."""

PANELS: tuple[str, ...] = (
    "Arguments", "", "Model", "Hardware", "Layout", "Workload", "Engine", "SGLang, TensorRT-LLM",
    "transformers, MLX-LM, ExLlamaV3", "llama.cpp", "Ollama", "LM Studio", "Output",
)  # fmt: skip
"""Headings of a verb's help in order; a verb's own options stand where the empty one is."""


def place(heading: str) -> int:
    """Where a heading stands in a help text."""
    return PANELS.index(heading if heading in PANELS else "")


COMPLETE = "_KVPLAN_COMPLETE"
"""Set by a shell that wants completions."""

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "context_settings": CONTEXT,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
"""For every `typer.Typer` of this package: plain help, and no traceback of its own."""


class _Flags:
    """The options of one command, by every name they have."""

    def __init__(self, params: Iterable[Any], path: str) -> None:
        self.path = path
        self.takes_value: dict[str, bool] = {}
        self.hidden: set[str] = set()
        self.once: set[str] = set()
        for param in params:
            if param.param_type_name == "option":
                for name in (*param.opts, *param.secondary_opts):
                    self.takes_value[name] = not (param.is_flag or param.count)
                    if not param.multiple:
                        self.once.add(name)
                    if param.hidden:
                        self.hidden.add(name)

    def normalise(self, args: Sequence[str], *, interspersed: bool) -> list[str]:
        """`args` as Typer's parser reads them: ``-c=8`` becomes ``-c 8``, ``--max_model_len`` gets its dashes.

        Args:
            interspersed: options may follow positional arguments; otherwise the first one ends them.

        Raises:
            UnknownNameError: an option that the command does not have.
            InputError: an option without its value, or a value for one that takes none.
        """
        found: list[str] = []
        rest, seen = list(args), ""
        while rest:
            arg = rest.pop(0)
            if arg == "--" or (not interspersed and not _looks_like_option(arg)):
                return [*found, arg, *rest]
            if not _looks_like_option(arg):
                found.append(arg)
                continue
            name, equals, value = arg.partition("=")
            if name not in self.takes_value and name.startswith("--"):
                name = name.replace("_", "-")
            if name not in self.takes_value:
                raise self._unknown(name)
            found.append(name)
            if name == "--gpu" and name in self.once:
                if seen:
                    raise InputError("is there twice", where=name, hint="for two GPUs of a kind: one --gpu, and -tp 2")
                seen = name
            if not self.takes_value[name]:
                if equals:
                    raise InputError("takes no value", where=name, hint=f"type {name} alone")
            elif equals:
                found.append(value)
            elif not rest or rest[0].partition("=")[0] in self.takes_value:
                raise InputError("needs a value", where=name, hint=self._help())
            else:
                found.append(rest.pop(0))
        return found

    def _help(self) -> str:
        return f"`{self.path} --help` lists the options"

    def _unknown(self, name: str) -> UnknownNameError:
        known = [n for n in self.takes_value if n not in self.hidden]
        for size in range(len(name) - 1, 1, -1):
            if self.takes_value.get(name[:size]) and not name.startswith("--"):
                return UnknownNameError(
                    "option", name, [], more=f"did you mean {name[:size]} {printable(name[size:])}?"
                )
        from kvplan.cli.other_words import belongs_to_a_line
        from kvplan.engines.other_words import flag_for

        if name == "-f" and self.path.endswith(" check"):
            return UnknownNameError("option", name, [], more=f"the file is an argument: {self.path} kvplan.yaml")
        if name == "--gpu" and self.path.endswith(" validate"):
            return UnknownNameError("option", name, [], more="what this machine has is measured; --device chooses one")
        if belongs_to_a_line(name) and self.path.endswith((" plan", " sweep", " compare", " fit", " explain")):
            line = f'put the engine\'s line in quotes: {self.path} "vllm serve MODEL {name} ..."'
            return UnknownNameError("option", name, [], more=line)
        if (meant := flag_for(name, known)) is not None:
            return UnknownNameError("option", name, [], more=f"it is called {meant} here; {self._help()}")
        return UnknownNameError("option", name, known, more=self._help())


def _looks_like_option(arg: str) -> bool:
    return len(arg) > 1 and arg[0] == "-"


def _output_options(formats: Sequence[str]) -> list[TyperOption]:
    """The options that every verb has; their values reach the verb as an `Output`."""

    def option(*names: str, text: str, **settings: Any) -> TyperOption:
        return TyperOption(param_decls=list(names), help=text, rich_help_panel="Output", **settings)

    default = "; a table on a terminal, else text" if len(formats) > 1 else ", whatever it is written to"
    return [
        option("out_format", "--format", metavar="NAME", text=f"{', '.join(formats)}{default}"),
        option("out_json", "--json", is_flag=True, text="short for --format json", hidden="json" not in formats),
        option("out_file", "-o", "--output", metavar="FILE", text="write there, whole or not at all"),
        option("out_color", "--color", metavar="WHEN", text="auto, always or never; NO_COLOR and FORCE_COLOR count"),
        option("out_quiet", "-q", "--quiet", is_flag=True, text="no warnings and notes on stderr"),
        option("out_debug", "--debug", is_flag=True, text="show the traceback of an error"),
    ]


class Verb(TyperCommand):
    """A command with the common output options; the verb finds their outcome in ``ctx.obj``."""

    formats: tuple[str, ...] = FORMATS
    """The formats this verb can write."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += _output_options(self.formats)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell asks for completions in the middle of a line
            return super().parse_args(ctx, args)
        flags = _Flags(self.get_params(ctx), ctx.command_path)
        if len(args) > 1 and any(p.name == "model" for p in self.params):
            from kvplan.cli.other_words import before_quotes

            if before_quotes(args):
                shown = printable(" ".join(args[:3]), 80)
                more = " ..." if len(args) > 3 else ""
                raise InputError(
                    "an engine's command line is one argument", where="MODEL",
                    hint=f'put it in quotes: {ctx.command_path} "{shown}{more}"',
                )  # fmt: skip
        typed = flags.normalise(args, interspersed=True)
        try:
            return super().parse_args(ctx, list(typed))
        except typer.TyperException as error:
            self._extra(ctx, flags, typed, error)
            raise

    def _extra(self, ctx: Any, flags: _Flags, typed: list[str], error: typer.TyperException) -> None:
        """A better hint where an argument too many is an accelerator's name."""
        if "extra argument" not in str(getattr(error, "message", "")) or "--gpu" not in flags.takes_value:
            return
        from kvplan.cli.other_words import extra_word

        rest = iter(typed)
        words = [w for w in rest if not (_looks_like_option(w) and (not flags.takes_value.get(w) or next(rest, "")))]
        if (hint := extra_word(ctx.command_path, words)) != "":
            raise InputError(f"unexpected extra argument {printable(words[1], 60)!r}", hint=hint) from None

    def invoke(self, ctx: Any) -> Any:
        taken = {name: ctx.params.pop(f"out_{name}") for name in ("format", "json", "file", "color", "quiet", "debug")}
        del taken["debug"]  # `main` looks for it before anything is parsed
        ctx.obj = Output(formats=self.formats, **taken)
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then the options under the headings their ``rich_help_panel`` names, in the order of `PANELS`."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                argument = param.param_type_name == "argument"
                heading = "Arguments" if argument else getattr(param, "rich_help_panel", None) or "Options"
                if "--help" in record[0]:
                    heading, record = "Output", (record[0], "show this and exit")
                sections.setdefault(heading, []).append(record)
        for heading in sorted(sections, key=place):
            if sections[heading]:
                with formatter.section(heading):
                    formatter.write_dl(sections[heading])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The lines of `EXAMPLES` that are about this command."""
        path = ctx.command_path.removeprefix("kvplan ")
        shown = [(f"kvplan {line}", text) for line, text in EXAMPLES if line == path or line.startswith(f"{path} ")]
        if shown:
            formatter.write("\nExamples:\n")
            for line, text in shown:
                formatter.write(f"  {line}\n      {text}\n")


class Group(TyperGroup):
    """A command of commands: shows its help when called alone, and knows near misses."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each command with the whole first sentence of its help."""
        with formatter.section("Commands"):
            texts = {name: getattr(self.get_command(ctx, name), "help", None) for name in self.list_commands(ctx)}
            formatter.write_dl(
                [(name, " ".join((text or "").split("\n\n")[0].split())) for name, text in texts.items()]
            )

    def overview(self, ctx: Any) -> str:
        """What the command prints when it is called alone."""
        text: str = ctx.get_help()
        return text

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        if not args:
            typer.echo(self.overview(ctx))
            raise typer.Exit(0)
        flags = _Flags(self.get_params(ctx), ctx.command_path)
        return super().parse_args(ctx, flags.normalise(args, interspersed=False))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        command = self.get_command(ctx, args[0])
        if command is None:
            if ctx.resilient_parsing:
                return None, None, args[1:]
            raise UnknownNameError("command", args[0], self.list_commands(ctx), more=self.elsewhere(ctx, args[0]))
        return args[0], command, args[1:]

    def elsewhere(self, ctx: Any, name: str) -> str:
        """What to say to an unknown command besides the near ones."""
        if "list" in self.list_commands(ctx) and not nearest(name, self.list_commands(ctx)):
            return f"to look it up: {ctx.command_path} list {printable(name, 60)}"
        return f"`{ctx.command_path} --help` lists the commands"


class LazyGroup(Group):
    """The root: imports the module of a verb when that verb is called, and none for its help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        module = import_module(VERBS[cmd_name][0])
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        if COMPLETE in os.environ:
            from kvplan.cli.completion_names import prepare

            prepare(command, cmd_name)
        return command

    def _main_shell_completion(self, ctx_args: Any, prog_name: str, complete_var: str | None = None) -> None:
        if COMPLETE in os.environ:
            from typer._completion_classes import completion_init

            completion_init()
        super()._main_shell_completion(ctx_args, prog_name, complete_var)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])

    def overview(self, ctx: Any) -> str:
        from shutil import get_terminal_size
        from textwrap import wrap

        shown = [(f"kvplan {line}", text) for line, text in (EXAMPLES[place] for place in FIRST)]
        width = max(len(line) for line, _ in shown)
        lines = [f"  {line.ljust(width)}   {text}" for line, text in shown]
        columns = get_terminal_size((80, 24)).columns
        if max(map(len, lines)) > columns:
            lines = [f"  {line}\n      {text}" for line, text in shown]
        return "\n".join(
            [
                f"kvplan {__version__}: the KV cache of an LLM, and what fits beside the weights",
                "",
                *lines,
                "",
                *wrap(f"Commands: {', '.join(VERBS)}.", min(columns, 96), subsequent_indent="  "),
                "`kvplan COMMAND --help` explains one.",
            ]
        )

    def elsewhere(self, ctx: Any, name: str) -> str:
        if "/" in name or any(c.isdigit() for c in name):
            return f"to size a model: kvplan plan {printable(name, 60)}"
        return "`kvplan --help` lists the commands"


app = typer.Typer(cls=LazyGroup, **SETTINGS)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvplan {__version__}")
        raise typer.Exit(0)


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="show the version"),
) -> None:
    """Sizes the KV cache of LLM inference: what it costs per token, and what fits beside the weights."""
