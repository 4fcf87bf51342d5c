"""What is said about a plan, a search or a log, where the figures behind the words can be worked by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.errors import InputError
from kvplan.planning.evaluate import mix_range, weights_term
from kvplan.planning.explain import explain
from kvplan.planning.fit.ask import Ask
from kvplan.planning.fit.search import fit
from kvplan.planning.log_base import measured_base
from kvplan.planning.speed.profile import Lengths
from kvplan.planning.weights import weight_format
from kvplan.planning.workload_advice import _most_running
from kvplan.planning.workload_lengths import Distribution
from kvplan.sources.logs import read_log
from kvplan.units import GIB


def test_gguf_weights_by_the_rule_are_within_four_per_cent() -> None:
    llama = load_model("llama-3.1-8b")
    ruled = weight_format(llama, "q4_k_m")
    assert mix_range(ruled.quantized) == (96, 104)
    found = weights_term(10_000, ruled)
    assert (found.bytes, found.low_bytes, found.high_bytes) == (10_000, 9600, 10_400)
    assert found.source.endswith("(the rule of the quantizer; converters differ)")
    exact = weights_term(10_000, weight_format(llama, "bf16"))
    assert (exact.bytes, exact.low_bytes, exact.high_bytes, exact.basis) == (10_000, 10_000, 10_000, "exact")


def test_the_nearest_miss_is_the_smallest() -> None:
    """405 B parameters in 16 bits are 4.5 GPUs of 180 GB and 34 of 24 GB: the verdict names the former."""
    ask = Ask(
        Lengths(1024, 256), *(Distribution(n, 0, n, str(n)) for n in (1024, 256)), 1280,
        gpus=("l4", "h100-sxm", "b200"),
        engines=("generic",), weights=("bf16",), max_gpus=1, request_rate=1.0,
    )  # fmt: skip
    found = fit(load_model("llama-3.1-405b"), ask)
    assert not found.rows
    assert not found.verdict.carries
    assert "; nearest: b200, " in found.verdict.reason


LOG = """INFO 10-20 09:12:01 [api_server.py:1896] vLLM API server version 0.11.0
INFO 10-20 09:12:01 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 32768, \
'gpu_memory_utilization': 0.9}
{weights}INFO 10-20 09:13:20 [gpu_worker.py:298] Available KV cache memory: 54.50 GiB
"""


def test_a_log_without_its_weights_is_completed_by_the_model(tmp_path: Path) -> None:
    """A smaller batch frees at most what is neither weights nor cache: without the line, the model's weights count."""
    sizes = []
    for weights in (
        "",
        "INFO 10-20 09:12:50 [gpu_model_runner.py:2653] Model loading took 16.2683 GiB and 8 seconds\n",
    ):
        path = tmp_path / f"{bool(weights)}.log"
        path.write_text(LOG.replace("{weights}", weights))
        base = measured_base(
            read_log(str(path)), name="x", model=None, gpu=load_gpu("h100-sxm"), engine=None,
            given={"max_num_seqs": 64, "max_num_batched_tokens": 64},
        ).found  # fmt: skip
        sizes.append(base.settings["kv_cache_memory_bytes"])
    whole = 0.9 * load_gpu("h100-sxm").device_bytes
    assert 54.5 * GIB < sizes[1] <= whole - 16.2683 * GIB + 1
    assert 54.5 * GIB < sizes[0] <= whole - 2 * load_model("qwen3-8b").parameters


@pytest.mark.parametrize(
    ("name", "anew", "once"),
    [
        ("llama-3.1-8b", "a step: O(n d^2 + n^2 d)", "a step: O(d^2 + n d)"),
        ("gemma-3-27b", "a step: O(n d^2 + n^2 d + n w d)", "a step: O(d^2 + n d + w d)"),
        ("rwkv-7-g1-7.2b", "a step: O(n d^2)", "a step: O(d^2)"),
        ("mistral-7b-v0.1", "a step: O(n d^2 + n w d)", "a step: O(d^2 + w d)"),
    ],
)
def test_how_steps_grow(name: str, anew: str, once: str) -> None:
    found = explain(load_model(name), {"max_model_len": 2048}, saved=True).no_cache
    assert found is not None
    assert (found.growth_without, found.growth_with) == (anew, once)


@pytest.mark.parametrize("most", [0, 1, 36, 37, 98, 99])
def test_the_most_running_requests_within_the_targets(most: int) -> None:
    attempts = SimpleNamespace(holds=lambda concurrency: concurrency <= most)
    assert _most_running(100, attempts) == most  # type: ignore[arg-type]


def test_replicas_share_a_rate() -> None:
    """Two replicas at ten requests a second are two at five: twice as many requests run."""
    given = dict(gpu="h200-sxm", engine="generic", max_model_len=4096, prompt_tokens=1000, output_tokens=200)
    one = plan("llama-3.1-8b", request_rate=20.0, **given)
    two = plan("llama-3.1-8b", request_rate=40.0, data_parallel_size=2, **given)
    assert one.decode is not None
    assert two.decode is not None
    assert one.decode.batch > 2
    assert two.decode.batch == one.decode.batch
    assert two.decode.tokens_per_second == pytest.approx(2 * one.decode.tokens_per_second)


def test_a_prompt_of_one_token_is_a_prompt() -> None:
    def asked(prompt: int) -> Ask:
        lengths = (Distribution(n, 0, n, str(n)) for n in (prompt, 16))
        return Ask(
            Lengths(prompt, 16), *lengths, prompt + 16, gpus=("h200-sxm",), engines=("generic",), weights=("bf16",),
            request_rate=1.0,
        )  # fmt: skip

    assert fit(load_model("llama-3.1-8b"), asked(1)).rows
    with pytest.raises(InputError, match="a request without a prompt"):
        fit(load_model("llama-3.1-8b"), asked(0))
