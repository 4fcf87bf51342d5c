"""Model and accelerator files that people write: every mistake named with its line and the way out.

`read_yaml` gives plain data with line numbers; `load_model_file` and `load_gpu_file` give specs or
the first error; `lint_model_file` and `lint_gpu_file` give everything there is to say about a file.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple, cast

from kvplan.errors import SpecError, UnknownNameError, nearest, printable
from kvplan.sources.yaml_reader import Path, Positions, line_of, read_yaml
from kvplan.spec.gpu import GpuSpec
from kvplan.spec.model import ModelSpec

__all__ = [
    "Finding", "lint_gpu_file", "lint_model_file", "load_gpu_file", "load_model_file", "model_from_text", "read_yaml",
]  # fmt: skip

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_WANTED = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number", "string_type": "text",
    "bool_type": "true or false", "tuple_type": "a list", "list_type": "a list", "dict_type": "a mapping",
    "dataclass_type": "a mapping", "dataclass_exact_type": "a mapping", "none_required": "null",
}  # fmt: skip


class Finding(NamedTuple):
    """One thing to say about a file."""

    level: Literal["error", "warning"]
    message: str
    file: str
    line: int
    hint: str | None = None

    def as_error(self) -> SpecError:
        return SpecError(self.message, where=f"{self.file}:{self.line}", hint=self.hint)


def load_model_file(path: str | os.PathLike[str]) -> ModelSpec:
    """The model that a YAML file describes.

    Raises:
        SpecError: the first thing that is wrong, with its line.
    """
    return cast(ModelSpec, _load(path, "model"))


def load_gpu_file(path: str | os.PathLike[str]) -> GpuSpec:
    """The accelerator that a YAML file describes.

    Raises:
        SpecError: the first thing that is wrong, with its line.
    """
    try:
        return cast(GpuSpec, _load(path, "gpu"))
    except SpecError as error:
        error.hint = (error.hint or "").replace("kvplan models import ID", "kvplan gpus show ID --json")
        raise


def model_from_text(text: str, name: str) -> ModelSpec:
    """The model that YAML text describes; `name` stands for the file in errors."""
    from kvplan.sources.yaml_reader import parse_yaml

    data, positions = parse_yaml(text, name)
    return cast(ModelSpec, _checked(data, positions, name, "model"))


def lint_model_file(path: str | os.PathLike[str]) -> list[Finding]:
    """Every problem of a model file: what the types refuse, or else what they cannot see."""
    return _lint(path, "model")


def lint_gpu_file(path: str | os.PathLike[str]) -> list[Finding]:
    """Every problem of an accelerator file."""
    return _lint(path, "gpu")


def _load(path: str | os.PathLike[str], what: Literal["model", "gpu"]) -> object:
    data, positions = read_yaml(path)
    return _checked(data, positions, printable(os.fspath(path)), what)


def _checked(data: Any, positions: Positions, name: str, what: Literal["model", "gpu"]) -> object:
    spec, findings = _validate(data, positions, name, what)
    if not findings:
        findings = [f for f in _remarks(spec, data, positions, name, what) if f.level == "error"]
    if not findings:
        return spec
    error = findings[0].as_error()
    if len(findings) > 1:
        more = f"and {len(findings) - 1} more: `kvplan {what}s lint {name}` lists them"
        error.hint = f"{error.hint}; {more}" if error.hint else more
    raise error


def _lint(path: str | os.PathLike[str], what: Literal["model", "gpu"]) -> list[Finding]:
    name = printable(os.fspath(path))
    try:
        data, positions = read_yaml(path)
    except SpecError as error:
        file, _, line = (error.where or name).rpartition(":")
        if not line.isdigit():
            file, line = name, "1"
        return [Finding("error", error.message, file, int(line), error.hint)]
    spec, findings = _validate(data, positions, name, what)
    if spec is None:
        return findings
    return sorted(_remarks(spec, data, positions, name, what), key=lambda f: (f.level != "error", f.line))


def _remarks(spec: object, data: Any, positions: Positions, name: str, what: Literal["model", "gpu"]) -> list[Finding]:
    """What the types cannot see in a well-formed spec."""
    from kvplan.sources import spec_lint

    look: Any = spec_lint.model_findings if what == "model" else spec_lint.gpu_findings
    return [
        Finding(level, message, name, line_of(positions, path), hint) for level, message, path, hint in look(spec, data)
    ]


def _validate(
    data: Any, positions: Positions, name: str, what: Literal["model", "gpu"]
) -> tuple[object | None, list[Finding]]:
    """(spec, no findings) or (None, all that is wrong, by line)."""
    from pydantic import ValidationError

    from kvplan.sources import schema

    def finding(message: str, path: Path, hint: str | None = None) -> Finding:
        said = hint or f"`kvplan {what}s schema` describes the file" if what == "model" else hint
        return Finding("error", message, name, line_of(positions, path), said)

    cls, tag = schema.SCHEMAS[what]
    if not isinstance(data, dict):
        return None, [finding(f"should be a mapping, not {_shown(data)}", (), f"begin it with: schema: {tag}")]
    if data.get("schema") != tag:
        had = f"schema is {_shown(data['schema'])}" if "schema" in data else "no schema"
        rules = str(data.get("schema", "")).startswith("kvplan.rules/")
        hint = "a rule file is held by `kvplan check FILE`" if rules else f"write schema: {tag}"
        return None, [finding(had, ("schema",), hint)]
    plain = {key: value for key, value in data.items() if key != "schema"}
    findings: list[Finding] = []
    if what == "model":
        plain, findings = _spelled_out(plain, finding)
    try:
        spec = schema.adapter(what).validate_json(json.dumps(plain), strict=True)
    except ValidationError as problem:
        spec = None
        said = {f.message for f in findings}
        found = [_explained(cls, data, error, finding) for error in problem.errors(include_url=False)]
        meant = {f.hint for f in found if f.message.startswith("unknown key")}
        wrong = [f for f in found if f.message not in said and not _misspelt(f, meant)]
        findings += wrong
    if findings:
        return None, sorted(findings, key=lambda f: (f.message.startswith("no "), f.line))
    return spec, []


def _misspelt(found: Finding, meant: set[str | None]) -> bool:
    """Whether a missing key is there, only spelt wrong, which has been said."""
    key = (found.hint or "").removeprefix("add the key ")
    return found.message.startswith("no ") and f"did you mean {key}?" in meant


def _spelled_out(plain: dict[str, Any], finding: Any) -> tuple[dict[str, Any], list[Finding]]:
    """Layer patterns as lists of block names; what cannot be spelled out is a finding."""
    from kvplan.catalog.build import expand_layers

    blocks = plain.get("blocks")
    findings: list[Finding] = []
    for key in ("layers", "draft_layers"):
        if not plain.get(key) and not (key == "layers" and key in plain):
            continue
        if not isinstance(blocks, dict):
            return {**plain, key: []}, findings  # blocks itself is wrong, and that is said
        try:
            plain = {**plain, key: list(expand_layers(plain[key], blocks, where=key))}
        except SpecError as error:
            path = tuple(int(i) if i else step for step, i in _STEP.findall(error.where or key))
            findings.append(finding(f"{_dotted(path)}: {error.message}", path, error.hint))
            plain = {**plain, key: [next(iter(blocks), "")]}
    return plain, findings


def _explained(cls: type, data: Any, error: Any, finding: Any) -> Finding:
    """What pydantic says, in the words of the file."""
    path, owner, known = _place(cls, data, error["loc"])
    kind, value = error["type"], error.get("input")
    name = _dotted(path)
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        near = nearest(str(path[-1]), known, 1)
        inside = f" in {_dotted(path[:-1])}" if len(path) > 1 else ""
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
        return cast(Finding, finding(f"unknown key {printable(str(path[-1]), 60)!r}{inside}", path, hint))
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        inside = f" in {_dotted(path[:-1])}" if len(path) > 1 else ""
        return cast(Finding, finding(f"no {path[-1]}{inside}", path[:-1], f"add the key {path[-1]}"))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_kind(path, value, finding)
    if kind in _WANTED:
        return cast(Finding, finding(f"{name} should be {_WANTED[kind]}, not {_shown(value)}", path))
    if kind == "literal_error":
        expected = str(error["ctx"]["expected"]).replace("'", "")
        return cast(Finding, finding(f"{name} is {_shown(value)}", path, f"one of {expected}"))
    if kind == "value_error":
        text = printable(str(error["ctx"]["error"]))
        field = next((f for f in known if re.search(rf"\b{f}\b", text)), None)
        deeper = (*path, field) if owner is not None and field else path
        return cast(Finding, finding(f"{name}: {text}" if path else text, deeper))
    return cast(Finding, finding(f"{name}: {printable(error['msg'], 120)}", path))


def _wrong_kind(path: Path, value: Any, finding: Any) -> Finding:
    """A mixer or FFN without a kind, or with one that does not exist."""
    from kvplan.sources.schema import KIND_FIELDS

    what, kinds = KIND_FIELDS[next(str(p) for p in reversed(path) if p in KIND_FIELDS)]
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        return cast(Finding, finding(f"no kind in {_dotted(path)}", path, f"add kind: one of {', '.join(kinds)}"))
    wrong = UnknownNameError(what, kind, list(kinds))
    return cast(Finding, finding(wrong.message, (*path, "kind"), wrong.hint or f"one of {', '.join(kinds)}"))


def _place(cls: type, data: Any, loc: tuple[str | int, ...]) -> tuple[Path, type | None, list[str]]:
    """(path in the file, class of what stands there, keys known at its end).

    A location that pydantic reports also holds the kind that picked a class; the file does not.
    """
    from kvplan.sources import schema

    path: list[str | int] = []
    owner: type | None = cls
    pending: type | None = None  # class of the entries of the mapping or list we are in
    choices: str | None = None
    known = _keys(cls)
    here = data
    for step in loc:
        if choices and isinstance(here, dict) and step == here.get("kind"):
            owner, choices = schema.part_class(choices, str(step)), None
            known = _keys(owner)
            continue
        path.append(step)
        if owner is not None:
            found = schema.PARTS.get((owner, str(step)))
            choices = str(step) if step in schema.KIND_FIELDS else None
            single = (owner, str(step)) in schema.SINGLE
            known = _keys(owner)
            owner, pending = (found, None) if single else (None, found)
        elif pending is not None:
            owner, pending = pending, None
        try:
            here = here[step]
        except (KeyError, IndexError, TypeError):
            here = None
    return tuple(path), owner, _keys(owner) if owner is not None else known


def _keys(cls: Any) -> list[str]:
    return [f.name for f in fields(cls)] if cls is not None and is_dataclass(cls) else []


def _dotted(path: Path) -> str:
    """``blocks.full.mixers[0].kv_heads``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{printable(step, 60)}" for step in path)
    return text.removeprefix(".")


def _shown(value: Any) -> str:
    """A value as a person would recognise it, short."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    return printable(repr(value) if isinstance(value, str) else json.dumps(value), 60)
