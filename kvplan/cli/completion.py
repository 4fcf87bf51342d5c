"""``kvplan completion``: the script with which a shell completes verbs, flags and the names that they take."""

from __future__ import annotations

import typer

from kvplan.cli import output
from kvplan.cli.app import COMPLETE, SETTINGS, Verb
from kvplan.cli.completion_names import SHELLS
from kvplan.errors import UnknownNameError

app = typer.Typer(**SETTINGS)

REGISTER = "compdef _kvplan_completion kvplan"
AUTOLOADED = f"""if [[ ${{funcstack[1]}} == _kvplan ]]; then
  _kvplan_completion "$@"
else
  {REGISTER}
fi"""
"""As a file of $fpath the script is the body of a function, which must complete and not only register itself."""


class ScriptVerb(Verb):
    """A verb that prints a script and nothing else."""

    formats = ("text",)


@app.command(cls=ScriptVerb)
def completion(
    ctx: typer.Context,
    shell: str = typer.Argument(..., metavar="SHELL", help=", ".join(SHELLS)),
) -> None:
    """A script for your shell that completes verbs, flags, models, GPUs, engines and formats.

    Bash: source it, or write it to ~/.local/share/bash-completion/completions/kvplan. Zsh: write it into a folder of
    $fpath, as _kvplan, before compinit. Fish: write it to ~/.config/fish/completions/kvplan.fish.
    """
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise UnknownNameError("shell", shell, list(SHELLS), more=f"known: {', '.join(SHELLS)}")
    script = get_completion_script(prog_name="kvplan", complete_var=COMPLETE, shell=shell)
    if shell == "zsh":
        script = script.replace(f"\n{REGISTER}", f"\n{AUTOLOADED}")
    output.of(ctx).write(f"{script}\n")
