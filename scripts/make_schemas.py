"""Write the JSON Schemas of what kvplan prints, ``docs/schemas/*.json``, and the page ``docs/json.md``.

Both come from the named tuples that are serialised: names, types and the text under each field. With ``--check``
nothing is written, and the exit status is 1 where a file is out of date.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import types
import typing
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import catalog_schemas
from written import keep_all

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SCHEMAS = ROOT / "docs" / "schemas"
PAGE = ROOT / "docs" / "json.md"

OUTPUTS: dict[str, tuple[str, str, str]] = {
    "kvplan.plan/1": ("kvplan.planning.plan", "Plan", "kvplan plan"),
    "kvplan.plans/1": ("kvplan.planning.side_by_side", "SideBySide", "kvplan plan --engine all"),
    "kvplan.explain/1": ("kvplan.planning.explain", "Explanation", "kvplan explain"),
    "kvplan.sweep/1": ("kvplan.planning.sweep_document", "SweepDocument", "kvplan sweep"),
    "kvplan.compare/1": ("kvplan.planning.compare", "Comparison", "kvplan compare"),
    "kvplan.fit/1": ("kvplan.planning.fit.result", "Fit", "kvplan fit"),
    "kvplan.log/1": ("kvplan.planning.log_report", "LogReport", "kvplan log"),
    "kvplan.trace/1": ("kvplan.simulate.documents", "Description", "kvplan trace describe"),
    "kvplan.simulation/1": ("kvplan.simulate.documents", "Simulation", "kvplan simulate"),
    "kvplan.simulations/1": ("kvplan.simulate.documents", "Simulations", "kvplan simulate --vary"),
}
"""schema -> (module, named tuple, the command that prints it)."""

NAMESPACES = (
    "kvplan.planning.speed.figures",
    "kvplan.planning.cost",
    "kvplan.planning.prefix",
    "kvplan.planning.workload",
    "kvplan.planning.no_cache",
    "kvplan.engines.base",
    "kvplan.planning.evaluate",
)
"""Modules whose names annotations use but do not import at run time."""

INTRO = """# JSON

Written by `scripts/make_schemas.py` from the code. Every document names its `schema`. Within one version keys may be
added, never changed or taken away. Bytes and tokens are integers, times seconds, rates per second; a figure that does
not apply is null. The JSON Schemas (draft 2020-12) lie in `docs/schemas/`.

Described where their verb is, with schemas in the same folder: `kvplan.rules/1`, `kvplan.check/1`, `kvplan.diff/1`
and `kvplan.metrics/1` in [check](check.md), `kvplan.validation/1` in [validate](validate.md), `kvplan.calibration/1` in
[speed](speed.md#calibration).
"""


class Schemas:
    """Named tuples turned into definitions, each once."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self.names: dict[str, Any] = {}
        for name in NAMESPACES:
            self.names |= vars(import_module(name))

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of one annotation."""
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if kind is Any:
            return {}
        if kind is type(None):
            return {"type": "null"}
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(arg) for arg in args]}
        if origin is typing.Literal:
            return {"enum": list(args)}
        if origin in (tuple, list) and (len(args) == 1 or args[-1] is Ellipsis):
            return {"type": "array", "items": self.of(args[0])}
        if origin is tuple:
            return {"type": "array", "prefixItems": [self.of(a) for a in args], "minItems": len(args), "items": False}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(args[1])}
        plain = {bool: "boolean", int: "integer", float: "number", str: "string"}.get(kind)
        if plain is not None:
            return {"type": plain}
        if kind is dict:
            return {"type": "object"}
        if hasattr(kind, "_fields"):
            return self.reference(kind)
        raise TypeError(f"no JSON for {kind!r}")

    def reference(self, kind: Any) -> dict[str, Any]:
        if kind.__name__ not in self.definitions:
            self.definitions[kind.__name__] = {}
            hints = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]), self.names)
            texts = field_texts(kind)
            properties = {}
            for field in kind._fields:
                properties[field] = self.of(hints[field])
                if field in texts:
                    properties[field] = {**properties[field], "description": texts[field]}
            self.definitions[kind.__name__] = {
                "type": "object",
                "description": first_line(kind),
                "properties": properties,
                "required": [
                    f for f in kind._fields if f not in getattr(sys.modules[kind.__module__], "OPTIONAL_KEYS", ())
                ],
            }
        return {"$ref": f"#/$defs/{kind.__name__}"}


def first_line(kind: Any) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())


def field_texts(kind: Any) -> dict[str, str]:
    """The string under each field of a class."""
    (body,) = [
        n for n in ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body if isinstance(n, ast.ClassDef)
    ]
    found = {}
    for node, after in zip(body.body, body.body[1:], strict=False):
        match node, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def document(tag: str) -> dict[str, Any]:
    """The whole JSON Schema of one output."""
    module, name, command = OUTPUTS[tag]
    kind = getattr(import_module(module), name)
    schemas = Schemas()
    schemas.reference(kind)
    root = dict(schemas.definitions.pop(name))
    root["properties"] = {**root["properties"], "schema": {"const": tag}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": tag,
        "description": f"What `{command} --json` prints. {root.pop('description')}",
        **root,
        "$defs": dict(sorted(schemas.definitions.items())),
    }


def shown(schema: dict[str, Any]) -> str:
    """A type in words."""
    if "$ref" in schema:
        return f"[{(name := schema['$ref'].rsplit('/', 1)[-1])}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(shown(part) for part in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if schema.get("type") == "array":
        return f"list of {shown(schema['items'])}" if schema.get("items") else "list"
    if schema.get("type") == "object" and schema.get("additionalProperties"):
        return f"object of {shown(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


def table(schema: dict[str, Any]) -> list[str]:
    rows = ["| key | type | meaning |", "| --- | --- | --- |"]
    for key, value in schema["properties"].items():
        rows.append(f"| `{key}` | {shown(value)} | {value.get('description', '').replace('|', chr(92) + '|')} |")
    return rows


def page(documents: dict[str, dict[str, Any]]) -> str:
    lines, seen = [INTRO], {}
    for tag, schema in documents.items():
        lines += [f"\n## {tag}\n", schema["description"] + "\n", *table(schema)]
        seen |= schema["$defs"]
    for tag in catalog_schemas.DOCUMENTS:
        lines += catalog_schemas.page(tag)
    lines.append("\n## Parts\n")
    for name, schema in sorted(seen.items()):
        lines += [f"### {name}\n", schema["description"] + "\n", *table(schema), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def files() -> dict[Path, str]:
    documents = {tag: document(tag) for tag in OUTPUTS}
    made = {
        SCHEMAS / f"{tag.replace('/', '-')}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for tag, schema in documents.items()
    }
    catalog = {
        SCHEMAS / f"{tag.replace('/', '-')}.json": json.dumps(catalog_schemas.document(tag), indent=2) + "\n"
        for tag in catalog_schemas.DOCUMENTS
    }
    return {**made, **catalog, **calibration(), PAGE: page(documents)}


def calibration() -> dict[Path, str]:
    """The schema of a calibration file, from what reads it."""
    from kvplan.planning.calibration_schema import CalibrationFile

    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **CalibrationFile.model_json_schema(),
        "title": "kvplan.calibration/1",
        "description": "What `kvplan validate --save FILE` writes and `--calibration FILE` reads.",
    }
    return {SCHEMAS / "kvplan.calibration-1.json": json.dumps(schema, indent=2) + "\n"}


def main(argv: Sequence[str] | None = None) -> int:
    return keep_all(files, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
