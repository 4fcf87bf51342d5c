"""The line to paste has only flags that the program of that release has, and reads back as the same plan."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest

from kvplan import plan
from kvplan.errors import KvplanError
from kvplan.planning.plan import Plan
from kvplan.sources.commands import read_command
from kvplan.units import GIB

SGLANG = [
    "--model-path",
    "--tp-size",
    "--pp-size",
    "--dp-size",
    "--context-length",
    "--kv-cache-dtype",
    "--mem-fraction-static",
    "--page-size",
    "--chunked-prefill-size",
    "--max-running-requests",
    "--max-total-tokens",
    "--ep-size",
    "--enable-dp-attention",
    "--quantization",
    "--dtype",
]
"""Of ``srt/server_args.py`` in every release from 0.4.9 on."""
SGLANG_LATER = {
    "--mamba-ssm-dtype": (0, 5, 2), "--max-mamba-cache-size": (0, 5, 2), "--swa-full-tokens-ratio": (0, 5, 2),
    "--mamba-full-memory-ratio": (0, 5, 6), "--attn-dp-size": (0, 5, 23),
}  # fmt: skip
TRTLLM = [
    "--tp_size",
    "--pp_size",
    "--ep_size",
    "--max_seq_len",
    "--max_batch_size",
    "--max_num_tokens",
    "--kv_cache_free_gpu_memory_fraction",
    "--kv_cache_dtype",
    "--extra_llm_api_options",
]
"""Of ``tensorrt_llm/commands/serve.py`` in 1.3."""
SAME = (
    "max_model_len", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
    "attn_dp_size", "max_num_seqs", "max_num_batched_tokens", "page_size", "tokens_per_block", "max_running_requests",
)  # fmt: skip


def _note(made: Plan) -> str:
    text = next(t for t in made.verdict.notes if t.startswith("to paste: "))
    line, _, rest = text.removeprefix("to paste: ").partition("\n")
    beside = rest.partition("leaves ")[0].rstrip("; ")
    return f"{line}; {beside}" if beside else line


def _has(engine: str, flag: str) -> bool:
    if engine == "tensorrt-llm":
        return flag in TRTLLM
    version = tuple(int(part) for part in engine.partition("@")[2].split("."))
    return flag in SGLANG or version >= SGLANG_LATER.get(flag, (99,))


CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    (f"sglang@{version}", model, gpu, layout | more)
    for version in ("0.4.9", "0.5.6", "0.5.17", "0.5.23")
    for (model, gpu, layout), more in itertools.product(
        (
            ("llama-3.1-8b", "h100-sxm", {}),
            ("llama-3.1-8b", "h200-sxm", {"data_parallel_size": 2}),
            ("deepseek-v3", "h200-sxm", {"tensor_parallel_size": 8, "attn_dp_size": 8, "enable_expert_parallel": True}),
            ("qwen3-next-80b-a3b", "h200-sxm", {"tensor_parallel_size": 2}),
            ("gpt-oss-20b", "h100-sxm", {}),
        ),
        (
            {"max_model_len": 8192},
            {"max_model_len": 8192, "kv_cache_dtype": "fp8"},
            {"max_model_len": 8192, "kv_cache_memory_bytes": 12 * GIB},
            {"max_model_len": 4096, "page_size": 64, "max_running_requests": 64},
            {"max_model_len": 4096, "max_total_tokens": 40_000},
        ),
    )
]
CASES += [
    ("tensorrt-llm", model, gpu, layout | more)
    for (model, gpu, layout), more in itertools.product(
        (
            ("llama-3.1-8b", "h100-sxm", {}),
            ("deepseek-v3", "h200-sxm", {"tensor_parallel_size": 8, "attn_dp_size": 8, "enable_expert_parallel": True}),
            ("gpt-oss-20b", "h100-sxm", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
        ),
        (
            {"max_model_len": 8192},
            {"max_model_len": 8192, "kv_cache_dtype": "fp8", "tokens_per_block": 64},
            {"max_model_len": 8192, "kv_cache_memory_bytes": 12 * GIB},
            {"max_model_len": 4096, "max_total_tokens": 40_000, "max_num_seqs": 64},
            {"max_model_len": 4096, "free_gpu_memory_fraction": 0.7},
        ),
    )
]


@pytest.mark.parametrize(("engine", "model", "gpu", "given"), CASES, ids=range(len(CASES)))
def test_only_what_the_program_takes(
    engine: str, model: str, gpu: str, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        made = plan(model, gpu=gpu, engine=engine, **given)
    except KvplanError:
        pytest.skip("refused")
    if engine == "sglang@0.4.9" and model.startswith("qwen3-next") and "kv_cache_memory_bytes" in given:
        assert not [t for t in made.verdict.notes if "to paste" in t]  # it has no flag for the number of states
        return
    line, _, beside = _note(made).partition("; ")
    unknown = [word for word in shlex.split(line) if word.startswith("--") and not _has(engine, word)]
    assert not unknown
    monkeypatch.chdir(tmp_path)
    if beside:
        Path("options.yaml").write_text(beside.removeprefix("options.yaml holds "), encoding="utf-8")
    read = read_command(line)
    assert not read.unknown
    again = plan(model, gpu=gpu, engine=engine, **{k: v for k, v in read.settings.items() if k != "weights"})
    assert {k: again.inputs.get(k) for k in SAME} == {k: made.inputs.get(k) for k in SAME}
    assert _middle(again) == _middle(made)
    assert again.kv == made.kv


def _middle(made: Plan) -> Any:
    """The capacity without its ends: the bytes that a line states have none."""
    return made.capacity and made.capacity._replace(low=None, high=None)


@pytest.mark.parametrize(
    ("version", "words"), [("0.5.6", "--dp-size 8 --tp-size 8"), ("0.5.23", "--tp-size 8 --attn-dp-size 8")]
)
def test_dp_attention_as_the_release_spells_it(version: str, words: str) -> None:
    line = _note(
        plan("deepseek-v3", gpu="h200-sxm", engine=f"sglang@{version}", tensor_parallel_size=8, attn_dp_size=8)
    )
    assert words in line
    assert ("--enable-dp-attention" in line) is (version == "0.5.6")


@pytest.mark.parametrize(
    ("engine", "given", "words"),
    [
        ("ollama", {"num_ctx": 8192, "num_parallel": 4, "kv_cache_dtype": "q8_0"},
         "OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_NUM_PARALLEL=4 ollama serve"),
        ("ollama", {"num_ctx": 8192, "weights": "q4_k_m"},
         "then ollama run qwen3:8b (where a server runs already, /set parameter num_ctx 8192 at its prompt)"),
        ("ollama", {"num_ctx": 8192, "num_batch": 256, "weights": "q8_0"},
         "ollama create my-qwen3-8b -f Modelfile (FROM ./qwen3-8b.gguf, PARAMETER num_batch 256)"),
        ("mlx", {"max_model_len": 8192, "kv_bits": 4, "kv_group_size": 32},
         "mlx_lm.generate --model Qwen/Qwen3-8B --kv-bits 4 --kv-group-size 32"),
        ("transformers", {"max_model_len": 8192, "cache_implementation": "quantized"},
         'cache_config={"backend": "quanto", "nbits": 4, "q_group_size": 64, "residual_length": 128}'),
        ("transformers", {"max_model_len": 8192, "cache_implementation": "static"}, "max_cache_len=8192)"),
        ("exllamav3", {"max_model_len": 8192, "cache_bits": "8,6", "max_num_seqs": 4},
         "Cache(model, max_num_tokens=8192, max_batch_size=4, layer_type=CacheLayer_quant, k_bits=8, v_bits=6)"),
    ],
)  # fmt: skip
def test_local_engines_have_one_too(engine: str, given: dict[str, Any], words: str) -> None:
    assert words in _note(plan("qwen3-8b", gpu="h100-sxm", engine=engine, **given))
