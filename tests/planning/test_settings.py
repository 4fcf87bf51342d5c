"""Settings: defaults with their source, and refusals that say what to type."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import plan
from kvplan.errors import InputError, KvplanError, UnknownNameError, UnsupportedError


def refusal(**settings: object) -> KvplanError:
    model = settings.pop("model", "llama-3.1-8b")
    with pytest.raises(KvplanError) as caught:
        plan(model, **settings)
    error = caught.value
    assert "\n" not in str(error)
    assert error.hint
    return error


@pytest.mark.parametrize(
    "name", ["tensor_parallel_size", "max_num_seqs", "concurrency", "gpus", "block_size", "prompt_tokens"]
)
@pytest.mark.parametrize("value", [0, -3, 2.5, "8", True, 10**18])
def test_counts_are_whole_and_sane(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert isinstance(error, InputError)
    assert name.replace("_", "-") in str(error)


@pytest.mark.parametrize("share", [0, -0.1, 1.01, 92])
def test_a_share_is_between_0_and_1(share: float) -> None:
    error = refusal(gpu_memory_utilization=share)
    assert isinstance(error, InputError)
    assert f"{share} is not a share of the memory" in str(error)


def test_tensor_parallelism_must_divide_the_query_heads() -> None:
    error = refusal(tensor_parallel_size=3, engine="generic")
    assert isinstance(error, UnsupportedError)
    assert "query_heads (32)" in str(error)
    assert "1, 2, 4, 8, 16, 32" in (error.hint or "")


def test_more_stages_than_layers() -> None:
    assert "33 pipeline stages for 32 layers" in str(refusal(pipeline_parallel_size=33))


def test_context_parallelism_divides_tensor_parallelism() -> None:
    assert "does not divide" in str(refusal(tensor_parallel_size=4, decode_context_parallel_size=3))


def test_context_parallelism_needs_copies_of_a_head() -> None:
    error = refusal(tensor_parallel_size=8, decode_context_parallel_size=2)
    assert isinstance(error, UnsupportedError)
    assert "needs 2 copies of each KV head" in str(error)


def test_too_few_gpus_is_an_error_and_too_many_a_warning() -> None:
    assert "needs 4 GPUs" in str(refusal(tensor_parallel_size=4, gpus=2))
    found = plan("llama-3.1-8b", tensor_parallel_size=2, gpus=8, gpu="h200-sxm")
    assert any("6 of 8 GPUs idle" in w for w in found.warnings)


def test_vllm_refuses_a_context_beyond_the_models() -> None:
    error = refusal(max_model_len=200_000)
    assert "131,072" in str(error)
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in (error.hint or "")
    assert 'kvplan plan "vllm serve meta-llama/Llama-3.1-8B --max-model-len 200000' in (error.hint or "")
    found = plan("llama-3.1-8b", max_model_len=200_000, allow_long_max_model_len=True)
    assert any("200,000" in w for w in found.warnings)


def test_generic_warns_and_names_the_rope_rule() -> None:
    found = plan("llama-3.1-8b", engine="generic", max_model_len=200_000)
    assert any("131,072" in w and "llama3" in w for w in found.warnings)


def test_unknown_settings_and_settings_of_other_engines() -> None:
    assert isinstance(refusal(max_modle_len=4), UnknownNameError)
    assert "generic has no such setting" in str(refusal(engine="generic", max_num_seqs=4))


@pytest.mark.parametrize(
    ("name", "value"), [("kv_cache_dtype", "fp7"), ("weights", "bf61"), ("engine", "vlm"), ("gpu", "h1000-sxm")]
)
def test_unknown_names_come_with_near_ones(name: str, value: str) -> None:
    error = refusal(**{name: value})
    assert isinstance(error, UnknownNameError)
    assert error.near or "known" in (error.hint or "")


def test_unknown_model_names_the_nearest() -> None:
    error = refusal(model="lama-3.1-8b")
    assert "llama-3.1-8b" in (error.hint or "")


def test_a_shared_prefix_is_part_of_the_prompt() -> None:
    assert "longer than the prompt" in str(refusal(shared_prefix_tokens=2000, prompt_tokens=1000))


def test_every_setting_says_where_its_value_comes_from() -> None:
    inputs = plan("llama-3.1-8b", gpu="h100-sxm", tensor_parallel_size=2).inputs
    settings = set(inputs) - {"model", "gpu", "defaults", "weights_format", "engine", "engine_version"}
    assert settings - set(inputs["defaults"]) == {"tensor_parallel_size"}
    assert all(inputs["defaults"].values())


def test_fitting_the_length_to_the_memory() -> None:
    found = plan("llama-3.1-8b", max_model_len=-1, kv_cache_memory_bytes=10**10)
    # vLLM 0.33.0 fits 76,272 tokens into 10^10 bytes and prints 76,288: one block is the null block
    assert found.inputs["max_model_len"] == 76_272
    assert found.capacity is not None
    assert found.capacity.engine_reported_tokens == 76_288
    assert found.verdict.fits


def test_an_exact_fit_still_needs_the_null_block() -> None:
    need = 512 * 2_097_152
    assert not plan("llama-3.1-8b", max_model_len=8192, kv_cache_memory_bytes=need).verdict.fits
    assert plan("llama-3.1-8b", max_model_len=8192, kv_cache_memory_bytes=need + 2_097_152).verdict.fits


def test_shared_prefix_is_stored_once() -> None:
    found = plan("llama-3.1-8b", concurrency=11, prompt_tokens=1024, shared_prefix_tokens=1000)
    assert found.kv.shared_prefix is not None
    assert found.kv.shared_prefix.tokens_shared == 1000 // 16 * 16
    assert found.kv.shared_prefix.bytes_saved == 10 * 992 * 131_072


def test_sharing_lets_more_requests_hold() -> None:
    # 80 blocks a request of 1,280 tokens; 62 of them shared
    budget = 2_097_152 * (62 + 10 * 18 + 1)
    settings = dict(max_model_len=1280, concurrency=10, kv_cache_memory_bytes=budget)
    assert plan("llama-3.1-8b", **settings, shared_prefix_tokens=1000).verdict.fits
    assert not plan("llama-3.1-8b", **settings).verdict.fits
    assert not plan("llama-3.1-8b", **{**settings, "concurrency": 11}, shared_prefix_tokens=1000).verdict.fits


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_advice_works_when_followed(gpus: int) -> None:
    settings = dict(gpu="h100-sxm", tensor_parallel_size=gpus, max_model_len=131_072, concurrency=4)
    found = plan("llama-3.1-70b", **settings)
    if found.verdict.fits:
        return
    assert found.verdict.hints
    for hint in found.verdict.hints:
        name = hint.flag.removeprefix("--").replace("-", "_")
        value = hint.value if name == "kv_cache_dtype" else float(hint.value) if "." in hint.value else int(hint.value)
        again = plan("llama-3.1-70b", **{**settings, name: value})
        assert again.verdict.fits or "it starts" in hint.effect
        assert again.capacity is not None
        assert again.capacity.max_concurrency >= 1


def test_a_request_over_the_limit_does_not_fit_and_says_what_would() -> None:
    given: dict[str, Any] = {"gpu": "h100-sxm", "max_model_len": 1000, "prompt_tokens": 1024}
    verdict = plan("llama-3.1-8b", **given).verdict
    assert verdict.fits is False
    assert verdict.binding is None
    assert "1,280 tokens" in verdict.reason
    hints = {hint.flag: int(hint.value) for hint in verdict.hints}
    assert hints == {"--max-model-len": 1280, "--prompt-tokens": 744}
    for flag, value in hints.items():
        assert plan("llama-3.1-8b", **given | {flag[2:].replace("-", "_"): value}).verdict.fits


@pytest.mark.parametrize(
    ("given", "prompt", "output", "cut"),
    [
        ({}, 800, 200, {"prompt_tokens", "output_tokens"}), ({"prompt_tokens": 900}, 900, 100, {"output_tokens"}),
        ({"output_tokens": 300}, 700, 300, {"prompt_tokens"}), ({"prompt_tokens": 700}, 700, 256, set()),
        ({"prompt_tokens": 1000}, 1000, 256, set()), ({"prompt_tokens": 1000, "output_tokens": 9}, 1000, 9, set()),
    ],
)  # fmt: skip
def test_a_workload_that_nobody_gave_is_cut_to_the_limit(
    given: dict[str, Any], prompt: int, output: int, cut: set[str]
) -> None:
    found = plan("llama-3.1-8b", gpu="h100-sxm", max_model_len=1000, **given)
    assert (found.inputs["prompt_tokens"], found.inputs["output_tokens"]) == (prompt, output)
    assert {k for k, v in found.inputs["defaults"].items() if v.endswith("cut to max_model_len")} == cut
    assert found.verdict.fits is (prompt + output <= 1000)


def test_no_advice_spreads_a_layer_over_hosts() -> None:
    hints = {hint.flag: hint.value for hint in plan("llama-3.1-405b", gpu="h100-sxm").verdict.hints}
    assert hints["--tensor-parallel-size"].split()[0] == "8"
    assert "--pipeline-parallel-size" in hints["--tensor-parallel-size"]
    slow = plan("llama-3.1-405b", gpu="h200-sxm", tensor_parallel_size=8, tpot=0.002)
    assert slow.serving is not None
    assert slow.serving.targets_hold is False
    assert "--tensor-parallel-size" not in {hint.flag for hint in slow.verdict.hints}
