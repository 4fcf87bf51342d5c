"""vLLM's memory budget: terms by version, printed figures reproduced, laws of the bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.engines.base import Settings, Term
from kvplan.engines.vllm import budget_activation as activation
from kvplan.engines.vllm import budget_outside as outside
from kvplan.engines.vllm import budget_versions as versions
from kvplan.engines.vllm import budget_weights as loaded
from kvplan.engines.vllm.runner import runner
from kvplan.engines.vllm.versions import parse
from kvplan.planning.drafts import served_model
from kvplan.planning.evaluate import Outcome, evaluate
from kvplan.planning.settings import resolve
from kvplan.units import GIB, MIB


def run(name: str, gpu: str, version: str, extra: dict[str, Any] | None = None, **given: Any) -> Outcome:
    """A deployment under the budget rules of `version`."""
    model, card, engine = load_model(name), load_gpu(gpu), get_engine(f"vllm@{version}")
    settings, _ = resolve(model, card, engine, given)
    settings = replace(settings, engine_version=version, extra={**settings.extra, **(extra or {})})
    return evaluate(served_model(model, engine, settings), card, engine, settings)


def terms(*args: Any, **given: Any) -> dict[str, Term]:
    """The terms of the first stage, by name."""
    outcome = run(*args, **given)
    assert outcome.waterfalls is not None
    return {t.name: t for t in outcome.waterfalls[0].terms}


def gib(size: int) -> float:
    return size / GIB


PRINTED_PEAKS = [
    ("gpt-oss-20b", "h100-sxm", "0.11.0", {}, 7.38),
    ("llama-3.3-70b-instruct-fp8-dynamic", "h100-sxm", "0.11.0", dict(tensor_parallel_size=2), 4.84),
    ("qwen3-0.6b", "h100-sxm", "0.11.0", {}, 5.56),
    ("qwen3-32b", "h100-sxm", "0.11.0", {}, 5.64),
    ("qwen3-next-80b-a3b", "h200-sxm", "0.10.2", dict(tensor_parallel_size=2), 5.58),
    ("qwen3-8b", "rtx-a6000", "0.15.0", {}, 1.40),
    ("qwen3-14b-awq", "rtx-5090", "0.28.0", {}, 1.46),
    ("qwen3-32b-awq", "rtx-5090", "0.28.0", {}, 1.46),
    ("qwen2.5-7b-awq", "l4", "0.28.0", {}, 1.04),
]


@pytest.mark.parametrize(("name", "gpu", "version", "given", "printed"), PRINTED_PEAKS)
def test_printed_peak(name: str, gpu: str, version: str, given: dict[str, Any], printed: float) -> None:
    """Peak activation that start-up logs print (0.28 with a cold compile cache, whose V2 runner adds no graphs)."""
    peak = terms(name, gpu, version, max_model_len=16000, **given)["activation peak"]
    assert gib(peak.bytes) == pytest.approx(printed, abs=0.035)
    assert peak.low_bytes <= printed * GIB <= peak.high_bytes


@pytest.mark.parametrize(
    ("name", "version", "rows", "path", "bytes_per_element"),
    [
        ("qwen3-8b", "0.11.0", 1024, "sort", 38.0),
        ("qwen3-8b", "0.12.0", 1024, "sort", 38.0),
        ("qwen3-8b", "0.16.0", 64, "sort", 50.4),
        ("qwen3-8b", "0.17.0", 1024, "Triton", 14.0),
        ("qwen3-8b", "0.20.0", 4, "sort of few rows", 50.4),
        ("qwen3-8b", "0.21.0", 1024, "FlashInfer, Triton warmed", 14.0),
        ("qwen3-8b", "0.24.0", 1024, "V2 runner, fp32 copy", 6.0),
        ("qwen3-8b", "0.26.0", 1024, "V2 runner, logits only", 2.0),
        ("qwen3-8b", "0.33.0", 1024, "V2 runner, warm-up pass with top-k and top-p", 14.0),
        ("qwen3.6-27b", "0.28.0", 1024, "FlashInfer, Triton warmed", 14.0),
        ("qwen3.6-27b", "0.29.0", 1024, "V2 runner, logits only", 2.0),
    ],
)
def test_sampler_path(name: str, version: str, rows: int, path: str, bytes_per_element: float) -> None:
    settings = Settings(engine="vllm", engine_version=version, max_num_seqs=rows, max_num_batched_tokens=8192)
    gpu = load_gpu("h100-sxm")
    which = runner(load_model(name), settings, parse(version))
    found = versions.sampler(settings, gpu, which, rows)
    assert (found.path, found.bytes_per_element) == (path, bytes_per_element)


def test_unknown_sampler_is_in_the_bounds() -> None:
    """0.11.0 and before: the sort is the point, FlashInfer (24 bytes less) the lower bound; a logged line decides."""
    open_path = terms("llama-3.1-8b", "h100-sxm", "0.11.0")["activation peak"]
    logged = terms("llama-3.1-8b", "h100-sxm", "0.11.0", {"flashinfer_sampler": True})["activation peak"]
    assert open_path.bytes - logged.bytes == 24 * 1024 * 128256
    assert open_path.low_bytes <= logged.bytes
    assert terms("llama-3.1-8b", "h100-sxm", "0.12.0")["activation peak"].low_bytes > logged.bytes


def test_v2_runner_keeps_counts_by_max_num_seqs() -> None:
    """4.25 bytes per sequence and vocabulary element, whatever the batched tokens."""
    kept = terms("llama-3.1-8b", "h100-sxm", "0.30.0", max_num_seqs=512)["buffers kept"]
    assert kept.bytes == 17 * 512 * 128256 // 4
    assert terms("llama-3.1-8b", "h100-sxm", "0.16.0", max_num_seqs=512)["buffers kept"].bytes == 0


@pytest.mark.parametrize(
    ("name", "version", "charged"),
    [
        ("qwen3-32b", "0.19.0", False), ("qwen3-32b", "0.20.0", True), ("gemma-3-27b", "0.23.0", True),
        ("qwen3-32b", "0.23.0", False), ("qwen3-32b", "0.24.0", False), ("qwen3-32b", "0.28.0", False),
        ("qwen3-32b", "0.29.0", True), ("qwen3.6-27b", "0.26.0", True),
    ],
)  # fmt: skip
def test_when_graphs_are_charged(name: str, version: str, charged: bool) -> None:
    """From 0.20 on; not by the V2 runner before 0.29, which estimates nothing."""
    term = terms(name, "h200-sxm", version, max_model_len=8192)["CUDA graphs"]
    assert (term.bytes > 0) is charged
    assert terms(name, "h200-sxm", version, max_model_len=8192, enforce_eager=True)["CUDA graphs"].high_bytes == 0


def test_printed_graph_estimates() -> None:
    """0.37 GiB (28 layers, sizes up to 256), about 0.21 (62 layers, sizes up to 16): within the stated factor of 2."""
    first = terms("qwen2.5-7b", "l40s", "0.22.0", {"max_cudagraph_capture_size": 256})["CUDA graphs"]
    assert gib(first.bytes) == pytest.approx(0.37, rel=0.25)
    few = Settings(engine="vllm", engine_version="0.20.0", max_num_seqs=10, max_num_batched_tokens=8192)
    few = replace(few, extra={"max_cudagraph_capture_size": 16})
    assert outside.graph_count(few, load_gpu("h100-sxm")) == 5 + 4


def test_capture_sizes_by_version() -> None:
    """67 sizes of 8 until 0.11.0, 51 after, 83 up to 1,024, 35 up to 256."""
    gpu = load_gpu("h100-sxm")
    old = Settings(engine="vllm", engine_version="0.11.0", max_num_seqs=1024, max_num_batched_tokens=8192)
    assert len(outside.capture_sizes(old, gpu)) == 67
    assert len(outside.capture_sizes(replace(old, engine_version="0.12.0"), gpu)) == 51
    assert len(outside.capture_sizes(replace(old, engine_version="0.33.0"), load_gpu("b200"))) == 83
    assert len(outside.capture_sizes(replace(old, engine_version="0.12.0", max_num_seqs=128), gpu)) == 35


@pytest.mark.parametrize(
    ("name", "gpu", "tp", "printed"),
    [
        ("gpt-oss-20b", "h100-sxm", 1, 13.47), ("gpt-oss-20b", "a100-sxm4-80gb", 1, 13.72),
        ("gpt-oss-120b", "h100-sxm", 1, 64.38), ("gpt-oss-120b", "a100-sxm4-80gb", 1, 65.97),
        ("gpt-oss-120b", "a100-sxm4-80gb", 4, 17.22),
    ],
)  # fmt: skip
def test_loaded_mxfp4_weights(name: str, gpu: str, tp: int, printed: float) -> None:
    """ "Model loading took" of start-up logs, padding by Triton on Hopper and by Marlin on Ampere."""
    found = terms(name, gpu, "0.19.0", tensor_parallel_size=tp)
    size = sum(t.bytes for t in found.values() if t.part == "weights")
    assert gib(size) == pytest.approx(printed, abs=0.12)


def test_marlin_rounds_what_a_rank_holds() -> None:
    assert loaded.mxfp4_bytes("marlin", 720, 2880) == 3 * 768 * 3072 * 17 // 32
    assert loaded.mxfp4_bytes("rocm", 384, 7168, (0, 28, 0)) == 3 * 512 * 7168 * 17 // 32
    assert loaded.mxfp4_bytes("rocm", 384, 7168, (0, 17, 0)) == 3 * 384 * 7168 * 17 // 32
    assert loaded.mxfp4_bytes("aiter", 384, 7168, (0, 27, 0)) == 3 * 512 * 7168 * 17 // 32
    assert loaded.mxfp4_bytes("aiter", 384, 7168, (0, 28, 0)) == 3 * 384 * 7168 * 17 // 32
    assert loaded.mxfp4_bytes("triton", 2880, 2880) == 3 * 2880 * 3072 // 2 + 3 * 2880 * 2880 // 32
    assert terms("llama-3.1-8b", "h100-sxm", "0.19.0").get("padding of 4-bit experts") is None


def test_mla_prefill_workspace() -> None:
    """65,536 rows x heads x (128 + 128) x 2 bytes: 4 GiB where attention is not divided, 0.5 GiB over 8 ranks."""
    alone = run("deepseek-v3", "b200", "0.33.0", data_parallel_size=8, enable_expert_parallel=True)
    shared = run("deepseek-v3", "b200", "0.33.0", tensor_parallel_size=8)
    assert activation.latent_prefill_bytes(alone.stages[0], alone.settings, 64) == 4 * GIB
    assert activation.latent_prefill_bytes(shared.stages[0], shared.settings, 64) == GIB // 2


def test_expert_workspace() -> None:
    """B x top-k rows; with DeepGEMM every expert's rows are padded to 128; kept from 0.14 on."""
    plain = run("qwen3-235b-a22b", "h100-sxm", "0.16.0", tensor_parallel_size=8, max_model_len=8192)
    stage, settings, gpu = plain.stages[0], plain.settings, load_gpu("h100-sxm")
    model = load_model("qwen3-235b-a22b")
    found = activation.expert_workspace(stage, model, settings, gpu, "bf16")
    assert found == (2 * 8192 * 8 * (4096 + 4096), 0)
    deep = activation.expert_workspace(stage, model, settings, gpu, "fp8_block")
    rows = -(-(8192 * 8 + 127 * 128) // 128) * 128
    assert deep.shared == 2 * rows * (4096 + 4096)
    assert deep.beside == rows * (4096 + 192)
    a100 = activation.expert_workspace(stage, model, settings, load_gpu("a100-sxm4-80gb"), "fp8_block")
    assert a100 == found
    assert terms("qwen3-30b-a3b", "h100-sxm", "0.13.0")["buffers kept"].bytes == 0
    assert terms("qwen3-30b-a3b", "h100-sxm", "0.14.0")["buffers kept"].bytes > 0


def test_cold_compilation() -> None:
    """A copy of the rank's embedding; none eager, warm, before 0.17 or where images are embedded outside."""
    embedding = 151936 * 5120 * 2
    cold = terms("qwen3-32b-awq", "rtx-5090", "0.28.0")
    warm = terms("qwen3-32b-awq", "rtx-5090", "0.28.0", {"compile_cache": "warm"})
    assert cold["activation peak"].bytes == embedding + 32 * MIB
    assert cold["allocator fragments"].bytes == embedding
    assert warm["allocator fragments"].bytes == 0
    assert gib(warm["activation peak"].bytes) == pytest.approx(0.39, abs=0.06)  # a warm start printed 0.33
    assert "allocator fragments" not in terms("qwen3-32b", "h200-sxm", "0.31.0")
    assert "allocator fragments" not in terms("qwen3-32b", "h200-sxm", "0.26.0")
    settings = run("qwen3-32b", "h200-sxm", "0.30.0").settings
    stage = run("qwen3-32b", "h200-sxm", "0.30.0").stages[0]
    model = load_model("qwen3-32b")
    assert activation.compile_peak(stage, model, settings, 151936).bytes == embedding
    for changed in (replace(settings, enforce_eager=True), replace(settings, engine_version="0.16.0")):
        assert activation.compile_peak(stage, model, changed, 151936).high == 0
    assert activation.compile_peak(stage, load_model("qwen3.6-27b"), settings, 248320).high == 0


def test_encoder() -> None:
    """Images are profiled on 16,384 tokens at least; off without an encoder, by either flag."""
    small = dict(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=8192)
    full = terms("qwen3.6-27b", "h100-sxm", "0.26.0", **small)["activation peak"]
    skipped = terms("qwen3.6-27b", "h100-sxm", "0.26.0", {"skip_mm_profiling": True}, **small)["activation peak"]
    assert full.source.startswith("the encoder is the peak")
    assert gib(full.bytes) == pytest.approx(1.5, abs=0.2)
    assert skipped.bytes < full.bytes // 3
    text = terms("qwen3.6-27b", "h100-sxm", "0.26.0", {"language_model_only": True}, **small)
    assert text["encoder not loaded"].bytes == -2 * sum(t.parameters for t in load_model("qwen3.6-27b").towers)
    assert "encoder not loaded" not in terms("qwen3-32b", "h200-sxm", "0.26.0", {"language_model_only": True})


@pytest.mark.parametrize(
    ("version", "gpu", "tp", "printed"),
    [
        ("0.11.0", "h100-sxm", 1, 0.13), ("0.11.0", "h100-sxm", 2, 0.54), ("0.10.2", "h200-sxm", 2, 1.38),
        ("0.10.2", "h100-sxm", 4, 1.84), ("0.10.2", "rtx-3090", 1, 0.02), ("0.15.0", "rtx-a6000", 1, 0.03),
    ],
)  # fmt: skip
def test_outside_torch(version: str, gpu: str, tp: int, printed: float) -> None:
    """ "non-torch memory" of start-up logs."""
    settings = Settings(engine="vllm", engine_version=version, tensor_parallel_size=tp)
    level, _ = outside.outside_level(settings, load_gpu(gpu))
    assert gib(level.typical) == pytest.approx(printed, abs=0.02)
    assert level.low <= level.typical <= level.high


def test_no_snapshot_before_0_9() -> None:
    """The CUDA context counted then."""
    old = Settings(engine="vllm", engine_version="0.8.5")
    assert outside.outside_level(old, load_gpu("a100-sxm4-80gb"))[0].typical > 600 * MIB


def test_lora_buffers() -> None:
    """Llama-3.1-8B, one slot of rank 16: q alone takes 16 x (4096 + 4096) x 2 bytes a layer."""
    extra = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 16}
    term = terms("llama-3.1-8b", "h100-sxm", "0.30.0", extra)["LoRA buffers"]
    widths = (4096 + 4096) * 2 + (4096 + 1024) * 2 + (4096 + 14336) * 3
    assert term.bytes == 32 * 16 * 2 * widths
    assert "LoRA buffers" not in terms("llama-3.1-8b", "h100-sxm", "0.30.0")


