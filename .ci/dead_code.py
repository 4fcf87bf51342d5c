"""Functions, methods, classes and imports of the package and its scripts that nothing but a test uses.

    python .ci/dead_code.py

Fields of records are left out: they are read by name, where a record becomes JSON. Exit status 1: something is unused
that `USED` does not explain, or `USED` explains what is gone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from kvplan.cache import KINDS  # noqa: E402
from kvplan.engines import ENGINES  # noqa: E402

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
    "pytest_runtest_logstart": "pytest, in scripts/mutation",
    "pytest_runtestloop": "pytest, in scripts/mutation",
    "read_header": "the tensors one by one, with which tests hold the groups that are read",
    "read_lines": "the library: a log that is no file",
    "resolve_command": "Typer, to find a verb",
}
"""Name -> who calls it."""
CALLED_BY_DECORATOR = ["@app.command", "@app.callback", "@model_validator", "@model_serializer", "@triton.jit"]
FOLDERS = ("kvplan", "scripts", "benchmarks")


def hidden() -> Iterator[str]:
    """Names of modules of the package that no other module asks for and their own does not use.

    Vulture goes by names alone: what is called like something that lives is not seen by it.
    """
    trees = {module(path): ast.parse(path.read_bytes()) for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
    asked: set[tuple[str, str]] = set()
    for tree in trees.values():
        modules: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                asked |= {(node.module, alias.name) for alias in node.names}
                modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Call):
                called = isinstance(node.value, ast.Call)  # import_module(...).TABLE
                asked.add(("", node.attr) if called else (modules.get(node.value.id, "-"), node.attr))
            elif isinstance(node, ast.Tuple | ast.Call):  # (module, name) of a table, getattr(module, name)
                asked |= {("", part.value) for part in texts(node) if isinstance(part, ast.Constant)}
    for where, tree in sorted(trees.items()):
        for node in tree.body if where.startswith("kvplan") and ".kernels." not in where else []:
            for name in defined(node):
                alone = ("", name) not in asked and (where, name) not in asked and name not in USED
                if alone and not name.startswith("__") and not inside(tree, node, name):
                    yield f"{where.replace('.', '/')}.py:{node.lineno}: nothing uses {name} of this module"


def texts(node: ast.Tuple | ast.Call) -> list[ast.expr]:
    """Where a name may stand as text; one that also stands in a tuple for another reason counts as asked for."""
    if isinstance(node, ast.Tuple):
        return node.elts
    return node.args if isinstance(node.func, ast.Name) and node.func.id == "getattr" else []


def module(path: Path) -> str:
    """``kvplan/engines/base.py`` -> ``kvplan.engines.base``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement of a module gives; those of decorated functions are for who decorates them."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [] if node.decorator_list and isinstance(node, ast.FunctionDef) else [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def inside(tree: ast.Module, own: ast.stmt, name: str) -> bool:
    """Whether a module uses a name outside the statement that defines it."""
    nodes = (node for statement in tree.body if statement is not own for node in ast.walk(statement))
    return any(isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) for node in nodes)


def main() -> int:
    """List what is unused."""
    by_text = [name for table in (ENGINES, KINDS) for _, name in table.values()]  # imported by these names
    found = Vulture(ignore_decorators=CALLED_BY_DECORATOR, ignore_names=[*by_text, "model_config"])
    found.scavenge([str(ROOT / name) for name in (*FOLDERS, "hatch_build.py")])
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
    text = "".join(path.read_text(encoding="utf-8") for name in FOLDERS for path in (ROOT / name).rglob("*.py"))
    text += (ROOT / "hatch_build.py").read_text(encoding="utf-8")
    wrong += [f".ci/dead_code.py: there is no {name!r} to explain" for name in sorted(USED) if name not in text]
    wrong += hidden()
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
