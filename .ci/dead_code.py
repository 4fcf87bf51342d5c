"""Functions, methods, classes and imports of the package and its scripts that nothing but a test uses.

    python .ci/dead_code.py

Fields of records are left out: they are read by name, where a record becomes JSON. Exit status 1: something is unused
that `USED` does not explain, or `USED` explains what is gone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parents[1]
USED = {
    "JsonTwins": "hatchling, which builds the wheel",
    "__dir__": "Python, for dir(kvplan)",
    "__get_pydantic_core_schema__": "pydantic, to ask a dataclass for its schema",
    "__getattr__": "Python, for what kvplan exports lazily",
    "_custom_shell_complete": "Typer, to complete a parameter",
    "as_mha": "a name in planning/explain.py and planning/sweep_axes.py",
    "do_HEAD": "http.server, in benchmarks/peers.py",
    "evictions": "the twin that tests hold the pool against, simulate/allocators/blocks.py",
    "finalize": "hatchling, after it has built",
    "format_commands": "Typer, to write the help",
    "format_epilog": "Typer, to write the help",
    "format_options": "Typer, to write the help",
    "get_code": "Python's import system, in scripts/mutation/fork.py",
    "held_spans": "an invariant of the allocators' tests",
    "initialize": "hatchling, before it builds",
    "log_message": "http.server, in benchmarks/peers.py",
    "pytest_collection_modifyitems": "pytest, in scripts/mutation",
    "pytest_runtest_logreport": "pytest, in scripts/mutation",
    "pytest_runtestloop": "pytest, in scripts/mutation",
    "read_lines": "the library: a log that is no file",
    "resolve_command": "Typer, to find a verb",
}
"""Name -> who calls it."""
CALLED_BY_DECORATOR = ["@app.command", "@app.callback", "@model_validator", "@model_serializer", "@triton.jit"]
ENGINES = [
    "Generic",
    "Mlx",
    "Ollama",
    "Sglang",
    "TensorRtLlm",
    "Transformers",
    "Exllamav3",
    "Vllm",
    "LlamaCpp",
    "LmStudio",
]
"""Classes that `ENGINES` of kvplan/engines names in text."""


def main() -> int:
    """List what is unused."""
    found = Vulture(ignore_decorators=CALLED_BY_DECORATOR, ignore_names=[*ENGINES, "model_config"])
    found.scavenge([str(ROOT / name) for name in ("kvplan", "scripts", "benchmarks", "hatch_build.py")])
    kinds = (
        found.unused_attrs, found.unused_classes, found.unused_funcs, found.unused_imports, found.unused_methods,
        found.unused_props, found.unreachable_code,
    )  # fmt: skip
    unused = [item for kind in kinds for item in kind if "/kernels/" not in str(item.filename)]
    wrong = [
        f"{Path(item.filename).relative_to(ROOT)}:{item.first_lineno}: {item.message}"
        for item in unused
        if item.name not in USED
    ]
    text = "".join(
        path.read_text(encoding="utf-8")
        for name in ("kvplan", "scripts", "benchmarks")
        for path in (ROOT / name).rglob("*.py")
    )
    text += (ROOT / "hatch_build.py").read_text(encoding="utf-8")
    wrong += [f".ci/dead_code.py: there is no {name!r} to explain" for name in sorted(USED) if name not in text]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
