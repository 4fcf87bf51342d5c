"""What vLLM prints when it starts, V0 and V1.

Source: wheels 0.11.0 to 0.33.0 (``vllm/v1/worker/gpu_worker.py``, ``vllm/v1/core/kv_cache_utils.py``,
``vllm/v1/engine/core.py``, ``vllm/entrypoints/common/startup.py``) and, for V0, ``vllm/worker/worker.py`` and
``vllm/executor/executor_base.py`` of 0.6 to 0.9.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from kvplan.engines.log_table import Device, Figure, Line, LogTable, Run, Share, difference, pairs, read_arguments
from kvplan.engines.vllm.command import GRAMMAR

_CONFIG_NAMES = {"max_seq_len": "max_model_len", "model_tag": "model", "tokenizer": "", "served_model_name": ""}
_DRAFT = re.compile(
    r"speculative_config=SpeculativeConfig\(method='(\w+)', model=(?:'([^']*)'|None), num_spec_tokens=(\d+)"
)
_CONNECTOR = re.compile(r"[\"']?kv_connector[\"']?[:=] ?[\"'](\w{1,80})[\"']")
_ROLE = re.compile(r"[\"']?kv_role[\"']?[:=] ?[\"'](\w{1,40})[\"']")
_CAPTURE = re.compile(r"max_(?:cudagraph_)?capture_size[\"']?[:=] ?(\d{1,6})")


def _arguments(run: Run, groups: Mapping[str, str], line: int) -> None:
    read_arguments(run, GRAMMAR, _printed(groups["all"]), line, names=_CONFIG_NAMES)


def _printed(text: str) -> dict[str, str]:
    """The printed settings; a KV connector, which is printed as an object, as its flag takes it."""
    printed = pairs(text)
    for key in ("kv_transfer_config", "kv_events_config"):
        if printed.get(key, "None") != "None":
            outer, *inner = [*_CONNECTOR.findall(text), ""] if key == "kv_transfer_config" else [""]
            role, children = _ROLE.search(text), [{"kv_connector": name} for name in inner if name]
            more: dict[str, object] = {"kv_role": role.group(1)} if role and outer else {}
            more |= {"kv_connector_extra_config": {"connectors": children}} if children else {}
            printed[key] = json.dumps({"kv_connector": outer, **more} if outer else {})
    return printed


def _config(run: Run, groups: Mapping[str, str], line: int) -> None:
    """The engine's configuration, which it prints resolved."""
    run.texts["version"] = groups["number"]
    text = groups["all"]
    printed = _printed(text)
    printed.pop("speculative_config", None)
    if printed.get("kv_cache_dtype") == "auto":
        del printed["kv_cache_dtype"]
    # a resolved value is not a flag that somebody typed: caching that is on stays the version's default
    if printed.get("enable_prefix_caching") == "True" and "force_prefix_caching" not in run.settings:
        run.text("prefix_caching", "on")
        del printed["enable_prefix_caching"]
    read_arguments(run, GRAMMAR, printed, line, names=_CONFIG_NAMES)
    draft, capture = _DRAFT.search(text), _CAPTURE.search(text)
    if draft is not None and "speculative_config" not in run.settings:
        made: dict[str, object] = {"method": draft.group(1), "num_speculative_tokens": int(draft.group(3)[:4])}
        if draft.group(2) and draft.group(2) != printed.get("model"):
            made["model"] = draft.group(2)
        run.set("speculative_config", json.dumps(made), line)
    if capture is not None and int(capture.group(1)) and "enforce_eager" not in run.settings:
        run.set("max_cudagraph_capture_size", int(capture.group(1)), line)


def _refused(run: Run, groups: Mapping[str, str], line: int) -> None:
    """A start that vLLM refuses, and the figures it gives as its reason."""
    for name, unit in (("kv", "gib"), ("needed", "gib"), ("free", "gib"), ("total", "gib"), ("budget", "gib")):
        if groups.get(name):
            run.figure(name, groups[name], unit, line)
    if groups.get("length"):
        run.set("max_model_len", int(groups["length"].replace(",", "")[:12]), line)
    run.refusals.append(groups["text"])


def _marks(marker: str, setting: str, value: object) -> Line:
    """A line whose mere presence is a setting."""

    def use(run: Run, groups: Mapping[str, str], line: int) -> None:
        run.set(setting, value, line)

    return Line(marker, re.escape(marker), use)


