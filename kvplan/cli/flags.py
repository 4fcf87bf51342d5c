"""The flags of the planning verbs, from tables: `PlanVerb` adds them, `read` turns them into settings."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from typer.core import TyperOption

from kvplan.cli.app import Verb
from kvplan.engines import DEFAULT_ENGINE, distinct
from kvplan.engines import flags as others
from kvplan.engines.llama_cpp import flags as llama_cpp
from kvplan.engines.options import Option
from kvplan.engines.vllm import flags as vllm

HARDWARE = (
    Option(
        "gpu", ("--gpu",), "text", "NAME",
        "GPU id, alias, driver name or YAML file; without it the cache's own figures alone", "Hardware",
    ),
    Option(
        "gpu_memory", ("--gpu-memory",), "size", "SIZE",
        "bytes of one GPU as programs see it: 80GiB or 80GB, which differ", "Hardware",
    ),
    Option("gpu_bandwidth", ("--gpu-bandwidth",), "rate", "RATE", "its memory bandwidth: 3350GB/s", "Hardware"),
    Option("gpus", ("--gpus",), "count", "N", "GPUs of the deployment (default tp x pp x dp)", "Hardware"),
    Option(
        "calibration", ("--calibration",), "text", "FILE", "measured rates of this GPU instead of stated ones",
        "Hardware",
    ),
)  # fmt: skip

_SIDE_BY_SIDE = "; all, or a list, sets them side by side"
ENGINE = (
    Option(
        "engine",
        ("--engine",),
        "text",
        "NAME[@VERSION]",
        f"{DEFAULT_ENGINE} (default), {', '.join(n for n in distinct() if n not in (DEFAULT_ENGINE, 'generic'))}, "
        f"generic (arithmetic alone){_SIDE_BY_SIDE}",
    ),
    Option("weights", ("--weights",), "text", "FORMAT", "storage of the weights (default: what the checkpoint says)"),
)

READING = (
    Option(
        "assume", ("--assume",), "text", "llama-like",
        "read a configuration of an unknown family as plain attention in every layer", "Model",
    ),
    Option(
        "from_log", ("--from-log",), "text", "FILE",
        "start from an engine's log: its settings, and the bytes it left for the cache; MODEL may be left out", "Model",
    ),
    Option("hub", ("--hub",), "true", "", "read MODEL from the Hugging Face hub: its files' headers alone", "Model"),
)  # fmt: skip
"""How MODEL is read."""

WORKLOAD = (
    Option(
        "concurrency", ("--concurrency",), "count", "N", "running requests of the deployment (default 1)", "Workload"
    ),
    Option(
        "prompt_tokens", ("--prompt-tokens",), "tokens", "TOKENS",
        "prompt of one request (default 1,024)", "Workload",
    ),
    Option(
        "output_tokens", ("--output-tokens",), "tokens_or_zero", "TOKENS",
        "answer of one request (default 256)", "Workload",
    ),
    Option(
        "shared_prefix_tokens", ("--shared-prefix-tokens",), "tokens_or_zero", "TOKENS",
        "prompt tokens that all requests have in common (default 0)", "Workload",
    ),
)  # fmt: skip

SERVICE = (
    Option(
        "request_rate", ("--request-rate",), "per_second", "R",
        "requests a second that come at random: 5, 300/min; replaces --concurrency", "Workload",
    ),
    Option("ttft", ("--ttft",), "seconds", "S", "target: mean time to first token, 0.5 (seconds) or 500ms", "Workload"),
    Option(
        "tpot", ("--tpot",), "seconds", "S",
        "target: mean time per output token, 0.03 (seconds) or 30ms", "Workload",
    ),
    Option(
        "prompt_cv", ("--prompt-cv",), "number", "X",
        "spread of the prompts' lengths: standard deviation over mean (default 0)", "Workload",
    ),
    Option("output_cv", ("--output-cv",), "number", "X", "the same of the outputs' lengths", "Workload"),
    Option(
        "acceptance_rate", ("--acceptance-rate",), "number", "A",
        "share of drafts that speculative decoding keeps: serving and cost then count them", "Workload",
    ),
    Option(
        "price", ("--price",), "prices", "ID=USD_PER_HOUR",
        "what one GPU costs an hour, instead of the catalog's dated price; repeatable; USD alone: of --gpu", "Hardware",
    ),
)  # fmt: skip
"""Traffic, its targets and prices: for the verbs that say what a deployment serves (`kvplan.planning.workload`)."""

PLAN = (
    *HARDWARE, *vllm.LAYOUT, *ENGINE, *vllm.OPTIONS, *others.OPTIONS, *llama_cpp.OPTIONS, *llama_cpp.OLLAMA,
    *llama_cpp.LMSTUDIO, *WORKLOAD, *READING,
)  # fmt: skip
"""Every flag of ``kvplan plan``, in the order of its help."""


def of_one_engine(options: Iterable[Option], without: Container[str]) -> tuple[Option, ...]:
    """The flags of a verb that takes one engine at a time, but for some settings."""
    return tuple(o._replace(help=o.help.removesuffix(_SIDE_BY_SIDE)) for o in options if o.setting not in without)


def typer_option(option: Option) -> TyperOption:
    """An `Option` as Typer wants it; its value stays text until `read`."""
    names = [f"flag_{option.setting}", *option.flags]
    if option.is_switch:
        return TyperOption(param_decls=names, is_flag=True, help=option.help, rich_help_panel=option.panel)
    return TyperOption(
        param_decls=names, metavar=option.metavar, help=option.help, rich_help_panel=option.panel,
        multiple=option.is_list,
    )  # fmt: skip


class PlanVerb(Verb):
    """A verb with the planning flags; what was typed lies in ``ctx.meta["flags"]``."""

    flags: tuple[Option, ...] = PLAN

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params[1:1] = [typer_option(option) for option in self.flags]

    def invoke(self, ctx: Any) -> Any:
        ctx.meta["flags"] = {o.setting: ctx.params.pop(f"flag_{o.setting}") for o in self.flags}
        return super().invoke(ctx)


def read(ctx: Any) -> dict[str, Any]:
    """The settings that were typed, read by their tables: setting -> value.

    Raises:
        InputError: a value that cannot be read; names its flag.
    """
    typed = ctx.meta["flags"]
    found: dict[str, Any] = {}
    for option in ctx.command.flags:
        text = typed[option.setting]
        if option.is_switch:
            if text:
                found[option.setting] = option.kind == "true"
        elif option.is_list:
            if text:
                found[option.setting] = option.read(",".join(text))
        elif text is not None:
            found[option.setting] = option.read(text)
    return found
