"""Write ``kvplan/data/gpus/<vendor>/<id>.yaml`` from a file of facts, one JSON object a line; others stay as they are.

    python scripts/make_gpus.py tests/data/gpus.jsonl            write them
    python scripts/make_gpus.py tests/data/gpus.jsonl --check    exit 1 where a file would change

The facts are in the units of datasheets (MiB, GB/s, TFLOPs, GB/s both ways); the specs are in
bytes, operations and bytes per second. ``scripts/gpu_extras.yaml`` adds what the facts lack.
"""

from __future__ import annotations

import argparse
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "kvplan" / "data" / "gpus"
SCHEMA = "kvplan.gpu/1"

PLAIN = {
    "id": "id", "name": "name", "vendor": "vendor", "arch": "architecture", "aliases": "aliases",
    "compute_capability": "compute_capability", "memory_datasheet_gb": "datasheet_gb",
    "memory_total_source": "nvml_total_source", "torch_total_bytes": "torch_total_bytes",
    "tdp_w": "tdp_watts", "unified_memory": "unified_memory", "source": "source", "confidence": "confidence",
    "notes": "notes",
}  # fmt: skip
SCALED = {
    "memory_total_mib": ("nvml_total_bytes", 2**20), "mem_bandwidth_gb_s": ("bandwidth_bytes_per_second", 10**9),
    "fp16_tflops_dense": ("fp16_flops", 10**12), "bf16_tflops_dense": ("bf16_flops", 10**12),
    "fp8_tflops_dense": ("fp8_flops", 10**12), "fp4_tflops_dense": ("fp4_flops", 10**12),
    "int8_tops_dense": ("int8_ops", 10**12), "fp16_tflops_fp16_accumulate": ("fp16_accumulate_flops", 10**12),
}  # fmt: skip
LINK = {
    "type": "interconnect", "note": "interconnect_note", "gen": "interconnect_generation",
    "lanes": "interconnect_lanes", "bridge": "interconnect_bridge",
}  # fmt: skip
NESTED = (
    "interconnect",
    "price_usd_hour",
    "torch_total_precision",
    "torch_total_gib_reported",
    "torch_total_gib_source",
)
ORDER = (
    "schema", "id", "name", "aliases", "vendor", "architecture", "compute_capability", "sm_count", "datasheet_gb",
    "nvml_total_bytes", "nvml_total_source", "torch_total_bytes", "torch_total_source", "unified_memory",
    "bandwidth_bytes_per_second", "fp16_flops", "bf16_flops", "fp8_flops", "fp4_flops", "int8_ops",
    "fp16_accumulate_flops", "interconnect", "interconnect_bytes_per_second", "interconnect_generation",
    "interconnect_lanes", "interconnect_bridge", "interconnect_note", "tdp_watts", "price", "source", "confidence",
    "notes",
)  # fmt: skip


def whole(value: float | int, factor: int) -> int:
    """`value` x `factor`, exactly: the decimal digits of the fact, not its binary neighbour."""
    product = Decimal(str(value)) * factor
    if product != product.to_integral_value():
        raise SystemExit(f"{value} x {factor} is not whole")
    return int(product)


def torch_source(fact: dict[str, Any]) -> str | None:
    """Where the torch total comes from, and how exact it is."""
    if "torch_total_bytes" not in fact:
        return None
    parts = [f"torch total, {fact['torch_total_precision']}"]
    if reported := fact.get("torch_total_gib_reported"):
        seen = " / ".join(str(v) for v in reported)
        parts.append(f"{seen} GiB in {fact['torch_total_gib_source']}")
    return "; ".join(parts)


def spec(fact: dict[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
    """The YAML mapping of one accelerator.

    Raises:
        SystemExit: a key that no rule reads, or a figure that is not whole in the target unit.
    """
    if unread := fact.keys() - PLAIN.keys() - SCALED.keys() - set(NESTED):
        raise SystemExit(f"{fact['id']}: keys that nothing reads: {', '.join(sorted(unread))}")
    found: dict[str, Any] = {"schema": SCHEMA, "torch_total_source": torch_source(fact)}
    found |= {ours: fact.get(theirs) for theirs, ours in PLAIN.items()}
    found |= {ours: whole(fact[theirs], by) for theirs, (ours, by) in SCALED.items() if fact.get(theirs) is not None}
    link = fact.get("interconnect") or {}
    if unread := link.keys() - LINK.keys() - {"gb_s_bidirectional"}:
        raise SystemExit(f"{fact['id']}: interconnect keys that nothing reads: {', '.join(sorted(unread))}")
    found |= {ours: link.get(theirs) for theirs, ours in LINK.items()}
    if "gb_s_bidirectional" in link:
        found["interconnect_bytes_per_second"] = whole(link["gb_s_bidirectional"], 10**9)
    if price := fact.get("price_usd_hour"):
        low, high = price["low"], price["high"]
        found["price"] = {
            "low_usd_per_hour": low, "high_usd_per_hour": high, "source": price["source"], "date": price["date"],
        }  # fmt: skip
    found["sm_count"] = extras["sm_count"].get(fact["id"])
    found |= extras["measured"].get(fact["id"], {})
    return {key: found[key] for key in ORDER if found.get(key) is not None}


def render(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=1000)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("facts", type=Path, help="JSON lines")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file is out of date")
    args = parser.parse_args(argv)
    extras = yaml.safe_load((ROOT / "scripts" / "gpu_extras.yaml").read_text(encoding="utf-8"))
    facts = [json.loads(line) for line in args.facts.read_text(encoding="utf-8").splitlines() if line.strip()]
    wanted = {TARGET / f["vendor"] / f"{f['id']}.yaml": render(spec(f, extras)) for f in facts}
    if unknown := (extras["sm_count"].keys() | extras["measured"].keys()) - {f["id"] for f in facts}:
        raise SystemExit(f"gpu_extras.yaml: ids without facts: {', '.join(sorted(unknown))}")
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    if args.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    print(f"{len(wanted)} accelerators, {len(stale)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