LINES = (
    Line(
        "Initializing a V1 LLM engine (v",
        r"Initializing a V1 LLM engine \(v(?P<number>[^)]{1,60})\) with config: (?P<all>.*)",
        _config,
        True,
    ),
    Line(
        "Initializing a V0 LLM engine (v",
        r"Initializing a V0 LLM engine \(v(?P<number>[^)]{1,60})\) with config: (?P<all>.*)",
        _config,
        True,
    ),
    Line(
        "Initializing an LLM engine (v",
        r"Initializing an LLM engine \(v(?P<number>[^)]{1,60})\) with config: (?P<all>.*)",
        _config,
        True,
    ),
    Line("vLLM API server version ", r"vLLM API server version (?P<version>\S{1,60})", None, True),
    Line(
        "vLLM server version ",
        r"vLLM server version (?P<version>[^\s,]{1,60}), serving model "
        r"(?P<model>\S{1,300})",
        None,
        True,
    ),
    Line("█  version ", r"█  version (?P<version>\S{1,60})", None, True),
    Line("█  model ", r"█  model +(?P<model>\S{1,300})"),
    Line("non-default args: ", r"non-default args: (?P<all>\{.*)", _arguments),
    Line("args: Namespace(", r"args: (?P<all>Namespace\(.*)", _arguments),
    Line("Using max model len ", r"Using max model len (?P<set__max_model_len__tokens>\d{1,12})"),
    Line(
        "Chunked prefill is enabled with max_num_batched_tokens=",
        r"Chunked prefill is enabled with max_num_batched_tokens=(?P<set__max_num_batched_tokens__tokens>\d{1,9})",
    ),
    Line(
        "Setting attention block size to ",
        r"Setting attention block size to (?P<attention_block__int>\d{1,7}) "
        r"tokens",
    ),
    Line("Padding mamba page size by ", r"Padding mamba page size by (?P<page_padding_percent__float>[\d.]+)%"),
    Line(
        "Encoder cache will be initialized with a budget of ",
        r"Encoder cache will be initialized with a budget of (?P<encoder_cache__int>[\d,]+) tokens",
    ),
    _marks("Using FlashInfer for top-p & top-k sampling", "flashinfer_sampler", True),
    _marks("Skipping memory profiling for multimodal encoder", "skip_mm_profiling", True),
    _marks("Directly load the compiled graph", "compile_cache", "warm"),
    _marks("Directly load AOT compilation", "compile_cache", "warm"),
    _marks("Cudagraph is disabled under eager mode", "enforce_eager", True),
    Line("Model loading took ", r"Model loading took (?P<weights__gib>[\d.]+) Gi?B"),
    Line("Loading model weights took ", r"Loading model weights took (?P<weights__gib>[\d.]+) Gi?B"),
    Line("Available KV cache memory: ", r"Available KV cache memory: (?P<kv__gib>-?[\d.]+) GiB"),
    Line("GPU KV cache size: ", r"GPU KV cache size: (?P<kv_tokens__int>[\d,]+) tokens"),
    Line(
        "Maximum concurrency for ",
        r"Maximum concurrency for (?P<set__max_model_len__count>[\d,]+) tokens per "
        r"request: (?P<concurrency__float>[\d.]+)x",
    ),
    Line("# GPU blocks: ", r"# GPU blocks: (?P<blocks__int>\d+)"),
    Line("# CUDA blocks: ", r"# CUDA blocks: (?P<blocks__int>\d+)"),
    Line("# cuda blocks: ", r"# cuda blocks: (?P<blocks__int>\d+)"),
    Line("Estimated CUDA graph memory: ", r"Estimated CUDA graph memory: (?P<graphs__gib>-?[\d.]+) GiB total"),
    Line(
        "The current --gpu-memory-utilization=",
        r"The current --gpu-memory-utilization=(?P<set__gpu_memory_utilization__share>[\d.]+) is equivalent to "
        r"--gpu-memory-utilization=(?P<without_graphs__float>[\d.]+) without",
    ),
    Line(
        "Graph capturing finished in ",
        r"Graph capturing finished in [\d.]+ secs?, took "
        r"(?P<captured__gib>-?[\d.]+) GiB",
    ),
    Line(
        "CUDA graph pool memory: ",
        r"CUDA graph pool memory: (?P<captured__gib>-?[\d.]+) GiB \(actual\), "
        r"(?P<graphs__gib>-?[\d.]+) GiB \(estimated\)",
    ),
    Line(
        "Free memory on device (",
        r"Free memory on device \((?P<free__gib>[\d.]+)/(?P<total__gib>[\d.]+) GiB\) on startup\. Desired GPU memory "
        r"utilization is \((?P<set__gpu_memory_utilization__share>[\d.]+), (?P<budget__gib>[\d.]+) GiB\)\. Actual "
        r"usage is "
        r"(?:(?P<consumed__gib>-?[\d.]+) GiB for consumed memory \(weights \+ non-torch\), "
        r"(?P<headroom__gib>-?[\d.]+) GiB "
        r"for peak activation|(?P<weights__gib>-?[\d.]+) GiB for weight, (?P<activation__gib>-?[\d.]+) GiB for peak "
        r"activation, (?P<outside__gib>-?[\d.]+) GiB for non-torch memory), and (?P<captured__gib>-?[\d.]+) GiB",
    ),
    Line(
        "the current vLLM instance can use total_gpu_memory (",
        r"the current vLLM instance can use total_gpu_memory \((?P<total__gib>[\d.]+)GiB\) x gpu_memory_utilization "
        r"\((?P<set__gpu_memory_utilization__share>[\d.]+)\) = (?P<budget__gib>[\d.]+)GiB",
    ),
    Line(
        "model weights take ",
        r"model weights take (?P<weights__gib>[\d.]+)GiB; non_torch_memory takes (?P<outside__gib>-?[\d.]+)GiB; "
        r"PyTorch "
        r"activation peak memory takes (?P<activation__gib>-?[\d.]+)GiB; the rest of the memory reserved for KV "
        r"Cache is "
        r"(?P<kv__gib>-?[\d.]+)GiB",
    ),
    Line(
        "Memory profiling results: total_gpu_memory=",
        r"Memory profiling results: total_gpu_memory=(?P<total__gib>[\d.]+)GiB initial_memory_usage=[\d.]+GiB "
        r"peak_torch_memory=[\d.]+GiB memory_usage_post_profile=[\d.]+GiB non_torch_memory=[\d.]+GiB "
        r"kv_cache_size=(?P<kv__gib>-?[\d.]+)GiB "
        r"gpu_memory_utilization=(?P<set__gpu_memory_utilization__share>[\d.]+)",
    ),
    Line(
        "To serve at least one request with the model",
        r"(?P<text>To serve at least one request with the models?'s max seq len \((?P<length>\d+)\), "
        r"\((?P<needed>[\d.]+) "
        r"GiB KV cache is needed, which is larger than the available KV cache memory \((?P<kv>-?[\d.]+) "
        r"GiB\))",
        _refused,
    ),
    Line("No available memory for the cache blocks", r"(?P<text>No available memory for the cache blocks)", _refused),
    Line(
        "Free memory on device cuda",
        r"(?P<text>Free memory on device \S{1,20} \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less "
        r"than desired "
        r"GPU memory utilization \([\d.]+, (?P<budget>[\d.]+) GiB\))",
        _refused,
    ),
)


