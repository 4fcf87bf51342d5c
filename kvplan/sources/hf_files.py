"""Models from the files of a Hugging Face checkpoint: a ``config.json``, or the folder that holds one.

A folder's safetensors headers give the exact bytes of its weights; the data behind them is never read.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.errors import SpecError, UnknownNameError, printable
from kvplan.sources import strict_json
from kvplan.sources.hf.keys import Config
from kvplan.sources.hf.quantization import PART_APART, UNREAD
from kvplan.sources.hf.read import ASSUMPTIONS, is_known, read_config, text_part
from kvplan.sources.reading import Reading
from kvplan.spec.model import ENCODERS_APART

if TYPE_CHECKING:
    from kvplan.sources.checkpoint.local import Files

CONFIG_NAME = "config.json"
_NO_NAME = re.compile(r"([0-9a-f]{12,64}|checkpoint-?\d*|model|models|snapshots|latest|final|output|main|hf|\.*)\Z")
"""Names of folders that say nothing about the model in them."""
_CACHED = re.compile(r"models--(.+)--(.+)")
"""A folder of the hub's cache: organisation and model."""
_QUANTIZATION_KEYS = ("quantization_config", "compression_config", "quantization")
_QUANTIZATION_FILES = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files beside a configuration that says nothing -> the method whose tools write them."""
_NOT_IN_AN_ID = re.compile(r"[^a-z0-9._-]+")


def read_config_file(path: str, *, assume: str | None = None, weights_told: bool = False) -> Reading:
    """The model of a ``.json`` file with Hugging Face keys.

    Args:
        assume: ``llama-like``, the way past an unknown family or field.
        weights_told: as `kvplan.sources.read_model`.

    Raises:
        SpecError: the file cannot be read, or describes no model that is understood.
    """
    path = os.path.expanduser(path)
    data, text = strict_json.read_json(path)
    return _read(data, text, printable(path), name=name_of(path, data), assume=assume, weights_told=weights_told)


def read_folder(path: str, *, assume: str | None = None, weights_told: bool = False) -> Reading:
    """The model of a folder with a ``config.json``, with the weights that its files hold.

    Raises:
        SpecError: no such file, or one that is damaged, hostile or not understood.
    """
    from kvplan.sources.checkpoint.local import Folder

    path = os.path.expanduser(path)
    config = os.path.join(path, CONFIG_NAME)
    if not os.path.lexists(config):
        raise SpecError(f"no {CONFIG_NAME} in this folder", where=printable(path), hint=_other_files(path))
    return read_files(Folder(path), name=None, path=config, assume=assume, weights_told=weights_told)


def read_files(
    files: Files,
    *,
    name: str | None,
    path: str = CONFIG_NAME,
    assume: str | None = None,
    weights_told: bool = False,
) -> Reading:
    """The model behind the files of one checkpoint, wherever they lie.

    A quantisation that is not understood is a warning where the headers tell every byte, and an error otherwise.

    Args:
        name: what to call the model; None: by the folder of `path`.
        path: of the configuration.
        weights_told: as `kvplan.sources.read_model`.
    """
    from kvplan.sources.checkpoint.measure import measured

    raw = files.read(CONFIG_NAME, strict_json.MAX_BYTES)
    where = files.label(CONFIG_NAME)
    if raw is None:
        raise SpecError(f"no {CONFIG_NAME}", where=where, hint="name a repository that holds one")
    text = strict_json.decode(raw, where)
    data = strict_json.parse(text, where)
    if isinstance(data, dict):
        data = _with_quantization(data, files)
    called = name or name_of(path, data)
    found = _read(data, text, where, name=called, assume=assume, weights_told=True)
    model = measured(found.model, files, dtype_said=_says_dtype(data))
    stored = model.checkpoint is not None and bool(model.checkpoint.stored)
    if not (stored or weights_told) and any(warning.startswith(UNREAD) for warning in model.file_warnings):
        _read(data, text, where, name=called, assume=assume)  # says what is not understood
    if model.checkpoint and model.checkpoint.stored:
        told = tuple(w for w in model.file_warnings if not w.startswith((PART_APART, ENCODERS_APART)))  # files tell
        source = f"{model.source} and the headers of its safetensors files"
        model = replace(model, source=source, file_warnings=told)
    return found._replace(model=model)


def _with_quantization(data: dict[str, Any], files: Files) -> dict[str, Any]:
    """`data` with the quantisation that some tools write into a file of its own.

    Source: vLLM 0.33.0 ``get_config_filenames`` in ``vllm/model_executor/layers/quantization/*.py``.
    """
    inner = text_part(Config(data)).data
    if any(level.get(key) for level in (data, inner) for key in _QUANTIZATION_KEYS):
        return data
    for name, method in _QUANTIZATION_FILES.items():
        raw = files.read(name, strict_json.MAX_BYTES)
        if raw is None:
            continue
        where = files.label(name)
        apart = strict_json.parse(strict_json.decode(raw, where), where)
        if not isinstance(apart, dict):
            raise SpecError("does not hold a JSON object", where=where, hint="it should say how weights are quantised")
        return {**data, "quantization_config": {"quant_method": method, **apart}}
    return data


def name_of(path: str, data: Any) -> str | None:
    """What to call the model of a file: its folder, its own name, or what the configuration says; None: nothing."""
    path = os.path.abspath(path)
    own = os.path.splitext(os.path.basename(path))[0]
    if own not in ("config", "text_config"):
        return own
    folder = os.path.dirname(path)
    cached = _CACHED.match(os.path.basename(os.path.dirname(os.path.dirname(folder))))
    if cached:
        return cached.group(2)
    name = os.path.basename(folder)
    if not _NO_NAME.match(name.lower()):
        return name
    stated = data.get("_name_or_path") or data.get("name_or_path") if isinstance(data, dict) else None
    return None if isinstance(stated, str) and stated.strip("/") else name or None


def checked(assume: str | None) -> str | None:
    """`assume`, if that is an assumption there is.

    Raises:
        UnknownNameError: it is not.
    """
    if assume is not None and assume not in ASSUMPTIONS:
        known = f"known: {', '.join(ASSUMPTIONS)}"
        raise UnknownNameError("assumption", assume, list(ASSUMPTIONS), where="--assume", more=known)
    return assume


def _read(
    data: Any, text: str, where: str, *, name: str | None, assume: str | None, weights_told: bool = False
) -> Reading:  # fmt: skip
    checked(assume)
    fields: dict[str, Any] = {}
    try:
        model = read_config(data, where=where, name=name, used=fields, weights_told=weights_told)
    except SpecError as error:
        if assume is None:
            raise strict_json.with_line(_explained(error, data, where), text, where) from None
        fields.clear()
        try:
            model = read_config(
                data, where=where, name=name, assume=assume, used=fields, weights_told=weights_told
            )  # fmt: skip
        except SpecError as other:
            raise strict_json.with_line(other, text, where) from None
        known = is_known(model.family)
        how = "without what is not understood" if known else "as plain attention in every layer"
        warning = f"read {how}, as --assume {assume} says; without it: {error.message}"
        model = replace(model, confidence="derived", file_warnings=(*model.file_warnings, warning))
    except RecursionError:
        raise SpecError("nests too deeply", where=where) from None
    identity = _NOT_IN_AN_ID.sub("-", model.id).strip("-._") or "model"
    return Reading(replace(model, id=identity), fields)


def _explained(error: SpecError, data: Any, where: str) -> SpecError:
    """A better answer for JSON that is a file of another kind."""
    if not isinstance(data, dict):
        return error
    if "base_model_name_or_path" in data or "peft_type" in data:
        return SpecError(
            "is the configuration of an adapter, not of a model",
            where=where,
            hint="plan its base model, add --max-loras",
        )
    if "n_layers" in data and "dim" in data and "model_type" not in data:
        return SpecError(
            "is the params.json of Mistral's or Meta's own format", where=where,
            hint="name the config.json that the same model has on the hub",
        )  # fmt: skip
    if "_class_name" in data or "_diffusers_version" in data:
        return SpecError("is the configuration of a diffusion model", where=where, hint="kvplan sizes language models")
    return error


def _says_dtype(data: Any) -> bool:
    outer = Config(data)
    return any(level.get("dtype", "torch_dtype") is not None for level in (outer, text_part(outer)))


def _other_files(path: str) -> str:
    """What to name instead of a folder without a configuration."""
    try:
        names = sorted(os.listdir(path))[:10_000]
    except OSError:
        return "name the folder of a model"
    for suffix, what in ((".gguf", "the GGUF file"), (".yaml", "the YAML file"), (".json", "the JSON file")):
        hit = next((n for n in names if n.lower().endswith(suffix) and "index.json" not in n), None)
        if hit:
            return f"name {what} itself: {printable(os.path.join(path, hit))}"
    nested = next((n for n in names if os.path.isfile(os.path.join(path, n, CONFIG_NAME))), None)
    return f"name the folder below it: {printable(os.path.join(path, nested))}" if nested else "name a model's folder"
