"""The shipped models and accelerators, by id or by the names people type.

A lookup goes through a generated index and reads one file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError, UnknownNameError, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

__all__ = ["gpu_ids", "load_gpu", "load_model", "model_ids", "resolve_gpu_name", "resolve_model_name"]


def model_ids() -> list[str]:
    """Ids of every model in the catalog, family by family."""
    from kvplan.catalog._names import MODELS

    return list(MODELS)


def gpu_ids() -> list[str]:
    """Ids of every accelerator in the catalog, vendor by vendor."""
    from kvplan.catalog._names import GPUS

    return list(GPUS)


def resolve_model_name(text: str) -> tuple[str, str | None] | None:
    """The catalog id behind a model name, and the weight format that the name states, if any.

    None where the catalog does not know the name. ``org/name``, ``name`` and ``name:size`` are all
    understood, as are the usual variants (-Instruct, -Chat, -it) and the ends of quantised names.

    Raises:
        InputError: the name fits more than one model, or names GGUF files without saying which.
    """
    found = _resolve_model(text)
    return None if found is None else found[:2]


def _resolve_model(text: str) -> tuple[str, str | None, dict[str, Any]] | None:
    """(id, weight format, fields in which this variant differs from the spec)."""
    from kvplan.catalog._names import MODELS

    if text in MODELS:
        return text, None, {}
    from kvplan.catalog import rules

    organisation, key = rules.model_key(text[:200])
    found, weights = _lookup(key), None
    gguf = "-gguf" in key
    if found is None:
        plain = key.replace("-gguf", "")
        if organisation == "mlx-community" and plain.endswith("bit"):
            plain = "-mlx-".join(plain.rsplit("-", 1))
        name, weights = rules.split_quantised(plain)
        found = _lookup(name)
    if found is None:
        return None
    owner, changes = found
    if not isinstance(owner, str):
        raise InputError(
            f"{printable(text)!r} names {len(owner)} models: {', '.join(owner)}",
            hint=f"type one of them, as in {owner[0]}",
        )
    model = owner
    publisher = MODELS[model].split()[1]
    organisation = rules.RENAMED.get(organisation, organisation)
    if organisation not in ("", publisher) and organisation not in rules.REPUBLISHERS:
        return None
    if weights == "fp8_e4m3" and organisation in ("", publisher):
        weights = rules.OWN_FP8.get(publisher, weights)
    if gguf and weights is None:
        raise InputError(
            f"{printable(text)!r} does not say which GGUF file",
            hint="add its type, as in :Q4_K_M, or name the .gguf file",
        )
    return model, weights, changes


def _lookup(key: str) -> tuple[str | tuple[str, ...], dict[str, Any]] | None:
    """(id, or the ids that share the key; changed fields) for a key of the index, or None."""
    from kvplan.catalog._names import MODEL_NAMES, MODELS, VARIANTS
    from kvplan.catalog.rules import without_variant

    if key in VARIANTS:
        return VARIANTS[key]
    for name in (key, without_variant(key)):
        owner = name if name in MODELS else MODEL_NAMES.get(name)
        if owner:
            return owner, {}
    return None


def load_model(name: str) -> ModelSpec:
    """The spec of a catalog model; a quantised name sets its checkpoint format, a name on the hub its repository.

    Raises:
        UnknownNameError: the catalog does not know the name.
        InputError: the name fits more than one model.
    """
    from kvplan.catalog import files
    from kvplan.catalog._names import MODELS
    from kvplan.catalog.build import model_from_plain

    found = _resolve_model(name)
    if found is None:
        raise _unknown_model(name)
    model, weights, changes = found
    path = os.path.join(files.models_folder(), MODELS[model].split()[0], f"{model}.yaml")
    data = files.read_yaml(path)
    if changes:
        recalled = f"the longest context of {changes['repo']} is recalled, not read from its configuration"
        data = {**data, **changes, "file_warnings": [recalled]}
    own = data.get("checkpoint")
    if weights is not None:
        data = {**data, "checkpoint": _checkpoint(data, weights)}
        if weights == "nvfp4" and not (data["checkpoint"] or {}).get("kv_cache_format"):
            unsaid = f"whether {name} declares an fp8 KV cache, its name does not say (--kv-cache-dtype fp8 if it does)"
            data["file_warnings"] = [*data.get("file_warnings", ()), unsaid]
    if "/" in name or data.get("checkpoint") != own:
        data = {**data, "repo": _repository(name.strip(), data.get("repo"))}
    return model_from_plain(data, where=os.path.basename(path))


def _repository(typed: str, repo: str | None) -> str:
    """What an engine is to load: the checkpoint that was named; in the spec's spelling where it is the spec's own."""
    return repo if repo is not None and repo.lower() == typed.lower() else typed


def _checkpoint(data: dict[str, Any], weights: str) -> dict[str, Any] | None:
    """The checkpoint entry of a spec whose name states the format `weights`."""
    from kvplan.spec.formats import get_format

    stated = get_format(weights, use="weights")
    own = data.get("checkpoint")
    if own and get_format(own["format"], use="weights").name.partition("_")[0] == stated.name.partition("_")[0]:
        return dict(own)  # the spec knows more about its own format than a name can say
    if stated.name == get_format(data.get("dtype", "bf16")).name:
        return None
    return {"format": stated.name, "roles": list(stated.weight_roles)}


def _unknown_model(name: str) -> UnknownNameError:
    from kvplan.catalog import rules
    from kvplan.catalog._names import MODEL_NAMES, MODELS

    more = "`kvplan models list` shows all; a config.json, a .gguf or a YAML spec works too"
    return _unknown("model", name, rules.model_key(name[:100])[1], MODELS, MODEL_NAMES, more, "? ")


def _unknown_gpu(name: str) -> UnknownNameError:
    """The nearest accelerators by id, alias or driver name, and the way without any."""
    from kvplan.catalog._names import GPU_NAMES, GPUS

    more = "describe it with --gpu-memory and --gpu-bandwidth; `kvplan gpus list` shows all"
    if name.strip() in map(str, range(1, 65)):
        return UnknownNameError("GPU", name, [], more=f"for {name.strip()} GPUs: --gpu NAME -tp {name.strip()}")
    count, one = _several(name)
    if count:
        return UnknownNameError("GPU", name, [], more=f"for {count} of them: --gpu {one} -tp {count}; or {more}")
    if _is_size(name):
        return UnknownNameError("GPU", name, [], more=f"for a card of that size: --gpu-memory {name.strip()}")
    if "," in name and all(len(_lookup_gpu(part)) == 1 for part in name[:200].split(",")):
        return UnknownNameError("GPU", name, [], more=f"one at a time; side by side: kvplan sweep --vary gpu={name}")
    return _unknown("GPU", name, name, GPUS, GPU_NAMES, more, "? or ")


def _unknown(
    what: str, name: str, key: str, ids: Iterable[str], names: Mapping[str, str | tuple[str, ...]], more: str, then: str
) -> UnknownNameError:
    """An error that names the ids whose own or other names are nearest to `key`.

    Args:
        more: what else can be done, after `then`.
    """
    near: list[str] = []
    known = list(dict.fromkeys((*ids, *names))) if len(key) > 1 else []  # a single sign is near to everything
    for hit in UnknownNameError(what, key, known).near:
        owner = names.get(hit, hit)
        near += [o for o in (owner if isinstance(owner, tuple) else (owner,)) if o not in near]
    hint = f"did you mean {', '.join(near[:5])}{then}{more}" if near else more
    shown = UnknownNameError(what, name, [], more=hint)
    shown.near = near[:5]
    return shown


def _is_size(name: str) -> bool:
    """Whether a text says how large a card is: 24GB."""
    from kvplan.units import parse_size  # only on the error path

    try:
        return parse_size(name[:40], "--gpu") > 0
    except InputError:
        return False


def _several(name: str) -> tuple[int, str]:
    """(how many, of which accelerator) of a text that names several of one kind; (0, "") where it does not."""
    import re  # only on the error path

    counted = r"(\d{1,4})\s*[x*]\s*(\S.*)|(.*\S)\s*[x*:]\s*(\d{1,4})"  # 2xl40s, 2 x l40s, l40s:2, l40sx2
    parts = {part.strip() for part in name[:200].split(",")}
    count = name.count(",") + 1
    if len(parts) == 1 and count > 1:
        one = parts.pop()
    elif (match := re.fullmatch(counted, name[:200].strip(), re.IGNORECASE)) is not None:
        count, one = int(match[1] or match[4]), match[2] or match[3]
    else:
        return 0, ""
    owners = _lookup_gpu(one)
    return (count, owners[0]) if len(owners) == 1 else (0, "")


def resolve_gpu_name(text: str) -> str | None:
    """The catalog id behind an accelerator's name (id, alias, or what its driver prints), or None.

    Raises:
        InputError: the name fits more than one accelerator.
    """
    from kvplan.catalog._names import GPUS

    if text in GPUS:
        return text
    owners = _lookup_gpu(text)
    if len(owners) > 1:
        raise InputError(
            f"{printable(text)!r} names {len(owners)} accelerators: {', '.join(owners)}",
            hint=f"type one of them, as in {owners[0]}",
        )
    return owners[0] if owners else None


def _lookup_gpu(text: str) -> tuple[str, ...]:
    """Ids of the accelerators that a name fits; a memory size in it (``80gb``) decides among several."""
    from kvplan.catalog._names import GPU_NAMES, GPUS
    from kvplan.catalog.rules import gpu_words, split_memory

    words = gpu_words(text[:200])
    family, memory = split_memory(words)
    for kept, size in ((words, None), (family, memory)):
        key = "".join(kept)
        owner = GPU_NAMES.get(key) or (GPU_NAMES.get(f"rtx{key}") if key[:1].isdigit() else None)
        if owner:
            owners = (owner,) if isinstance(owner, str) else owner
            return tuple(o for o in owners if size is None or GPUS[o].split()[1] == str(size))
    return ()


def load_gpu(name: str) -> GpuSpec:
    """The spec of a catalog accelerator.

    Raises:
        UnknownNameError: the catalog does not know the name.
        InputError: the name fits more than one accelerator.
    """
    from kvplan.catalog import files
    from kvplan.catalog._names import GPUS
    from kvplan.catalog.build import gpu_from_plain

    found = resolve_gpu_name(name)
    if found is None:
        raise _unknown_gpu(name)
    data = files.read_yaml(os.path.join(files.gpus_folder(), GPUS[found].split()[0], f"{found}.yaml"))
    return gpu_from_plain(data, where=f"{found}.yaml")
