"""Stated constants of speed: what kernels and engines make of a datasheet, each with its source.

* **H200**: one H200 SXM (driver 580.159, torch 2.11.0+cu130, Triton 3.6.0, November 2026). A read kernel
  inside a CUDA graph reaches 4.60 of 4.81 TB/s (share 0.955). A linear layer takes bytes / 4.60 TB/s + 5 us
  for any batch below the crossing; decode attention bytes / B + c with B = 4.45 TB/s and c = 6.9 us in bf16,
  4.45 TB/s and 7.1 us in fp8. Matrix rates at their plateau: 770 TFLOP/s in bf16 (share 0.78), 1,450 in fp8
  (0.73); in prefill of 512 to 8,192 tokens 655 to 691 (0.70). Memory and compute meet softly: the cube root
  of the sum of cubes is nearest to twenty measured layers (median 3 %, worst 15 %). A whole step of an 8B
  model needs 30 to 50 us a layer besides its bytes; 40 is taken.
* **llama.cpp**: 139 single-GPU points of 16 NVIDIA cards and 41 of four Apple chips, one public table
  (``tests/data/speed/llama_cpp_gpus.jsonl``); ``docs/speed.md`` has the errors, each GPU left out in turn.
* **vLLM**: the public single-stream reports in ``docs/speed.md``: few, and far apart.
* Attention in prefill: FlashAttention-2 (arXiv 2307.08691), section 4: 50 to 73 % of an A100's peak.
"""

from __future__ import annotations

from typing import NamedTuple

READ_SHARE = 0.955
"""Of the datasheet's bandwidth that a plain read reaches (H200)."""
SOFTNESS = 3.0
"""Exponent p of ``(memory^p + compute^p)^(1/p)``; infinity would be the sharp roofline (H200)."""
MATMUL_SHARE = {"16": 0.78, "fp8": 0.73, "int8": 0.73, "fp4": 0.6}
"""Of the datasheet's dense rate at the plateau. 16 and 8 bits: H200; 4 bits: stated, no measurement."""
ATTENTION_COMPUTE_SHARE = 0.55
"""Of the dense 16-bit rate in prefill attention (FlashAttention-2)."""
ATTENTION_SHARE = {"16": 0.928, "8": 0.928, "4": 0.788}
"""Of the datasheet's bandwidth in decode attention, by bits of the cache: 4.453, 4.454 and 3.785 TB/s of 4.8 on the
H200, medians of the three receipts in ``docs/validation``; kernels of engines that were not measured may read less."""
LINEAR_SECONDS = 5e-6
ATTENTION_SECONDS = 7e-6
LAYER_SECONDS = 13e-6
"""Per layer, for norms, rotary, activation and residual (H200: 40 us a layer less its matrix kernels)."""
ROUTING_SECONDS = 6e-6
"""Per layer with routed experts: top-k, sorting, combining; stated, three kernels of 2 us."""
EAGER_SCALE = 2.3
"""Latencies without CUDA graphs: 14 launches a layer at 6.7 us each (H200) against 40 us."""

LINKS: dict[str, tuple[float, float]] = {
    "nvlink": (0.7, 36e-6), "infinity-fabric": (0.7, 15e-6), "pcie": (0.25, 45e-6),
}  # fmt: skip
"""interconnect -> (share of one direction's rate, seconds of a collective). NVLink: from 10 MiB on a link (NCCL's
Simple protocol) on two H200; see `SMALL_MESSAGES`. PCIe: a 7B model in vLLM 0.10.1 on two A100 whose driver allows
no peer access takes 47 us an all-reduce of 7 kB (``docs/speed.md``), and larger ones pass host memory. Infinity
Fabric is stated: about what a kernel costs, twice."""
SMALL_MESSAGES: dict[str, tuple[float, float]] = {"nvlink": (0.39, 10.5e-6)}
"""interconnect -> the same for short messages, where NCCL takes a protocol with less latency and less bandwidth (LL,
LL128; ``src/graph/tuning.cc`` picks the one that it expects to be faster). All-reduce and all-to-all on two H200
(``docs/validation/two-gpus``), 4 KiB to 256 MiB over each link: the faster of both lines is within 8.2 % of all 36
medians of the run that it was fitted to and 12.6 % of another's, one line over all within 19 %. More ranks and NVLink
multicast were not measured."""
INDEX_IN_8_BITS = {
    "vllm": True, "sglang": True, "tensorrt-llm": False, "transformers": False, "mlx": False, "exllamav3": False,
    "llama.cpp": False, "ollama": False, "lmstudio": False, "generic": False,
}  # fmt: skip
"""Engines that score the index keys of sparse attention in fp8 where a device has such units: DeepGEMM's
``fp8_mqa_logits``. Source: vLLM 0.11.0 ``vllm/model_executor/models/deepseek_v2.py`` to 0.33.0
``vllm/model_executor/layers/sparse_attn_indexer.py``; SGLang
``python/sglang/srt/layers/attention/nsa/nsa_indexer.py``."""
OTHER_LINK = (0.7, 30e-6)
PCIE_4_X16 = 32e9
"""Bytes a second in one direction, taken where a device's link is not known."""
BRIDGED = 2
"""Cards that an NVLink bridge joins. The H200 NVL has bridges for four as well; which one stands in a machine is not
known."""
PCIE_OF: dict[str, tuple[str, float]] = {"7": ("3.0", 16e9), "8": ("4.0", PCIE_4_X16), "9": ("5.0", 64e9)}
"""Major compute capability of an NVIDIA card with bridges -> (its PCIe, bytes a second of 16 lanes one way)."""


