"""Write ``docs/cli.md``: every verb and flag, from the commands themselves.

With ``--check`` nothing is written, and the exit status is 1 where the page is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import typer
from written import keep

from kvplan.cli.app import EXAMPLES, VERBS, app, place

TARGET = ROOT / "docs" / "cli.md"
HOW_TO = re.compile(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", re.MULTILINE)
"""A row of the start page's table: a verb, and the pages that show how it is used."""

INTRO = """# Commands

Written by `scripts/make_cli_reference.py` from the commands themselves; `kvplan COMMAND --help` prints the same.

Every flag is written `--flag VALUE` or `--flag=VALUE`, with dashes or underscores; a short one `-tp 4` or `-tp=4`. Data
goes to stdout, everything else to stderr. `NO_COLOR` and `FORCE_COLOR` are obeyed.

| exit status | when |
| --- | --- |
| 0 | answered, and where asked it fits, holds, agrees |
| 1 | answered in full, and it does not |
| 2 | could not answer: one line says why, another what to type next |
| 130 | interrupted |
"""


def commands() -> Iterator[tuple[str, Any, Any]]:
    """(name, command, context) of every verb, verbs of verbs included."""
    root = typer.main.get_command(app)
    with root.make_context("kvplan", ["plan"], resilient_parsing=True) as top:
        for verb in VERBS:
            command = root.get_command(top, verb)
            with command.make_context(verb, [], parent=top, resilient_parsing=True) as context:
                yield verb, command, context
                for name in getattr(command, "commands", {}):
                    inner = command.get_command(context, name)
                    with inner.make_context(name, [], parent=context, resilient_parsing=True) as below:
                        yield f"{verb} {name}", inner, below


def sections(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Heading -> (flags, text), in the order of the help, common output flags last."""
    found: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and "--help" not in record[0]:
            argument = param.param_type_name == "argument"
            heading = "Arguments" if argument else getattr(param, "rich_help_panel", None) or "Options"
            found.setdefault(heading, []).append(record)
    return dict(sorted(found.items(), key=lambda entry: place(entry[0])))


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def page() -> str:
    lines = [INTRO]
    pages = dict(HOW_TO.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    for name, command, context in commands():
        usage = " ".join(command.collect_usage_pieces(context))
        text = " ".join((command.help or "").split("\f")[0].split())
        how = [f"How it is used: {pages[name]}.\n"] if name in pages else []
        lines += [f"\n## kvplan {name}\n", f"{text}\n", *how, f"```\nkvplan {name} {usage}\n```\n"]
        examples = [(line, what) for line, what in EXAMPLES if line == name or line.startswith(f"{name} ")]
        if examples:
            lines += [*(f"- `kvplan {line}`: {what}" for line, what in examples), ""]
        for heading, rows in sections(command, context).items():
            lines += [
                f"**{heading}**\n",
                f"| {'argument' if heading == 'Arguments' else 'flag'} | meaning |",
                "| --- | --- |",
            ]
            lines += [f"| `{cell(flags)}` | {cell(meaning)} |" for flags, meaning in rows]
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    return keep(TARGET, page, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