def settle(run: Run) -> None:
    """Settings that several lines decide together."""
    if "enforce_eager" in run.settings:
        run.settings.pop("max_cudagraph_capture_size", None)
    if "model" not in run.texts:
        return
    run.texts["model"] = run.texts["model"].strip("'\"")


_KEPT = ("buffers kept", "allocator fragments")


def shares(run: Run, device: Device) -> list[Share]:
    """What the budget went to.

    Since 0.27 the summary says what is gone from the device (weights, what is outside torch, buffers that stay) and the
    peak above it, the estimate of the graphs included. V0 and the debug level of 0.11 to 0.26 print every term. In
    between only the weights and sometimes the graphs are printed: the rest is what is missing to the budget.
    """
    weights, kv, graphs = run.most("weights"), run.least("kv"), run.most("graphs")
    consumed, headroom = run.most("consumed"), run.most("headroom")
    if consumed is not None and headroom is not None:
        peak = Share("activation peak, graphs charged", headroom, ("activation", "cuda_graph"))
        if weights is None:
            return [
                Share("consumed: weights, outside torch, buffers kept", consumed, ("weights", "runtime", *_KEPT)),
                peak,
            ]
        beside = difference(consumed, weights)
        return [
            Share("weights", weights, ("weights",)),
            Share("outside torch, buffers kept", beside, ("runtime", *_KEPT), "consumed less weights"),
            peak,
        ]
    activation, outside = run.most("activation"), run.most("outside")
    charged = graphs is not None and device.graphs_charged
    own = [Share("CUDA graphs charged", graphs, ("cuda_graph",))] if graphs is not None and charged else []
    first = [Share("weights", weights, ("weights",))] if weights is not None else []
    if activation is not None and outside is not None:
        each = [Share("activation peak", activation, ("activation",)), Share("outside torch", outside, ("runtime",))]
        return [*first, *each, *own]
    if kv is None:
        return first
    budget = run.least("budget") or Figure(device.budget, 0, "bytes", kv.line)
    names = ["activation", "runtime"] + ([] if weights else ["weights"]) + ([] if charged else ["cuda_graph"])
    words = {"activation": "activation peak", "runtime": "outside torch", "weights": "weights", "cuda_graph": "graphs"}
    rest = difference(budget, kv, *(share.said for share in (*first, *own)))
    label = ", ".join(words[name] for name in names if name != "cuda_graph" or device.graphs_charged)
    return [*first, Share(label, rest, tuple(names), "budget less what is printed"), *own]


TABLE = LogTable("vllm", LINES, ("kv", "kv_tokens", "concurrency", "blocks", "weights"), settle, shares)
