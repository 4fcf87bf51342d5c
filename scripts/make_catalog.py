"""Write ``models/<family>/<id>.yaml`` from a file of facts: one JSON object a line, with the model's configuration.

    python scripts/make_catalog.py tests/data/models.jsonl            write them
    python scripts/make_catalog.py tests/data/models.jsonl --check    exit 1 where a file would change

A file that the facts do not have was written by hand and stays as it is. What the facts lack is in
``scripts/catalog_extras.yaml``. A computed parameter count that is off by more than 1 % without a reason there is an
error.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvplan.sources.dump import dump_model
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ENCODERS_APART, Checkpoint, Confidence, ModelSpec, Tower

MODELS = ROOT / "models"
TOLERANCE = 0.01
CONFIDENCE: dict[str, Confidence] = {"config.json seen": "seen", "derived": "derived", "recalled": "recalled"}

Extras = dict[str, dict[str, Any]]


def build(fact: dict[str, Any], extras: Extras) -> ModelSpec:
    """The catalog's spec of one fact.

    Raises:
        KvplanError: its configuration cannot be read.
        SystemExit: its parameter count is off and nobody says why.
    """
    model = fact["id"]
    config = fact["config"] | extras["config"].get(model, {})
    spec = read_config(config, where=model, name=fact["hf_repo"])
    sized = fact.get("tower_params") is not None
    spec = replace(
        spec,
        id=model,
        family=fact["family"],
        repo=fact["hf_repo"],
        released=fact.get("released"),
        license=fact.get("license"),
        source=fact["source"],
        confidence=CONFIDENCE[fact["confidence"]],
        published_parameters=fact.get("total_params"),
        published_active_parameters=fact.get("active_params"),
        notes=(*fact.get("notes", ()), *extras["notes"].get(model, ())),
        towers=towers(spec, fact),
        file_warnings=tuple(w for w in spec.file_warnings if not (sized and w.startswith(ENCODERS_APART))),
    )
    if model in extras["checkpoint"]:
        entry: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in extras["checkpoint"][model].items()
        }
        spec = replace(spec, checkpoint=Checkpoint(**entry))
    return explained(spec, extras)


def towers(spec: ModelSpec, fact: dict[str, Any]) -> tuple[Tower, ...]:
    """The encoders with their published sizes, where the facts have them."""
    exact = fact.get("tower_params")
    if exact is None:
        return spec.towers
    return (Tower(name=spec.towers[0].name if spec.towers else "vision", parameters=exact),)


def explained(spec: ModelSpec, extras: Extras) -> ModelSpec:
    """`spec` with the reason why its count differs from the published one, if it does."""
    published = spec.published_parameters
    off = published is not None and abs(spec.parameters - published) > TOLERANCE * published
    note = extras["parameters_note"].get(spec.id)
    if off and note is None:
        raise SystemExit(f"{spec.id}: {spec.parameters:,} parameters computed, {published:,} published, and no reason")
    return replace(spec, parameters_note=str(note).strip()) if off else spec


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("facts", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file would change")
    arguments = parser.parse_args()
    extras: Extras = yaml.safe_load((ROOT / "scripts" / "catalog_extras.yaml").read_text(encoding="utf-8"))
    wanted = {}
    for line in arguments.facts.read_text(encoding="utf-8").splitlines():
        fact = json.loads(line)
        wanted[MODELS / fact["family"] / f"{fact['id']}.yaml"] = dump_model(build(fact, extras))
    present = set(MODELS.glob("*/*.yaml"))
    changed = [p for p, text in wanted.items() if p not in present or p.read_text(encoding="utf-8") != text]
    if arguments.check:
        for path in changed:
            print(f"differs: {path.relative_to(ROOT)}")
        return 1 if changed else 0
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    print(f"{len(wanted)} models, {len(changed)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
