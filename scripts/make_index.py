"""Write ``kvplan/catalog/_names.py``: every name that the catalog answers to.

    python scripts/make_index.py            write it
    python scripts/make_index.py --check    exit 1 where it would change

Reads the id, repository and aliases of each file in ``models/`` and ``kvplan/data/gpus/``, and
``scripts/model_names.yaml`` for what no rule can derive.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from written import keep

from kvplan.catalog import rules

TARGET = ROOT / "kvplan" / "catalog" / "_names.py"
WIDTH = 118
HEAD = '''"""Every name the catalog answers to. Written by scripts/make_index.py; do not edit."""
# fmt: off

from __future__ import annotations

from typing import Any

'''

Names = dict[str, str | tuple[str, ...]]


def read(path: Path) -> dict[str, Any]:
    data = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(data, dict) or not isinstance(data.get("id"), str):
        raise SystemExit(f"{path}: it has no id")
    if data["id"] != path.stem:
        raise SystemExit(f"{path}: its id is {data['id']}: call the file {data['id']}.yaml, or change the id")
    return data


Owners = dict[str, set[str]]


def add(table: Owners, key: str, owner: str) -> None:
    table.setdefault(key, set()).add(owner)


def model_names(models: dict[str, dict[str, Any]], extra: dict[str, Any]) -> tuple[Names, dict[str, Any]]:
    """(key -> id or ids, key -> (id, changed fields)) from ids, repositories, aliases and rules.

    A lookup tries a key as typed and then without its variant words, so a name as written is stored
    only where the shorter key would lead elsewhere. Names as written win over shorter ones.
    """
    check_ids(models, extra)
    exact: Owners = {}
    short: Owners = {}
    for model, data in models.items():
        for spelling in (model, data.get("repo") or model, *data.get("aliases", ()), *extra["aliases"].get(model, ())):
            key = rules.model_key(spelling)[1]
            add(exact, key, model)
            add(short, rules.without_variant(rules.split_quantised(key)[0]), model)
    for key, owners in exact.items():
        if len(owners) > 1 or (key in models and owners != {key}):
            raise SystemExit(f"{key!r} is a name of {', '.join(sorted(owners))}")
    short |= {rules.model_key(key)[1]: set(owners) for key, owners in extra["ambiguous"].items()}
    short = {key: exact.get(key, owners) for key, owners in short.items() if key not in models}
    variants = {}
    for spelling, change in extra["variants"].items():
        fields = {"repo": spelling, **change}
        variants[rules.model_key(spelling)[1]] = (fields.pop("of"), fields)
    names: Names = {key: only(owners) for key, owners in short.items()}
    for key, owners in exact.items():
        reached = rules.without_variant(key)
        if key not in models and ({reached} if reached in models else short.get(reached)) != owners:
            names[key] = only(owners)
    return {key: names[key] for key in sorted(names)}, variants


def only(owners: set[str]) -> str | tuple[str, ...]:
    return next(iter(owners)) if len(owners) == 1 else tuple(sorted(owners))


def check_ids(models: dict[str, dict[str, Any]], extra: dict[str, Any]) -> None:
    """Every id that the hand-written names speak of must be in the catalog."""
    named = {*extra["aliases"], *(v["of"] for v in extra["variants"].values())}
    named.update(owner for owners in extra["ambiguous"].values() for owner in owners)
    if unknown := named - models.keys():
        raise SystemExit(f"model_names.yaml: not in the catalog: {', '.join(sorted(unknown))}")


def gpu_names(gpus: dict[str, dict[str, Any]], shared: Collection[str] = ()) -> Names:
    """key -> id or ids. Ids, driver names and aliases win over what is derived from an id.

    Args:
        shared: names that several accelerators have on purpose.
    """
    check_gpu_names(gpus, shared)
    exact: Owners = {}
    derived: Owners = {}
    for gpu, data in gpus.items():
        for spelling in (gpu, data["name"], *data.get("aliases", ())):
            add(exact, "".join(rules.gpu_words(spelling)), gpu)
        for form in gpu_short_forms(gpu):
            add(derived, form, gpu)
    for gpu in gpus:  # "rtx 6000" is no name of its own, only one that other cards have too
        older = gpu.replace("-", "").removesuffix("ada")
        if older in derived:
            derived[older].add(gpu)
    return {key: only(exact.get(key) or derived[key]) for key in sorted({*exact, *derived})}


def check_gpu_names(gpus: dict[str, dict[str, Any]], shared: Collection[str]) -> None:
    """Refuse an id or an alias by which another accelerator is found; drivers alone may print one name for several."""
    owners: Owners = {}
    chosen: Owners = {}
    for gpu, data in gpus.items():
        for spelling in (gpu, *data.get("aliases", ())):
            add(chosen, "".join(rules.gpu_words(spelling)), gpu)
        for spelling in (gpu, data["name"], *data.get("aliases", ())):
            add(owners, "".join(rules.gpu_words(spelling)), gpu)
    meant = {"".join(rules.gpu_words(name)) for name in shared}
    for key in chosen:
        if len(owners[key]) > 1 and key not in meant:
            raise SystemExit(
                f"{key!r} is a name of {', '.join(sorted(owners[key]))}: an alias must be of one alone, or be among "
                "shared_gpu_names in scripts/model_names.yaml"
            )
    for key, (owner, *_) in chosen.items():
        others = {gpu for gpu in gpus if gpu != owner and key in gpu_short_forms(gpu)}
        if len(others) == 1 and key not in gpu_short_forms(owner):
            raise SystemExit(f"{key!r}, an alias of {owner}, is short for {others.pop()}: leave it out")


def gpu_short_forms(gpu: str) -> set[str]:
    """An id without its memory size, and then without form factor or generation: what cards share."""
    words = [w for w in rules.split_memory(gpu.split("-"))[0] if w not in ("apple", "quadro", "radeon")]
    form = re.compile(r"pcie|sxm\d?|ws|server|maxq")
    found = set()
    for kept in (words, [w for w in words if not form.fullmatch(w)], [re.sub(r"^sxm\d$", "sxm", w) for w in words]):
        for spelled in (kept, [w for w in kept if w != "blackwell"]):
            key = "".join(spelled)
            found |= {key, re.sub(r"^rtx(?=[a-z])(?!pro)", "", key)}
    return found


def literal(name: str, kind: str, table: dict[str, Any]) -> str:
    """A dict literal, packed into lines of `WIDTH`."""
    lines, line = [f"{name}: {kind} = {{"], "   "
    for key, value in table.items():
        item = f" {key!r}: {value!r},".replace("'", '"')
        if len(line) + len(item) > WIDTH and line.strip():
            lines.append(line)
            line = "   "
        if len(line) + len(item) > WIDTH:  # a long value goes below its key
            lines.append(f'    "{key}":')
            line, item = "       ", item.partition(":")[2]
        line += item
    return "\n".join([*lines, line, "}\n"])


def in_order(root: Path) -> list[Path]:
    """The YAML files below `root`, by folder and id."""
    return sorted(root.glob("*/*.yaml"), key=lambda path: (path.parent.name, path.stem))


def render(models_root: Path, gpus_root: Path, extra: dict[str, Any]) -> str:
    models, places = {}, {}
    for path in in_order(models_root):
        data = read(path)
        if path.stem in models:
            raise SystemExit(f"{path}: a second file with this id")
        models[path.stem] = data
        publisher = rules.model_key(data.get("repo") or "")[0] or "-"
        places[path.stem] = f"{path.parent.name} {publisher}"
    gpus = {p.stem: read(p) for p in in_order(gpus_root)}
    homes = {p.stem: f"{p.parent.name} {gpus[p.stem]['datasheet_gb']}" for p in in_order(gpus_root)}
    names, variants = model_names(models, extra)
    version = version_of({"models": models, "gpus": gpus})
    either = "dict[str, str | tuple[str, ...]]"
    return HEAD + "\n".join(
        [
            "# of what the files say, in whatever form they are shipped", f'VERSION = "{version}"\n',
            "# id -> folder and publisher", literal("MODELS", "dict[str, str]", places),
            "# other keys -> id, or the ids that share it", literal("MODEL_NAMES", either, names),
            "# checkpoints that differ in a field -> (id, that field)",
            literal("VARIANTS", "dict[str, tuple[str, dict[str, Any]]]", variants),
            "# id -> folder and GB", literal("GPUS", "dict[str, str]", homes),
            "# words of a name, joined -> id, or the ids that share them",
            literal("GPU_NAMES", either, gpu_names(gpus, extra.get("shared_gpu_names", ()))),
        ]
    ).rstrip("\n") + "\n"  # fmt: skip


def version_of(catalog: dict[str, Any]) -> str:
    """Twelve hexadecimal digits that change whenever a figure, a name or a note does."""
    text = json.dumps(catalog, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def content() -> str:
    """The module, with the names that no rule derives."""
    extra = yaml.safe_load((ROOT / "scripts" / "model_names.yaml").read_text(encoding="utf-8"))
    return render(ROOT / "models", ROOT / "kvplan" / "data" / "gpus", extra)


def main(argv: list[str] | None = None) -> int:
    return keep(TARGET, content, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
