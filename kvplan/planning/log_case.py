"""From a start-up log to a deployment: the log's settings, with the user's over them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines import get_engine
from kvplan.engines.log_table import LOCAL
from kvplan.errors import InputError, KvplanError, printable
from kvplan.planning.settings import COMMON

if TYPE_CHECKING:
    from kvplan.engines.base import Engine
    from kvplan.sources.logs import Log
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

_DIGEST = re.compile(r"sha256[-:][0-9a-f]{8,64}\Z")
NAME_THE_MODEL = "--model NAME"


class Deployment(NamedTuple):
    """What a log was written by, as far as the log and the user say."""

    engine: str
    """``name@version``, or the name alone."""
    model: ModelSpec | None
    gpu: GpuSpec | None
    settings: dict[str, Any]
    """What to give the planner."""
    origins: dict[str, str]
    """setting -> where in the log it stands, for those that the log gave."""
    warnings: list[str]


def deployment(
    log: Log, *, name: str, model: ModelSpec | None, gpu: GpuSpec | None, engine: str | None, given: dict[str, Any]
) -> Deployment:
    """The deployment of a log.

    Args:
        name: the log, as messages call it.
        model, gpu, engine, given: what the user said, which counts more than the log.

    Raises:
        InputError: the user's engine is another than the log's.
    """
    warnings: list[str] = []
    chosen = _engine(log, engine, warnings)
    found = model or _model(log, warnings)
    settings, origins = _settings(log, name, chosen, given)
    if found is not None:
        _weights(log, found, settings, origins, name, given)
        if weights_open(log, found, settings):
            warnings.append(
                f"the log does not say how {found.id} is stored (no file type line): its weights are planned in "
                f"{found.dtype} (--weights q4_k_m, or the .gguf file as --model)"
            )
        _cache_dtype(log, found, chosen, settings, origins, name, given)
    device = _gpu(log, gpu, warnings)
    return Deployment(
        f"{chosen.name}@{chosen.version}", found, device, settings, origins, [*chosen.warnings, *warnings]
    )


def _engine(log: Log, asked: str | None, warnings: list[str]) -> Engine:
    if asked is not None:
        base = get_engine(asked).name
        if base != log.engine and {base, log.engine} != {"llama.cpp", "ollama"}:
            raise InputError(
                f"the log is of {log.engine}", where="--engine", hint=f"type --engine {log.engine}, or leave it out"
            )
        if "@" in asked:
            return get_engine(asked)
        log = log._replace(engine=base)
    if not log.version:
        engine = get_engine(log.engine)
        warnings.append(
            f"the log does not say its version; {engine.version} is assumed (--engine {log.engine}@VERSION)"
        )
        return engine
    try:
        return get_engine(f"{log.engine}@{log.version}")
    except KvplanError:
        engine = get_engine(log.engine)
        warnings.append(f"{log.engine} {printable(log.version, 40)} is planned by the rules of {engine.version}")
        return engine


def _model(log: Log, warnings: list[str]) -> ModelSpec | None:
    """The model that the log names, in whichever of its spellings is known."""
    from kvplan.sources import find_model

    names: list[str] = []
    for text in (log.model, log.run.texts.get("name", ""), log.run.texts.get("path", "")):
        base = os.path.basename(text.rstrip("/")).removesuffix(".gguf")
        snapshot = re.search(r"models--([^/]{1,96})--([^/]{1,96})/", text + "/")
        names += [text, f"{snapshot.group(1)}/{snapshot.group(2)}" if snapshot else "", base, base.replace(" ", "-")]
        names.append(re.sub(r"[-.](?:I?Q\d\w*|BF16|F16|UD)$", "", base.replace(" ", "-"), flags=re.IGNORECASE))
    for candidate in dict.fromkeys(n for n in names if n and len(n) < 300 and not _DIGEST.search(n)):
        try:
            return find_model(candidate)
        except KvplanError:
            continue
    said = f"names {printable(log.model, 80)!r}, which is not known" if log.model else "does not name its model"
    warnings.append(f"the log {said}; nothing is predicted without one ({NAME_THE_MODEL})")
    return None


def _settings(log: Log, name: str, engine: Engine, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    known = COMMON | engine.settings
    settings: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting, found in log.settings.items():
        if setting in known and setting not in given:
            settings[setting] = found.value
            origins[setting] = f"{name}, line {found.line}"
    _give_way(settings, origins, given)
    return {**settings, **given}, origins


def _give_way(settings: dict[str, Any], origins: dict[str, str], given: dict[str, Any]) -> None:
    """Settings of the log that say the same thing as one the user gave under another name."""
    rivals = {"kv_cache_dtype": ("cache_type_k", "cache_type_v"), "max_model_len": ("ctx_size", "num_ctx"),
              "num_ctx": ("ctx_size",), "ctx_size": ("max_model_len", "num_ctx")}  # fmt: skip
    for setting in given:
        for rival in rivals.get(setting, ()):
            settings.pop(rival, None)
            origins.pop(rival, None)


def weights_open(log: Log, model: ModelSpec, settings: dict[str, Any]) -> bool:
    """Whether nothing says how the weights are stored: a log of llama.cpp without its file type line."""
    local = log.engine in ("llama.cpp", "ollama")
    return local and "weights" not in settings and not getattr(model, "file_bytes", False)


def _weights(
    log: Log, model: ModelSpec, settings: dict[str, Any], origins: dict[str, str], name: str, given: dict[str, Any]
) -> None:
    """The weight format that the log states, unless the checkpoint has one of its own."""
    from kvplan.spec.formats import get_format

    stated = log.run.texts.get("weights")
    own = model.checkpoint is not None and log.engine not in ("llama.cpp", "ollama")
    if not stated or own or "weights" in given or getattr(model, "file_bytes", False):
        return
    try:
        settings["weights"] = get_format(stated, use="weights").name
    except KvplanError:
        return
    origins["weights"] = f"{name}: {stated}"


def _cache_dtype(
    log: Log, model: ModelSpec, engine: Engine, settings: dict[str, Any], origins: dict[str, str], name: str,
    given: dict[str, Any],
) -> None:  # fmt: skip
    """The cache format by the bytes of a token that the log prints, where nothing names it."""
    token = log.figure("token")
    if token is None or "kv_cache_dtype" in settings or "kv_cache_dtype" in given:
        return
    from kvplan.planning.planner import plan_deployment

    for dtype in ("auto", *engine.smaller_kv_formats):
        tried = {**settings, **({"kv_cache_dtype": dtype} if dtype != "auto" else {})}
        try:
            own = plan_deployment(model, None, f"{engine.name}@{engine.version}", tried).kv.bytes_per_token_per_gpu
        except KvplanError:
            continue
        if abs(own - token.value) <= max(1, token.half):
            if dtype != "auto":
                settings["kv_cache_dtype"] = dtype
                origins["kv_cache_dtype"] = f"{name}, line {token.line}: a token takes {token.value:,.0f} bytes"
            return


def _gpu(log: Log, gpu: GpuSpec | None, warnings: list[str]) -> GpuSpec | None:
    """The accelerator: the user's, the one the log names, or the one its memory fits; with the memory it prints."""
    total = log.figure("total")
    if gpu is None and log.gpu:
        from kvplan.catalog import load_gpu

        try:
            gpu = load_gpu(log.gpu)
        except KvplanError:
            warnings.append(f"the log names {printable(log.gpu, 60)!r}, which is not known (--gpu NAME)")
    if gpu is None and total is not None:
        gpu = _by_memory(int(total.value), total.half, warnings)
    if gpu is None:
        if not log.gpu and log.engine not in LOCAL:
            warnings.append("the log does not name its GPU; terms of the budget are predicted with one (--gpu NAME)")
        return None
    if total is not None and gpu.torch_total_source != "--gpu-memory":
        return replace(
            gpu, torch_total_bytes=int(total.value), torch_total_source=f"printed in the log, line {total.line}"
        )
    return gpu


def _by_memory(total: int, half: float, warnings: list[str]) -> GpuSpec | None:
    """The catalog's only kind of accelerator with this memory, as torch sees it."""
    from kvplan.catalog import load_gpu
    from kvplan.catalog._names import GPUS

    near = [known for known, entry in GPUS.items() if 0.9 < total / (float(entry.split()[1]) * 1e9) < 1.1]
    fits = [
        spec for spec in map(load_gpu, near) if abs((spec.torch_total_bytes or 0) - total) <= max(half, 0.01 * 2**30)
    ]
    if not fits:
        return None
    names = ", ".join(spec.id for spec in fits)
    if len({(spec.architecture, spec.compute_capability, spec.sm_count) for spec in fits}) > 1:
        warnings.append(f"the log does not name its GPU; its memory is that of {names}: say which with --gpu")
        return None
    warnings.append(f"the log does not name its GPU; by its memory it is taken to be {names}")
    return fits[0]
