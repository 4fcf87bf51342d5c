"""What llama.cpp prints when it starts, and what Ollama prints around it.

Source: llama.cpp of libllama 0.5.0 (``src/llama-kv-cache.cpp``, ``src/llama-memory-recurrent.cpp``,
``src/llama-context.cpp``, ``src/llama-model.cpp``), logs from 2023 on for the older wordings; Ollama main of 2026-08-21
(``llm/llama_server.go``) and its earlier engine (``ml/device.go``, logs of 2025).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from kvplan.engines.llama_cpp.command import GRAMMAR
from kvplan.engines.log_table import Cache, Line, LogTable, Run, number

_DEVICE = re.compile(r"(\S+)\s*$")
_UNITS = {"GiB": "gib", "MiB": "mib", "KiB": "kib", "B": "bytes"}
_OLLAMA_PARTS = {"kv cache": "kv", "model weights": "model", "compute graph": "compute"}
_READ_BY_SETTING = {
    "n_seq_max": "parallel", "n_batch": "batch_size", "n_ubatch": "ubatch_size", "n_rs_seq": "n_rs_seq",
    "n_outputs_max": "n_outputs_max",
}  # fmt: skip
_FLASH = {"enabled": "on", "disabled": "off", "1": "on", "0": "off", "auto": "auto"}


def _context(run: Run, groups: Mapping[str, str], line: int) -> None:
    """``n_ctx = 8192`` and its like."""
    if "n_ctx" in run.settings and run.caches:
        run.closed = True  # the context of a draft model
        return
    key, value = groups["key"], groups["value"]
    if key == "flash_attn":
        run.set("flash_attn", _FLASH.get(value, "auto"), line)
    elif key == "kv_unified":
        run.set("kv_unified", value in ("true", "1"), line)
    elif value.isdecimal() and len(value) < 13:
        run.set(_READ_BY_SETTING.get(key, key), int(value), line)


def _buffer(run: Run, groups: Mapping[str, str], line: int) -> None:
    """``CUDA0 KV buffer size = 1024.00 MiB``: one device's part."""
    device = _DEVICE.search(run.prefix)
    size = number(groups["mib"], "mib", line)
    if device is None or size is None:
        return
    parts = run.buffers.setdefault(groups["what"].strip().lower(), {})
    name = device.group(1)[:40]
    before = parts.get(name)
    parts[name] = (
        size if before is None else size._replace(value=before.value + size.value, half=before.half + size.half)
    )


def _creating(run: Run, groups: Mapping[str, str], line: int) -> None:
    what = groups["what"].strip().lower()
    run.texts["cache_kind"] = "index" if "index" in what else "swa" if what == "swa" else "kv"


def _cache(run: Run, groups: Mapping[str, str], line: int) -> None:
    """One cache: ``size = 544.00 MiB (8192 cells, 16 layers, 1/1 seqs), K (q8_0): ...``."""
    size = number(groups["mib"], "mib", line)
    if size is None or len(run.caches) >= 16:
        return
    cells, layers, sequences = (int((groups.get(key) or "0")[:12]) for key in ("cells", "layers", "seqs"))
    kind = run.texts.pop("cache_kind", "kv")
    run.caches.append(Cache(kind, size, cells, layers, sequences or 1))
    if kind == "kv" and groups.get("k_type"):
        run.set("cache_type_k", groups["k_type"], line)
        if float(groups["v"]):
            run.set("cache_type_v", groups["v_type"], line)
        else:
            run.set("cache_type_v", groups["k_type"], line)


def _state(run: Run, groups: Mapping[str, str], line: int) -> None:
    size = number(groups["mib"], "mib", line)
    if size is not None and len(run.caches) < 16:
        run.caches.append(
            Cache("state", size, int(groups["cells"][:12]), int(groups["layers"][:6]), int(groups["cells"][:12]))
        )


def _file_type(run: Run, groups: Mapping[str, str], line: int) -> None:
    """``Q4_K - Medium`` -> ``q4_k_m``."""
    plain = groups["type"].partition("(")[0].strip().lower()
    for word, letter in ((" - medium", "_m"), (" - small", "_s"), (" - large", "_l")):
        plain = plain.replace(word, letter)
    run.text("weights", {"all f32": "f32", "mxfp4 moe": "mxfp4"}.get(plain, plain))


def _name(run: Run, groups: Mapping[str, str], line: int) -> None:
    if run.caches or "name" in run.texts:
        run.closed = run.closed or (bool(run.caches) and groups["name"].strip() != run.texts.get("name"))
        return
    run.text("name", groups["name"])


