"""Where the model of a command line is: a file beside it, or a name that the catalog knows."""

from __future__ import annotations

import os
import re

from kvplan.errors import InputError, printable

_SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}\Z")
_CACHE = re.compile(r"models--([^/]+?)--([^/]+)(?:/|\Z)")
_HUB = re.compile(r"(?:hf://|https?://(?:huggingface\.co|hf\.co|hf-mirror\.com|modelscope\.cn)/(?:models/)?)(.+)\Z")
_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]*://", re.IGNORECASE)


def locate(model: str, base: str) -> tuple[str, str]:
    """(what `kvplan.sources.find_model` takes, a warning where that is not what was written).

    Args:
        model: as the command line names it: a hub name, a path, a URL.
        base: the folder that relative paths start from.

    Raises:
        InputError: a path that does not exist here and whose last part no catalog model is called.
    """
    hub = _HUB.match(model)
    if hub:
        return _in_hub(hub.group(1).split("?")[0])
    if _SCHEME.match(model) or "$" in model:
        return _by_last_part(model)
    path = os.path.join(base, os.path.expanduser(model)) if base else model
    if _is_model_file(path):
        return _as_path(path), ""
    cached = _CACHE.search(model)
    if cached:
        return f"{cached.group(1)}/{cached.group(2)}", ""
    if not _looks_like_path(model):
        return model, ""
    if os.path.isdir(path):
        raise InputError("has no config.json", where=printable(path), hint="name the folder of a model")
    return _by_last_part(model)


def _looks_like_path(model: str) -> bool:
    return model.startswith(("/", "./", "../", "~", "%")) or model.count("/") > 1 or model.lower().endswith(".gguf")


def _is_model_file(path: str) -> bool:
    if path.lower().endswith((".gguf", ".json", ".yaml", ".yml")):
        return os.path.isfile(path)
    return os.path.isfile(os.path.join(path, "config.json"))


def _as_path(path: str) -> str:
    """A path that nobody takes for a name."""
    return path if path.startswith(("/", "./", "../", "~")) else os.path.join(".", path)


def _in_hub(path: str) -> tuple[str, str]:
    """``ORG/NAME``, or the GGUF file in it that a URL names."""
    parts = [part for part in path.split("/") if part]
    if parts and parts[-1].lower().endswith(".gguf"):
        return _by_last_part(path)
    return "/".join(parts[:2]), ""


def _by_last_part(model: str) -> tuple[str, str]:
    """The catalog model that the last part of a path is called."""
    from kvplan.catalog import resolve_model_name

    parts = [part for part in model.split("/") if part]
    name = parts[-1] if parts else ""
    if name.lower().endswith(".gguf"):
        name = _SHARD.sub("", name[:-5])
    for candidate in ("/".join((*parts[-2:-1], name)), name):
        if candidate and resolve_model_name(candidate) is not None:
            return candidate, f"{printable(model, 80)} is not here: planned as what the catalog calls {candidate}"
    raise InputError(
        "is not here, and the catalog knows no model of that name", where=printable(model, 80),
        hint="put the model's hub name in its place; `kvplan models list` shows the catalog",
    )  # fmt: skip
