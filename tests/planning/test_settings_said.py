"""What is said of settings that are refused or of no use, word by word, at the last value that is taken and beyond."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from kvplan import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.engines.base import Settings
from kvplan.errors import InputError, KvplanError, UnknownNameError, UnsupportedError
from kvplan.planning.settings import FIT, cut, flag_name, resolve, with_length

LLAMA = load_model("llama-3.1-8b")
"""32 query heads, 8 KV heads, 32 layers."""


def resolved(engine: str = "generic", gpu: str | None = "h200-sxm", **given: Any) -> tuple[Settings, list[str]]:
    return resolve(LLAMA, load_gpu(gpu) if gpu else None, get_engine(engine), given)


def refusal(engine: str = "generic", **given: Any) -> KvplanError:
    with pytest.raises(KvplanError) as caught:
        resolved(engine, **given)
    return caught.value


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("max_num_seqs", 2**24), ("max_num_batched_tokens", 2**32), ("block_size", 2**20),
        ("num_gpu_blocks_override", 2**50), ("max_model_len", 2**40), ("shared_prefix_tokens", 2**40),
        ("output_tokens", 2**40),
    ],
)  # fmt: skip
def test_the_largest_count_that_is_no_slip_of_the_hand(name: str, largest: int) -> None:
    def said(value: int) -> str:
        try:
            resolved("vllm", **{name: value})
        except KvplanError as error:
            return error.message + (error.hint or "")
        return ""

    assert "absurdly" not in said(largest)
    assert said(largest + 1) == f"{largest + 1:,} is absurdly largecheck the digits"


@pytest.mark.parametrize(
    ("engine", "given", "message", "hint"),
    [
        ("generic", {"gpus": True}, "True is not a whole number", "type a whole number"),
        ("generic", {"max_model_len": 1.5}, "1.5 is not a whole number", "type a whole number"),
        ("generic", {"shared_prefix_tokens": False}, "False is not a whole number", "type a whole number"),
        ("generic", {"gpus": 0}, "0 is too small", "at least 1"),
        ("generic", {"output_tokens": -1}, "-1 is too small", "at least 0"),
        ("generic", {"concurrency": -1}, "-1 is too small", "at least 1"),
        ("generic", {"weights": 4}, "4 is not a name", "type a name, such as bf16"),
        ("generic", {"kv_cache_dtype": 8}, "8 is not a name", "type a name, such as bf16"),
        ("vllm", {"mamba_ssm_cache_dtype": 32}, "32 is not a name", "type a name, such as bf16"),
        ("generic", {"enable_expert_parallel": 1}, "1 is neither True nor False", "type True or False"),
        ("vllm", {"enforce_eager": "on"}, "'on' is neither True nor False", "type True or False"),
        ("vllm", {"enable_prefix_caching": 0}, "0 is neither True nor False", "type True or False"),
        ("vllm", {"allow_long_max_model_len": 1}, "1 is neither True nor False", "type True or False"),
        ("vllm", {"gpu_memory_utilization": True}, "True is not a number", "type a number such as 0.92"),
        ("vllm", {"gpu_memory_utilization": "0.9"}, "'0.9' is not a number", "type a number such as 0.92"),
        ("vllm", {"gpu_memory_utilization": 0}, "0 is not a share of the memory",
         "type a number above 0 and up to 1, such as 0.92"),
        ("generic", {"acceptance_rate": 1.0}, "1.0 is out of range", "above 0, up to 0.999"),
        ("generic", {"acceptance_rate": 0}, "0 is out of range", "above 0, up to 0.999"),
        ("generic", {"request_rate": "x" * 60}, "'" + "x" * 39 + " is out of range", "above 0, up to 1e+09"),
        ("generic", {"prompt_cv": 101}, "101 is out of range", "above 0, up to 100"),
    ],
)  # fmt: skip
def test_values_that_a_setting_does_not_take(engine: str, given: dict[str, Any], message: str, hint: str) -> None:
    error = refusal(engine, **given)
    assert (error.where, error.message, error.hint) == (flag_name(next(iter(given))), message, hint)


def test_values_that_a_setting_takes() -> None:
    assert resolved("vllm", gpu_memory_utilization=1)[0].gpu_memory_utilization == 1
    assert resolved("vllm", acceptance_rate=0.999)[0].extra["acceptance_rate"] == 0.999
    assert resolved(max_model_len=1, prompt_tokens=1, output_tokens=0)[0].max_model_len == 1
    assert resolved(max_model_len=FIT)[0].max_model_len == -1
    left_out, _ = resolved("vllm", enforce_eager=False, kv_cache_dtype=None)
    assert left_out.defaults["kv_cache_dtype"] == "kvplan's default"


def test_every_setting_that_nobody_gave_has_a_source() -> None:
    found, _ = resolved("vllm", tensor_parallel_size=2)
    names = set(Settings.__dataclass_fields__) - {"engine", "engine_version", "extra", "defaults"}
    assert names - set(found.defaults) == {"tensor_parallel_size"}
    assert not {"extra", "defaults", "engine", "engine_version", "tensor_parallel_size"} & set(found.defaults)
    assert found.defaults["gpus"] == "tp x pp x dp"
    assert found.defaults["concurrency"] == "kvplan's default"
    assert "gpus" not in resolved(gpus=2)[0].defaults


@pytest.mark.parametrize(
    ("engine", "name", "message", "hint"),
    [
        ("vllm", "ctx_size", "vllm has no such setting (llama.cpp, ollama, lmstudio have)",
         "type --max-model-len instead, or add --engine llama.cpp"),
        ("vllm", "mem_fraction_static", "vllm has no such setting (sglang has)",
         "type --gpu-memory-utilization instead, or add --engine sglang"),
        ("sglang", "max_num_seqs", "sglang has no such setting (vllm, tensorrt-llm, exllamav3 have)",
         "type --max-running-requests instead, or add --engine vllm"),
        ("sglang", "block_size", "sglang has no such setting (vllm has)",
         "type --page-size instead, or add --engine vllm"),
        ("generic", "max_num_seqs", "generic has no such setting (vllm, tensorrt-llm, exllamav3 have)",
         "add --engine vllm"),
        ("vllm", "zzz", "vllm has no such setting", "leave it out"),
    ],
)  # fmt: skip
def test_settings_of_other_engines(engine: str, name: str, message: str, hint: str) -> None:
    error = refusal(engine, **{name: 4})
    assert (type(error), error.where) == (InputError, flag_name(name))
    assert (error.message, error.hint) == (message, hint)


def test_short_names_and_slips_of_the_hand() -> None:
    short = refusal("vllm", tp=2)
    assert (short.message, short.where, short.hint) == (
        "unknown setting 'tp'", "--engine vllm", "it is tensor_parallel_size here",
    )  # fmt: skip
    near = refusal("vllm", max_modle_len=4)
    assert isinstance(near, UnknownNameError)
    assert (near.where, near.near[0]) == ("--engine vllm", "max_model_len")


def test_layouts_at_their_limits() -> None:
    for tp, dcp in ((4, 3), (4, 8)):
        error = refusal(tensor_parallel_size=tp, decode_context_parallel_size=dcp)
        assert isinstance(error, UnsupportedError)
        assert (error.where, error.hint) == ("--decode-context-parallel-size", "type one of 1, 2, 4")
        assert error.message == f"decode context parallel size {dcp} does not divide tensor parallel size {tp}"
    assert resolved(pipeline_parallel_size=32)[0].world_size == 32
    deep = refusal(pipeline_parallel_size=33)
    assert (deep.where, deep.message, deep.hint) == (
        "--pipeline-parallel-size", "33 pipeline stages for 32 layers", "at most 32",
    )  # fmt: skip
    assert resolved(data_parallel_size=4096)[0].gpus == 4096
    wide = refusal(data_parallel_size=4097)
    assert (wide.where, wide.message, wide.hint) == (
        "--data-parallel-size", "tp x pp x dp makes 4,097 GPUs", "at most 4,096",
    )  # fmt: skip
    few = refusal(tensor_parallel_size=4, gpus=3)
    assert (few.where, few.message) == ("--gpus", "tp x pp x dp needs 4 GPUs, not 3")
    assert few.hint == "type --gpus 4, or a smaller layout"


@pytest.mark.parametrize(
    ("engine", "given", "said"),
    [
        ("generic", {"tensor_parallel_size": 4, "gpus": 4}, None),
        ("generic", {"gpus": 8, "tensor_parallel_size": 4}, "4 of 8 GPUs idle: tp x pp x dp uses 4; type -tp 8"),
        ("generic", {"gpus": 8, "tensor_parallel_size": 2, "data_parallel_size": 2},
         "4 of 8 GPUs idle: tp x pp x dp uses 4; type -tp 4"),
        ("generic", {"gpus": 16, "pipeline_parallel_size": 4}, "12 of 16 GPUs idle: tp x pp x dp uses 4; type -tp 4"),
        ("generic", {"gpus": 9, "data_parallel_size": 2}, "7 of 9 GPUs idle: tp x pp x dp uses 2"),
        ("generic", {"gpus": 3}, "2 of 3 GPUs idle: tp x pp x dp uses 1"),  # 3 divides no 32 heads
        ("generic", {"gpus": 6, "data_parallel_size": 2}, "4 of 6 GPUs idle: tp x pp x dp uses 2"),
        ("llama.cpp", {"gpus": 8, "pipeline_parallel_size": 4}, "4 of 8 GPUs idle: tp x pp x dp uses 4"),
    ],
)  # fmt: skip
def test_idle_gpus(engine: str, given: dict[str, Any], said: str | None) -> None:
    _, warnings = resolved(engine, **given)
    more = " to split every layer over all" if said and "type" in said else ""
    assert warnings == ([] if said is None else [said + more])


def test_a_prefix_as_long_as_the_prompt_and_one_longer() -> None:
    assert resolved(shared_prefix_tokens=1024)[0].shared_prefix_tokens == 1024
    error = refusal(shared_prefix_tokens=1025)
    assert error.message == "a shared prefix of 1,025 tokens is longer than the prompt of 1,024"
    assert (error.where, error.hint) == (
        "--shared-prefix-tokens", "raise --prompt-tokens, which includes the prefix",
    )  # fmt: skip


def test_a_request_over_the_limit_is_told_where_no_verdict_will_tell() -> None:
    sizes = {"prompt_tokens": 1024, "output_tokens": 256}
    said = "a request of 1,280 tokens (prompt + output) is longer than max_model_len 1,279"
    assert resolved(gpu=None, max_model_len=1279, **sizes)[1] == [said]
    assert resolved(gpu=None, max_model_len=1280, **sizes)[1] == []
    assert resolved(max_model_len=1279, **sizes)[1] == []
    assert resolved(gpu=None, max_model_len=FIT, **sizes)[1] == []


@pytest.mark.parametrize(("concurrency", "dp", "waits"), [(4, 1, 0), (5, 1, 5), (8, 2, 0), (9, 2, 5)])
def test_requests_beyond_the_engine_s_limit_wait(concurrency: int, dp: int, waits: int) -> None:
    given = {"max_num_seqs": 4, "concurrency": concurrency, "data_parallel_size": dp}
    said = f"{waits} requests a replica, of which max_num_seqs 4 run at once; the rest wait"
    assert resolved("vllm", **given)[1] == ([said] if waits else [])


# ---- a workload that nobody gave, cut to the limit ----


def workload(settings: Settings) -> tuple[int, int]:
    return settings.prompt_tokens, settings.output_tokens


@pytest.mark.parametrize(
    ("length", "given", "expected"),
    [
        (1280, {}, (1024, 256)), (1279, {}, (1279 - 255, 255)), (640, {}, (512, 128)), (1, {}, (1, 0)),
        (1280, {"prompt_tokens": 1025}, (1025, 255)), (1000, {"prompt_tokens": 999}, (999, 1)),
        (1000, {"prompt_tokens": 1000}, (1000, 256)),  # nothing is left for an output
        (1000, {"output_tokens": 999}, (1, 999)), (1000, {"output_tokens": 1000}, (1024, 1000)),
        (1000, {"output_tokens": 400, "shared_prefix_tokens": 600}, (600, 400)),
    ],
)  # fmt: skip
def test_cut_by_number_and_as_an_array(length: int, given: dict[str, int], expected: tuple[int, int]) -> None:
    settings, _ = resolved(max_model_len=length, **given)
    assert workload(settings) == expected
    free = {"prompt_tokens", "output_tokens"} - set(given)
    said = {settings.defaults[name] for name in free}
    changed = expected != (given.get("prompt_tokens", 1024), given.get("output_tokens", 256))
    assert said == {"kvplan's default, cut to max_model_len" if changed else "kvplan's default"}
    # a length that grows again gives back what was cut; nobody's own figures move
    longer = with_length(settings, 4096)
    assert workload(longer) == (given.get("prompt_tokens", 1024), given.get("output_tokens", 256))
    assert {longer.defaults[name] for name in free} == {"kvplan's default"}
    lengths = numpy.array([length, 4096])
    prompt, output = (numpy.broadcast_to(value, 2).tolist() for value in workload(with_length(longer, lengths)))
    assert list(zip(prompt, output, strict=True)) == [expected, workload(longer)]


def test_what_needs_no_cut_stays_the_same_object() -> None:
    for given in ({}, {"prompt_tokens": 9}, {"prompt_tokens": 9, "output_tokens": 9}, {"max_model_len": FIT}):
        settings, _ = resolved(**given)
        assert cut(settings) is settings
    over, _ = resolved(max_model_len=1000, prompt_tokens=1000)
    assert cut(over) is over
    given, _ = resolved(max_model_len=1000, prompt_tokens=1000, output_tokens=1000)
    assert cut(given) is given