class EngineRates(NamedTuple):
    """What an engine's kernels make of a device, and how far single reports lie from it."""

    read_share: float = 1.0
    """Of the bandwidth that a plain read reaches."""
    sm_bytes: float | None = None
    """Bytes of weights that one NVIDIA multiprocessor takes in a second; None: only the memory limits."""
    matvec_share: float | None = None
    """Of the dense 16-bit rate in matrix-vector products (Apple: unpacking is arithmetic); None: no limit."""
    naive_bytes: float | None = None
    """Bytes of cache a second without flash attention, whatever the device."""
    naive_share: float | None = None
    """The same as a share of the datasheet's bandwidth."""
    latency_scale: float = 1.0
    """Times the kernel latencies of a CUDA graph on an H200."""
    step_seconds: float = 0.0
    """Per step, outside the device: scheduling, sampling, detokenising."""
    prefill_share: float = 0.9
    """Of the plateau that whole prefill layers reach (H200: 685 of 770 TFLOP/s)."""
    half_accumulate: bool = False
    """Matrix products accumulate in 16 bits, which GeForce cards do at twice the rate."""
    sm_flops: float | None = None
    """FLOPs of one NVIDIA multiprocessor a second in prefill; None: only the tensor cores limit."""
    low: float = 0.6
    """Of predicted tokens a second: the reports used here lie between `low` and `high`."""
    high: float = 1.4
    prefill_low: float = 0.5
    prefill_high: float = 1.6
    reported: bool = False
    """Whether reports of this engine on this vendor's devices, or measurements, stand behind it."""
    source: str = "kernel rates of one H200; no report of this engine was used"


_LLAMA_CPP_2024 = EngineRates(
    sm_bytes=12e9, naive_bytes=290e9, latency_scale=1.93, half_accumulate=True, sm_flops=0.8e12, low=0.75, high=1.35,
    prefill_low=0.35, prefill_high=2.2, reported=True, source="llama.cpp of May 2024 on 16 NVIDIA cards",
)  # fmt: skip
_LLAMA_CPP = _LLAMA_CPP_2024._replace(
    latency_scale=1.0, low=0.7, source="llama.cpp on 16 NVIDIA cards (May 2024), launches as in CUDA graphs"
)
"""CUDA graphs came in the summer of 2024: five later reports are met with the multiprocessor's limit of the large
table and the launches of a graph (``docs/speed.md``)."""
_GRAPHS_FROM = 3500
"""The llama.cpp build (August 2024) from which CUDA graphs are taken to run."""
_LLAMA_CPP_APPLE = EngineRates(
    matvec_share=0.08, naive_share=0.13, latency_scale=3.85, prefill_share=0.8, low=0.7, high=1.5,
    reported=True, source="llama.cpp of May 2024 on four Apple chips",
)  # fmt: skip
_VLLM = EngineRates(
    read_share=0.8, step_seconds=0.5e-3, low=0.55, high=1.45, reported=True,
    source="public vLLM reports and kernel rates of one H200",
)  # fmt: skip
_LIKE_VLLM = _VLLM._replace(
    low=0.5, high=1.6, reported=False,
    source="what vLLM makes of NVIDIA's devices, and kernel rates of one H200; no report of this engine on such a "
    "device was used",
)  # fmt: skip
"""No report makes nothing faster than those of which there are some; the kernels' own rates lie within the bounds."""
_OTHER = EngineRates(low=0.5, high=1.3, source="kernel rates of one H200; no report of this device was used")

REPORTED: dict[tuple[str, str], EngineRates] = {
    ("generic", "nvidia"): EngineRates(low=0.8, high=1.15, reported=True, source="kernel rates of one H200, no engine"),
    ("vllm", "nvidia"): _VLLM,
    ("llama.cpp", "nvidia"): _LLAMA_CPP,
    ("llama.cpp", "apple"): _LLAMA_CPP_APPLE,
    ("ollama", "nvidia"): _LLAMA_CPP,
    ("ollama", "apple"): _LLAMA_CPP_APPLE,
    ("lmstudio", "nvidia"): _LLAMA_CPP,
    ("lmstudio", "apple"): _LLAMA_CPP_APPLE,
    ("mlx", "apple"): EngineRates(
        matvec_share=0.12, latency_scale=2.0, prefill_share=0.8, low=0.5, high=1.5,
        source="llama.cpp on Apple chips, scaled; no report of this engine was used",
    ),
    ("transformers", "nvidia"): EngineRates(
        latency_scale=6.5, low=0.5, high=1.6, source="kernel rates of one H200, 40 eager launches a layer",
    ),
}  # fmt: skip
"""(engine, device family) -> constants."""
ELSEWHERE: dict[str, EngineRates] = {
    **dict.fromkeys(("vllm", "sglang", "tensorrt-llm", "exllamav3", "mlx"), _LIKE_VLLM),
    **dict.fromkeys(("generic", "llama.cpp", "ollama", "lmstudio", "transformers"), _OTHER),
}
"""engine -> constants on devices beyond `REPORTED`: what vLLM makes of them; the kernels' own rates where the engine is
none, or no server of vLLM's kind. Every engine has a row."""


def engine_rates(engine: str, vendor: str, version: str = "") -> EngineRates:
    """The constants of an engine on a vendor's devices; wide bounds where nothing was measured.

    A server of which no report is known is taken to make of a device what vLLM makes of NVIDIA's.
    """
    family = vendor.lower()
    if engine == "llama.cpp" and family == "nvidia" and version[:1] == "b" and version[1:].isdigit():
        return _LLAMA_CPP_2024 if int(version[1:]) < _GRAPHS_FROM else _LLAMA_CPP
    return REPORTED.get((engine, family)) or ELSEWHERE[engine]
