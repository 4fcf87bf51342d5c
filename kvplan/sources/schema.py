"""What a spec file may hold, as pydantic sees it: validation of people's files, and the JSON Schema.

The rules are the dataclasses of `kvplan.spec` and `kvplan.cache` themselves. Only this module and
its callers import pydantic; a plan from the catalog never does. A new cache kind needs no line
here: the union of mixers is made from `kvplan.cache.KINDS`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Annotated, Any, Literal, Union

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from kvplan.cache import KINDS, kind_class
from kvplan.spec import gpu as gpu_module
from kvplan.spec import model as model_module
from kvplan.spec.ffn import FFNS
from kvplan.spec.gpu import GpuSpec, Price
from kvplan.spec.kind import CacheKind, LayerPart
from kvplan.spec.model import Block, Checkpoint, ExtraTensor, ModelSpec, Tower

What = Literal["model", "gpu"]

SCHEMAS: dict[str, tuple[type, str]] = {
    "model": (ModelSpec, model_module.SCHEMA),
    "gpu": (GpuSpec, gpu_module.SCHEMA),
}
"""What a file describes -> (class, value of its ``schema`` key)."""

PARTS: dict[tuple[type, str], type] = {
    (ModelSpec, "blocks"): Block, (ModelSpec, "checkpoint"): Checkpoint, (ModelSpec, "towers"): Tower,
    (ModelSpec, "tensors"): ExtraTensor, (ModelSpec, "draft_tensors"): ExtraTensor, (Block, "tensors"): ExtraTensor,
    (GpuSpec, "price"): Price,
}  # fmt: skip
"""(class, field) -> the class of what stands in that field, or in its entries."""
SINGLE = frozenset({(ModelSpec, "checkpoint"), (GpuSpec, "price")})
"""Those of `PARTS` that hold one such thing; the others hold a list or a mapping of them."""
KIND_FIELDS: dict[str, tuple[str, Any]] = {"mixers": ("cache kind", KINDS), "ffns": ("FFN kind", FFNS)}
"""Fields of a block whose entries name their class by ``kind`` -> (what to call it, the kinds)."""


def part_class(field: str, kind: str) -> type[LayerPart] | None:
    """The class of a mixer or FFN, None for an unknown kind."""
    if kind not in KIND_FIELDS[field][1]:
        return None
    return FFNS[kind] if field == "ffns" else kind_class(kind)


@cache
def adapter(what: What) -> TypeAdapter[Any]:
    """Validates the JSON form of a spec: strict types, no unknown keys, layers already spelled out."""
    _prepare()
    return TypeAdapter(SCHEMAS[what][0])


@cache
def _prepare() -> None:
    """Teach the dataclasses what YAML files need: no unknown keys, and kinds as unions."""
    for cls in (ModelSpec, GpuSpec, *_classes()):
        with_config(ConfigDict(extra="forbid"))(cls)
    _as_union(CacheKind, Union[tuple(kind_class(kind) for kind in KINDS)])  # noqa: UP007 - made at run time
    _as_union(LayerPart, Union[tuple(FFNS.values())])  # noqa: UP007


def _classes() -> list[type]:
    """Every dataclass that stands somewhere inside a spec."""
    return [*dict.fromkeys(PARTS.values()), *(kind_class(kind) for kind in KINDS), *FFNS.values()]


def _as_union(base: type, union: Any) -> None:
    """A field of type `base` takes any class of `union`, told apart by ``kind``."""

    def core_schema(cls: type, source: Any, handler: Any) -> Any:
        return handler(Annotated[union, Field(discriminator="kind")] if cls is base else source)

    base.__get_pydantic_core_schema__ = classmethod(core_schema)  # type: ignore[attr-defined]


def json_schema(what: What) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a model file or an accelerator file."""
    cls, tag = SCHEMAS[what]
    found = adapter(what).json_schema()
    found["properties"] = {
        "schema": {"const": tag, "description": "Version of this file format."},
        **found["properties"],
    }
    found["required"] = ["schema", *found.get("required", [])]
    definitions = found.setdefault("$defs", {})
    for part in (cls, *_classes()):
        target = found if part is cls else definitions.get(part.__name__)
        if target is not None:
            _describe(part, target)
    if what == "model":
        _describe_layers(found)
    title = {"model": "kvplan model", "gpu": "kvplan accelerator"}[what]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:kvplan:{what}:{tag.rpartition('/')[2]}",
        "title": title,
        "description": (cls.__doc__ or "").splitlines()[0],
    }
    return head | {key: value for key, value in found.items() if key not in head}


def _describe(cls: type, schema: dict[str, Any]) -> None:
    """Field docstrings as descriptions; ``kind`` must be there, since it picks the class."""
    for base in cls.__mro__[:-1]:
        for name, text in _field_docs(base).items():
            if name in schema["properties"]:
                schema["properties"][name].setdefault("description", text)
    kind = schema["properties"].get("kind")
    if kind is not None:
        kind.pop("default", None)
        schema["required"] = ["kind", *schema.get("required", [])]


@cache
def _field_docs(cls: type) -> dict[str, str]:
    """field -> the string that follows it in the source of its class."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError):  # no source beside the bytecode
        return {}
    found: dict[str, str] = {}
    field = ""
    for line in body.body if isinstance(body, ast.ClassDef) else ():
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and field:
            found[field] = " ".join(str(line.value.value).split())
        field = line.target.id if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) else ""
    return found


def _describe_layers(schema: dict[str, Any]) -> None:
    """Layers are written as block names and repetitions, which may nest."""
    entry = {"$ref": "#/$defs/LayerEntry"}
    schema["$defs"]["LayerEntry"] = {
        "title": "LayerEntry",
        "description": "The name of a block, or a pattern and how often it repeats.",
        "anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "properties": {
                    "repeat": {"type": "integer", "minimum": 1, "description": "How often."},
                    "of": {"type": "array", "items": entry, "minItems": 1, "description": "What repeats."},
                },
                "required": ["repeat", "of"],
                "additionalProperties": False,
            },
        ],
    }
    for name, minimum in (("layers", 1), ("draft_layers", 0)):
        old = schema["properties"][name]
        kept = {key: old[key] for key in ("title", "description", "default") if key in old}
        schema["properties"][name] = {**kept, "type": "array", "items": entry, "minItems": minimum}