VERSIONS = ("0.8.5", "0.10.2", "0.11.0", "0.14.0", "0.19.0", "0.22.0", "0.26.0", "0.28.0", "0.30.0", "0.31.0", "0.33.0")
MODELS = ("llama-3.1-8b", "gpt-oss-20b", "qwen3-30b-a3b", "gemma-3-27b", "qwen3.6-27b", "mistral-small-3.2-24b")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MODELS)
def test_laws(name: str, version: str) -> None:
    """Bounds hold their value; more sequences or tokens never leave more; every term says where it comes from."""
    left = []
    tries: tuple[dict[str, Any], ...]
    tries = (dict(max_num_seqs=8), dict(max_num_seqs=256), dict(max_num_seqs=256, max_num_batched_tokens=32768))
    for given in tries:
        outcome = run(name, "h100-sxm", version, max_model_len=32768, **given)
        assert outcome.waterfalls is not None
        for term in outcome.waterfalls[0].terms:
            assert term.low_bytes <= term.bytes <= term.high_bytes, term
            assert term.source
        left.append(outcome.waterfalls[0].available_bytes)
    assert left[0] >= left[1] >= left[2]


def test_only_the_last_stage_samples() -> None:
    outcome = run("llama-3.1-70b", "h100-sxm", "0.12.0", pipeline_parallel_size=4, max_model_len=8192)
    assert outcome.waterfalls is not None
    peaks = [next(t.bytes for t in fall.terms if t.name == "activation peak") for fall in outcome.waterfalls]
    assert peaks[3] > 4 * GIB > 2 * max(peaks[:3])
