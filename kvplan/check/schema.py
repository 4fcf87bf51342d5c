"""The JSON Schema of a rule file, made from the flags and the rules' own tables, for editors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.check.fields import SCHEMA, Keys
from kvplan.check.rulefile import MAX_NAME
from kvplan.check.rules import BOUNDS, LEVELS
from kvplan.engines.options import Option

_RULE = r"^\s*[A-Za-z_][\w.]*(\([^()]*\))?\s*(<=|>=|==|!=|<|>)\s*\S[\s\S]*$"
_NUMBER_OR_TEXT: dict[str, Any] = {"type": ["number", "string", "null"]}
_COUNT: dict[str, Any] = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": ["string", "null"]}]}


def json_schema(options: Sequence[Option]) -> dict[str, Any]:
    """The schema (draft 2020-12) of ``kvplan.yaml``.

    Args:
        options: the planning flags, which are keys of the file.
    """
    keys = Keys(options)
    flags = {key: {"$ref": f"#/$defs/{option.setting}"} for key, option in keys.by_key.items()}
    flags |= {key.replace("-", "_"): value for key, value in flags.items()}
    settings = {option.setting: _flag(option) for option in keys.by_key.values()}
    workload = {key: flags[key] for key in flags if key.replace("_", "-") in keys.workload}
    names = {"type": "array", "items": {"type": "string"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:kvplan:rules:{SCHEMA.rpartition('/')[2]}",
        "title": "kvplan sizing rules",
        "description": "Deployments and the promises that each has to keep, for `kvplan check`.",
        "type": "object",
        "properties": {
            "schema": {"const": SCHEMA, "description": "Version of this file format."},
            "include": {
                "anyOf": [{"type": "string"}, names],
                "description": "Files read with this one; paths start from this file.",
            },
            "environment": {
                "anyOf": [names, {"type": "object", "additionalProperties": {"type": ["string", "number"]}}],
                "description": "Variables that `${NAME}` may stand for: names, or names with defaults.",
            },
            "defaults": _mapping(
                {"workloads": {"$ref": "#/$defs/workloads"}, **flags}, "Settings where a deployment says nothing."
            ),
            "workloads": {"$ref": "#/$defs/namedWorkloads"},
            "rules": {"$ref": "#/$defs/rules"},
            "deployments": {
                "type": "object",
                "description": "Deployments by name.",
                "propertyNames": {"minLength": 1, "maxLength": MAX_NAME},
                "additionalProperties": {"$ref": "#/$defs/deployment"},
            },
        },
        "required": ["schema"],
        "additionalProperties": False,
        "$defs": {**_definitions(flags, workload), "names": names, **settings},
    }


def _definitions(flags: dict[str, Any], workload: dict[str, Any]) -> dict[str, Any]:
    sources = {
        "model": "A catalog id, a hub name, or the path of a model file or folder.",
        "command": "An engine's own command line, as in `vllm serve Qwen/Qwen3-32B -tp 2`.",
        "from": "A file that starts an engine (manifest, compose file, chart values, unit, script); `#NAME` picks one.",
    }
    own = {key: {"type": "string", "minLength": 1, "description": text} for key, text in sources.items()}
    more = {"workloads": {"$ref": "#/$defs/workloads"}, "rules": {"$ref": "#/$defs/rules"}}
    deployment = _mapping({**own, **more, **flags}, "One deployment: its source, and settings that count over it.")
    deployment["oneOf"] = [{"required": [key]} for key in sources]
    return {
        "deployment": deployment,
        "workload": _mapping({"rules": {"$ref": "#/$defs/rules"}, **workload}, "One kind of traffic."),
        "namedWorkloads": {
            "type": "object",
            "description": "Workloads by name.",
            "additionalProperties": {"$ref": "#/$defs/workload"},
        },
        "workloads": {
            "anyOf": [{"type": ["string", "null"]}, {"$ref": "#/$defs/names"}, {"$ref": "#/$defs/namedWorkloads"}],
            "description": "Names of workloads, or workloads of its own.",
        },
        "rules": {
            "anyOf": [{"type": "null"}, {"$ref": "#/$defs/rule"}, {"type": "array", "items": {"$ref": "#/$defs/rule"}}],
            "description": "Promises: metric operator value [unit].",
        },
        "rule": {
            "anyOf": [
                {"type": "string", "pattern": _RULE},
                {
                    "type": "object",
                    "properties": {
                        "rule": {"type": "string", "pattern": _RULE},
                        "level": {"enum": list(LEVELS), "description": "`warn` never fails without --strict."},
                        "bound": {"enum": list(BOUNDS), "description": "Which end of a modelled figure counts."},
                        "workloads": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/names"}]},
                    },
                    "required": ["rule"],
                    "additionalProperties": False,
                },
            ]
        },
    }


def _mapping(properties: dict[str, Any], description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "additionalProperties": False,
    }


def _flag(option: Option) -> dict[str, Any]:
    """What may stand under the key of a flag."""
    said = {"description": f"{option.help} ({option.flags[0]})" if option.panel else option.help}
    if option.is_switch:
        return {"type": ["boolean", "null"], **said}
    if option.is_list:
        prices = {"type": "object", "additionalProperties": {"type": ["number", "string"]}}
        several = {"type": "array", "items": {"type": ["number", "string"]}}
        return {"anyOf": [_NUMBER_OR_TEXT, prices, several], **said}
    if option.kind == "text":
        config = option.setting.endswith("config")
        return {"type": ["string", "number", "null", *(["object"] if config else [])], **said}
    return {**(_COUNT if option.kind == "count" else _NUMBER_OR_TEXT), **said}
