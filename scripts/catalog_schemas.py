"""The JSON Schemas of what the catalog's verbs print, which are plain dictionaries: ``kvplan models``, ``gpus``,
``engines``, ``formats``. `make_schemas.py` writes them with the others; a test holds the verbs to them.

A type is written short: ``integer?`` may be null, ``[string]`` is a list, a dictionary is an object with those keys.
"""

from __future__ import annotations

from typing import Any

Fields = dict[str, tuple[Any, str]]

FINDING: Fields = {
    "level": ("string", "`error` or `warning`."),
    "message": ("string", "What is wrong or odd."),
    "file": ("string", ""),
    "line": ("integer?", "Where in it."),
    "hint": ("string?", "What to do."),
}
LINT: Fields = {
    "files": ("integer", "Of `lint`: files that were read."),
    "errors": ("integer", "Of `lint`."),
    "warnings": ("integer", "Of `lint`."),
    "findings": ([FINDING], "Of `lint`: what it found."),
}

MODEL: Fields = {
    "id": ("string", "What MODEL takes."),
    "family": ("string", ""),
    "repo": ("string?", "Its name on the hub."),
    "architecture": ("string", ""),
    "parameters": ("integer", "Computed from the layers, towers included."),
    "active_parameters": ("integer", "Of them, those that a token multiplies."),
    "num_layers": ("integer", ""),
    "kv_bytes_per_token": ("integer", "In bf16, while every window has room."),
    "fixed_bytes_per_sequence": ("integer", "In bf16: states, whatever the length."),
    "max_position_embeddings": ("integer?", ""),
    "confidence": ("string", "`seen`, `derived` or `recalled`."),
}
MODEL_SHEET: Fields = {
    "name": ("string", ""),
    "aliases": (["string"], "Other names of the same shape."),
    "hidden_size": ("integer", ""),
    "vocab_size": ("integer", ""),
    "dtype": ("string", "Of the published weights."),
    "tie_word_embeddings": ("boolean", ""),
    "rope": ("object?", "Scaling of positions, as the configuration has it."),
    "checkpoint": ("object?", "Format of the published weights, where it is not `dtype`."),
    "layers": (
        [
            {
                "layers": ("integer", "How many."),
                "block": ("string", "Their block in the spec."),
                "kind": ("string", "What they cache."),
                "heads": ("integer?", "KV heads."),
                "head_dim_k": ("integer?", ""),
                "head_dim_v": ("integer?", ""),
                "window": ("integer?", "Tokens."),
                "bytes_per_token_per_layer": ("integer", "In bf16."),
                "fixed_bytes_per_layer": ("integer", "In bf16."),
                "ffn": ("string", "In words."),
            }
        ],
        "Layers that are alike, in order.",
    ),
    "parameters_by_role": ("object", "Role to parameters."),
    "draft_parameters": ("integer", "Of multi-token prediction, in no other figure."),
    "published_parameters": ("integer?", ""),
    "published_active_parameters": ("integer?", ""),
    "parameters_note": ("string?", "Why computed and published differ."),
    "towers": ([{"name": ("string", ""), "parameters": ("integer", "")}], "Encoders."),
    "released": ("string?", ""),
    "license": ("string?", ""),
    "source": ("string", "Where the shape was read."),
    "notes": (["string"], ""),
}
GPU: Fields = {
    "id": ("string", "What --gpu takes."),
    "name": ("string", ""),
    "vendor": ("string", ""),
    "architecture": ("string?", ""),
    "datasheet_gb": ("number", "As the vendor writes it."),
    "bandwidth_bytes_per_second": ("integer?", "Of its memory."),
    "nvml_total_bytes": ("integer?", "As the driver prints it."),
    "nvml_total_source": ("string?", ""),
    "torch_total_bytes": ("integer?", "As torch prints it."),
    "torch_total_source": ("string?", ""),
    "aliases": (["string"], ""),
    "compute_capability": ("string?", ""),
    "sm_count": ("integer?", ""),
    **{f"{kind}_flops": ("number?", "Dense, a second.") for kind in ("fp16", "bf16", "fp8", "fp4")},
    "int8_ops": ("number?", "Dense, a second."),
    "fp16_accumulate_flops": ("number?", "Sums in fp16, where those are faster."),
    "interconnect": ("string?", ""),
    "interconnect_bytes_per_second": ("integer?", "One direction and its opposite together, of one device."),
    "interconnect_note": ("string?", ""),
    "interconnect_generation": ("integer?", ""),
    "interconnect_lanes": ("integer?", ""),
    "interconnect_bridge": ("boolean", "Pairs only."),
    "tdp_watts": ("number?", ""),
    "unified_memory": ("boolean", "Shared with the host."),
    "price": (
        {
            "low_usd_per_hour": ("number", ""),
            "high_usd_per_hour": ("number", ""),
            "source": ("string", ""),
            "date": ("string", "When it was read."),
        },
        "On demand, of one device; null where none is known.",
    ),
    "source": (["string"], ""),
    "confidence": ("string", ""),
    "notes": (["string"], ""),
    "device_bytes": ("integer", "What a plan takes as its total."),
    "device_bytes_basis": ("string", "`measured` or `modelled`."),
    "device_bytes_source": ("string", ""),
}
ENGINE: Fields = {
    "name": ("string", "What --engine takes."),
    "aliases": (["string"], ""),
    "version": ("string", "The one that is planned where none is given."),
    "versions": (["string"], "Those whose source was read."),
    "summary": ("string", ""),
    "policies": ([{"about": ("string", ""), "rule": ("string", "")}], "How it lays out its cache."),
    "settings": (["string"], "The settings of a plan that it has."),
    "changes": ([{"since": ("string", ""), "what": ("string", ""), "source": ("string", "")}], "Rules by release."),
}
FORMAT: Fields = {
    "name": ("string", ""),
    "aliases": (["string"], ""),
    "use": ("string", "`cache`, `weights` or `both`."),
    "bits_per_element": ("number", "Scales included: cache at 8 heads of 128, weights of 4,096 x 4,096."),
    "block_elements": ("integer", ""),
    "block_bytes": ("integer", ""),
    "v_block_elements": ("integer?", "Of V, where it differs."),
    "v_block_bytes": ("integer?", "Of V, where it differs."),
    "scale": ("string", "What shares a scale outside of blocks: `none`, `tensor`, `token`, `token_head`."),
    "scale_bytes": ("integer", ""),
    "v_scale_bytes": ("integer?", ""),
    "tile": (["integer"], "Rows and columns of a weight matrix that share a scale; null: none."),
    "tile_bytes": ("integer", ""),
    "row_scale_bytes": ("integer", ""),
    "residual_tokens": ("integer", "Newest tokens in full precision."),
    "mix": ("string?", "Of a mix of types, how it is read."),
    "source": ("string", ""),
}

