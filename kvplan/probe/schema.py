"""The JSON Schema of a receipt; ``python -m kvplan.probe.schema`` prints ``docs/schemas/kvplan.validation-1.json``."""

from __future__ import annotations

import json
from typing import Any, get_args

from kvplan.probe.receipt import SCHEMA, SECTIONS, Sense, Unit

_NUMBER = {"type": ["number", "null"]}
_TEXT = {"type": ["string", "null"]}
_COUNT = {"type": ["integer", "null"]}
_FLAG = {"type": ["boolean", "null"]}


def _object(properties: dict[str, Any], text: str, optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object", "description": text, "properties": properties,
        "required": [name for name in properties if name not in optional],
    }  # fmt: skip


def _said(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {**schema, "description": text}


def _row() -> dict[str, Any]:
    return _object(
        {
            "section": {"enum": list(SECTIONS)},
            "name": _said({"type": "string"}, "what it is; unique in its section"),
            "predicted": _said(_NUMBER, "null: nothing was predicted, the row informs"),
            "measured": _said(_NUMBER, "median of the samples; null: it could not be measured, note says why"),
            "unit": {"enum": list(get_args(Unit))},
            "error": _said(_NUMBER, "measured / predicted - 1"),
            "tolerance": _said(_NUMBER, "how far error may lie from 0; null: not judged"),
            "pass": _said(_FLAG, "null: not judged"),
            "spread": _said(_NUMBER, "distance of the quartiles over the median; null below three samples"),
            "samples": {"type": "array", "items": {"type": "number"}},
            "sense": {"enum": list(get_args(Sense))},
            "note": _said({"type": "string"}, "how it was measured or predicted"),
        },
        "One quantity, predicted and measured.",
    )


def _device() -> dict[str, Any]:
    nvml = {
        "number": {"type": "integer"}, "name": {"type": "string"}, "driver": _TEXT, "total_bytes": _COUNT,
        "reserved_bytes": _COUNT, "used_bytes": _COUNT, "free_bytes": _COUNT, "ecc": _FLAG, "mig": _FLAG,
        "bus_width_bits": _COUNT, "max_memory_clock_mhz": _COUNT, "memory_clock_mhz": _COUNT, "sm_clock_mhz": _COUNT,
        "max_sm_clock_mhz": _COUNT, "compute_capability": _TEXT, "power_limit_watts": _NUMBER,
        "theoretical_bandwidth": _NUMBER,
        "other_processes": _said(_COUNT, "on the card before the probe; absent in receipts of November 2026"),
    }  # fmt: skip
    said = _object(nvml, "What the driver says; without the card's UUID.", ("other_processes",))
    facts = {
        "kind": {"enum": ["cuda", "rocm", "mps", "cpu"]}, "index": {"type": "integer"}, "name": {"type": "string"},
        "gpu": _said(_TEXT, "id in the catalog"), "total_bytes": {"type": "integer"},
        "free_bytes": {"type": "integer"}, "theoretical_bandwidth": _NUMBER, "bandwidth_source": _TEXT,
        "compute_capability": _TEXT, "multiprocessors": _COUNT, "cache_bytes": _COUNT,
        "nvml": {"anyOf": [{"type": "null"}, said]},
    }  # fmt: skip
    return _object(facts, "The device that was measured.")


def schema() -> dict[str, Any]:
    """The whole JSON Schema (draft 2020-12) of ``kvplan validate --json``."""
    text, number, flag = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
    software = {
        "kvplan": text, "python": text, "torch": _TEXT, "triton": _TEXT, "runtime": _TEXT, "driver": _TEXT,
        "platform": text, "expandable_segments": flag,
        "threads": _said(_COUNT, "of a CPU: the quickest number; null elsewhere; absent in receipts of November 2026"),
    }  # fmt: skip
    inputs = {
        "model": text, "engine": text, "tensor_parallel_size": number, "block_size": number, "kv_cache_format": text,
        "quick": flag, "fill": flag, "max_memory_bytes": number, "world_size": number,
    }  # fmt: skip
    verdict = {
        "agrees": _said(_FLAG, "null: no row was judged"),
        "reason": text, "passed": number, "failed": number, "informative": number,
        "complete": _said(flag, "whether every section ran to its end, over all of its shapes"),
    }  # fmt: skip
    body = _object(
        {
            "schema": {"const": SCHEMA},
            "date": {"type": "string", "format": "date"},
            "device": _device(),
            "software": _object(software, "Versions.", ("threads",)),
            "inputs": _object(inputs, "What was asked for, and what the plan made of it."),
            "rows": {"type": "array", "items": _row()},
            "calibration": _said({"type": ["object", "null"]}, "kvplan.calibration/1, as --save writes it"),
            "exhibits": _said({"type": "object"}, "what rows cannot show: physical block tables"),
            "seconds": {"type": "number"},
            "verdict": _object(verdict, "Whether the predictions hold."),
            "warnings": {"type": "array", "items": text},
        },
        "What `kvplan validate --json` prints.",
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **body}


def published() -> str:
    """The text of the published file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(published(), end="")
