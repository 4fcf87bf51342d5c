"""``kvplan log FILE``: what an engine said when it started, held against the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import flags, output
from kvplan.cli.app import SETTINGS
from kvplan.engines.options import Option
from kvplan.errors import InputError, printable

if TYPE_CHECKING:
    from kvplan.render.grid import Document

app = typer.Typer(**SETTINGS)

FIGURES = ("bytes", "tokens")

LOG = (
    Option("model", ("--model",), "text", "NAME", "the model, where the log does not name it", "Log"),
    Option("fail_over", ("--fail-over",), "text", "SHARE", "exit 1 where the figure is off by more: 5% or 0.05", "Log"),
    Option("figure", ("--figure",), "text", "NAME", "bytes (of the cache, per GPU) or tokens; default: bytes", "Log"),
)
_OTHERS = ("calibration", "from_log")
"""Planning flags that mean nothing here."""


class LogVerb(flags.PlanVerb):
    """The planning flags, for what the log does not say, and those of the comparison."""

    flags = (*LOG, *flags.of_one_engine(flags.PLAN, _OTHERS))


@app.command(cls=LogVerb)
def log(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="a start-up log; - is standard input")],
) -> int:
    """Reads the start-up log of vLLM, SGLang, TensorRT-LLM, llama.cpp or Ollama and holds it against the plan.

    Shows what the engine said, what kvplan predicts term by term, and which term explains the difference.
    """
    from kvplan.planning.log_case import deployment
    from kvplan.planning.log_report import FailOver, exceeds, report
    from kvplan.sources import find_gpu, find_model, override_gpu
    from kvplan.sources.logs import read_log

    given = flags.read(ctx)
    limit, figure = share(given.pop("fail_over", None)), given.pop("figure", None)
    if figure is not None and figure not in FIGURES:
        raise InputError(
            f"{printable(figure, 40)!r} is neither bytes nor tokens", where="--figure", hint="--figure tokens"
        )
    name, memory, bandwidth = (given.pop(key, None) for key in ("gpu", "gpu_memory", "gpu_bandwidth"))
    gpu = override_gpu(find_gpu(name) if name is not None else None, memory, bandwidth)
    read = {key: given.pop(key) for key in ("assume", "hub") if key in given}
    typed = given.pop("model", None)
    model = find_model(typed, **read) if typed is not None else None
    said = read_log(file)
    shown = "standard input" if file == "-" else file
    found = deployment(said, name=shown, model=model, gpu=gpu, engine=given.pop("engine", None), given=given)
    result = report(said, found, file=shown, figure=figure)
    over = limit is not None and exceeds(result.figure, limit)
    plain = result._replace(fail_over=None if limit is None else FailOver(limit, not over)).to_dict()
    out = output.of(ctx)
    out.emit(lambda: _document(plain), plain, warnings=result.warnings)
    if over and result.figure is not None:
        off, most = abs(result.figure.relative or 1), 100 * (limit or 0)
        out.note(f"{result.figure.name}: off by {off:.2%}, more than {most:.4g}%")
    return 1 if over else 0


def share(text: str | None) -> float | None:
    """``5%`` and ``0.05`` alike.

    Raises:
        InputError: neither, or below 0 or above 1.
    """
    if text is None:
        return None
    digits = text.strip().removesuffix("%")
    try:
        value = float(digits) / (100 if digits != text.strip() else 1)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        hint = f"type {value:g}%" if 1 < value <= 100 and digits == text.strip() else "type 5% or 0.05"
        raise InputError(f"{printable(text, 40)!r} is not a share", where="--fail-over", hint=hint)
    return value


def _document(plain: dict[str, Any]) -> Document:
    from kvplan.render.log import log_report

    return log_report(plain)