DOCUMENTS: dict[str, tuple[str, Fields]] = {
    "kvplan.models/1": (
        "kvplan models list",
        {
            "models": ([{**MODEL, **MODEL_SHEET}], "Of `list` the first eleven keys, of `show` and `import` all."),
            "fields": ("object", "Of `import`: the keys that were read."),
            "yaml": ("string", "Of `import`: the spec."),
            **LINT,
        },
    ),
    "kvplan.gpus/1": (
        "kvplan gpus list",
        {
            "gpus": ([GPU], "Of `list` and `show`."),
            "devices": (["object"], "Of `detect`: the GPUs of this machine."),
            "remarks": (["string"], "Of `detect`: where driver, torch and catalog differ."),
            **LINT,
        },
    ),
    "kvplan.engines/1": ("kvplan engines", {"engines": ([ENGINE], "")}),
    "kvplan.formats/1": ("kvplan formats", {"formats": ([FORMAT], "")}),
}
"""schema -> (the command that prints it, its keys besides `schema`)."""

SOMETIMES = {*LINT, *MODEL_SHEET, "models", "gpus", "fields", "yaml", "devices", "remarks"}
"""Keys that only some of the verbs print."""
NULLABLE = {"price", "tile"}


def of(kind: Any) -> dict[str, Any]:
    """The schema of a type written short."""
    if isinstance(kind, list):
        return {"type": "array", "items": of(kind[0])}
    if isinstance(kind, dict):
        return fields(kind)
    name = kind.removesuffix("?")
    return {"type": [name, "null"] if kind.endswith("?") else name}


def fields(table: Fields) -> dict[str, Any]:
    """An object with the keys of a table."""
    properties: dict[str, Any] = {}
    for key, (kind, text) in table.items():
        schema = of(kind)
        if key in NULLABLE:
            schema["type"] = [schema["type"], "null"]
        properties[key] = {**schema, "description": text} if text else schema
    return {"type": "object", "properties": properties, "required": [key for key in table if key not in SOMETIMES]}


def document(tag: str) -> dict[str, Any]:
    """The whole JSON Schema of one output."""
    command, table = DOCUMENTS[tag]
    found = fields(table)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": tag,
        "description": f"What `{command} --json` and its kin print.",
        **found,
        "properties": {"schema": {"const": tag}, **found["properties"]},
        "required": ["schema", *found["required"]],
    }


def words(schema: dict[str, Any]) -> str:
    """A type in words, for the page."""
    kind = schema.get("type", "any")
    names = [kind] if isinstance(kind, str) else kind
    inner = f"list of {words(schema['items'])}" if "items" in schema else None
    return " or ".join(inner if inner and name == "array" else name for name in names)


def page(tag: str) -> list[str]:
    """The part of docs/json.md: the keys of the document and of its rows."""
    schema = document(tag)
    lines = [f"\n## {tag}\n", schema["description"] + "\n", *rows(schema)]
    for key, value in schema["properties"].items():
        if value.get("items", {}).get("properties"):
            lines += ["", f"A row of `{key}`:", "", *rows(value["items"])]
    return lines


def rows(schema: dict[str, Any]) -> list[str]:
    found = ["| key | type | meaning |", "| --- | --- | --- |"]
    for key, value in schema["properties"].items():
        kind = f'`"{value["const"]}"`' if "const" in value else words(value)
        found.append(f"| `{key}` | {kind} | {value.get('description', '')} |")
    return found