def _path(run: Run, groups: Mapping[str, str], line: int) -> None:
    if run.caches:
        run.closed = True  # another model of the same process
    else:
        run.text("path", groups["path"])


def _server(run: Run, groups: Mapping[str, str], line: int) -> None:
    """Ollama's command line for llama-server."""
    from kvplan.engines.command_line import Word, read_words

    run.texts["engine"] = "ollama"
    try:
        words = shlex.split(groups["cmd"])
    except ValueError:
        return
    reading = read_words(GRAMMAR, [Word(word) for word in words[1:]])
    for setting, value in reading.settings.items():
        run.set(setting, value, line)
    run.text("path", reading.model)


def _ollama(run: Run, groups: Mapping[str, str], line: int) -> None:
    run.texts["engine"] = "ollama"
    if groups.get("number"):
        run.texts["version"] = groups["number"]


def _load(run: Run, groups: Mapping[str, str], line: int) -> None:
    """The request with which Ollama's own engine loads a model."""
    run.texts["engine"] = "ollama"
    slots, cells = int(groups["slots"]), int(groups["cells"])
    run.set("parallel", slots, line)
    run.set("n_ctx", cells, line)
    for setting in ("batch_size", "ubatch_size"):
        run.set(setting, int(groups["batch"]), line)
    if groups["type"].strip():
        run.set("cache_type_k", groups["type"].strip(), line)
        run.set("cache_type_v", groups["type"].strip(), line)


def _ollama_size(run: Run, groups: Mapping[str, str], line: int) -> None:
    """``msg="kv cache" device=CUDA0 size="1.9 GiB"``; printed again at each attempt, the last one counts."""
    run.texts["engine"] = "ollama"
    size = number(groups["size"], _UNITS[groups["unit"]], line)
    if size is not None:
        run.buffers.setdefault(f"{_OLLAMA_PARTS[groups['what']]} total", {})[groups["device"]] = size


_CONTEXT_KEYS = "n_seq_max|n_ctx|n_ctx_seq|n_ctx_per_seq|n_batch|n_ubatch|flash_attn|kv_unified|n_rs_seq|n_outputs_max"
_SIZES = (
    r"size\s*= +(?P<mib>[\d.]+) MiB(?: \( *(?P<cells>\d+) cells, *(?P<layers>\d+) layers(?:, *(?P<seqs>\d+)/ *\d+ "
    r"seqs)?\))?, "
    r"K \((?P<k_type>\w+)\): +(?P<k>[\d.]+) MiB, V \((?P<v_type>\w+)\): +(?P<v>[\d.]+) MiB"
)


def _contexts() -> tuple[Line, ...]:
    names = ("llama_context: ", "llama_new_context_with_model: ", "llama_init_from_model: ")
    return tuple(Line(f"{n}{k}", rf"{n}(?P<key>{_CONTEXT_KEYS})\s+= (?P<value>\w+)", _context)
                 for n in names for k in ("n_", "flash_attn", "kv_unified"))  # fmt: skip


def _cache_lines() -> tuple[Line, ...]:
    names = (
        "llama_kv_cache: ",
        "llama_kv_cache_unified: ",
        "llama_kv_cache_init: ",
        "llama_context: KV self ",
        "llama_new_context_with_model: KV self ",
        "llama_kv_cache_unified: KV self ",
        "llama_init_from_model: KV self ",
    )
    return tuple(Line(f"{name}size", rf"{re.escape(name)}{_SIZES}", _cache) for name in names)  # fmt: skip


def _buffer_lines() -> tuple[Line, ...]:
    kinds = ("KV", "RS", "compute", "model", "output")
    return tuple(
        Line(f"{kind} buffer size", rf"(?P<what>{kind}) buffer size\s*= +(?P<mib>[\d.]+) MiB", _buffer)
        for kind in kinds
    )


def _ollama_lines() -> tuple[Line, ...]:
    size = r'" device=(?P<device>\w+) size="(?P<size>[\d.]+) (?P<unit>[GMK]iB|B)"'
    return tuple(Line(f'msg="{what}"', f'msg="(?P<what>{what}){size}', _ollama_size) for what in _OLLAMA_PARTS)


LINES = (
    Line("build: ", r"build: (?P<version>\d{3,6}) \([0-9a-f]+\)", None, True),
    Line("build = ", r"build = (?P<version>\d{3,6}) \([0-9a-f]+\)", None, True),
    Line("build_info: ", r"build_info: (?P<version>b\d{3,6})", None, True),
    Line("starting llama-server", r'starting llama-server"? +cmd="?(?P<cmd>.*?)"?$', _server, True),
    Line('msg="starting runner" cmd=', r'msg="starting runner" cmd=', _ollama, True),
    Line("Listening on ", r"Listening on \S{1,80} \(version (?P<number>[^)]{1,40})\)", _ollama),
    Line(
        "{Operation:",
        r"\{Operation:\w+ LoraPath:\S* Parallel:(?P<slots>\d{1,5}) BatchSize:(?P<batch>\d{1,7}) FlashAttention:\w+ "
        r"KvSize:(?P<cells>\d{1,9}) KvCacheType:(?P<type>\w*)",
        _load,
    ),
    *_ollama_lines(),
    Line(
        "loaded meta data with ",
        r"loaded meta data with \d+ key-value pairs and \d+ tensors from "
        r"(?P<path>.{1,400}?) \(version",
        _path,
    ),
    Line("general.name", r"general\.name\s+(?:str\s+)?= (?P<name>.{1,200})", _name),
    Line("file type ", r"file type\s+= (?P<type>.{1,60})", _file_type),
    Line("model ftype ", r"model ftype\s+= (?P<type>.{1,60})", _file_type),
    Line("Device 0: ", r"Device 0: (?P<gpu>[^,\n]{3,80}), compute capability"),
    Line(
        "using device CUDA0 (",
        r"using device CUDA0 \((?P<gpu>[^)]{3,80})\)(?: \([0-9a-f:.]+\))? - "
        r"(?P<free__mib>\d+) MiB free",
    ),
    Line("offloaded ", r"offloaded (?P<set__n_gpu_layers__count>\d{1,5})/\d{1,5} layers to GPU"),
    Line("creating ", r"creating +(?P<what>non-SWA|SWA|main|DSA|indexer) KV cache", _creating),
    Line(
        "llama_memory_recurrent: size",
        r"llama_memory_recurrent: size\s*= +(?P<mib>[\d.]+) MiB \( *(?P<cells>\d+) cells, *(?P<layers>\d+) "
        r"layers",
        _state,
    ),
    *_contexts(),
    *_cache_lines(),
    *_buffer_lines(),
)


def settle(run: Run) -> None:
    """Bytes of all caches; the context over all slots."""
    names = ("n_ctx", "n_ctx_seq", "n_ctx_per_seq")
    total, slot, older = (run.settings.pop(name, None) for name in names)
    slot = slot or older
    unified = run.settings.get("kv_unified")
    if total is not None and "ctx_size" not in run.settings:
        run.set("ctx_size", total.value, total.line)
    if total is not None and slot is not None and "parallel" not in run.settings:
        run.set("parallel", max(1, total.value // max(1, slot.value)), total.line)
    if unified is not None and not unified.value:
        run.settings.pop("kv_unified")
    if run.texts.get("engine") == "ollama":
        run.settings.pop("kv_unified", None)
    whole = [c.bytes for c in run.caches if c.kind != "state"]
    if whole:
        run.figures["kv"] = [whole[0]._replace(value=sum(f.value for f in whole), half=sum(f.half for f in whole))]
    elif "kv total" in run.buffers or "kv" in run.buffers:
        parts = list((run.buffers.get("kv") or run.buffers["kv total"]).values())
        run.figures["kv"] = [parts[0]._replace(value=sum(f.value for f in parts), half=sum(f.half for f in parts))]
    states = [c.bytes for c in run.caches if c.kind == "state"]
    if states:
        run.figures["state"] = [
            states[0]._replace(value=sum(f.value for f in states), half=sum(f.half for f in states))
        ]
    _devices(run)


def _devices(run: Run) -> None:
    """Compute buffers and weights on GPUs and in host memory; the largest of one GPU is what binds."""
    for what, figure in (("compute", "compute"), ("model", "weights")):
        parts = run.buffers.get(what) or run.buffers.get(f"{what} total") or {}
        gpus = [size for device, size in parts.items() if not re.match(r"CPU|.*_Host", device)]
        if gpus:
            run.figures[figure] = [max(gpus, key=lambda f: f.value)]
    on_gpus = {device for parts in run.buffers.values() for device in parts if not re.match(r"CPU|.*_Host", device)}
    run.texts.setdefault("devices", str(len(on_gpus)))


TABLE = LogTable("llama.cpp", LINES, ("kv", "state"), settle)
