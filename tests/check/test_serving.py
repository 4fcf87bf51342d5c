"""Traffic in rules: its figures have ends, its targets bind, and what cannot be served says so."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan import load_gpu, load_model
from kvplan.check.figures import Subject, Worked
from kvplan.check.metrics import find_metric
from kvplan.check.serving import FAST, SLOW, at

from .conftest import Write, findings, result


def worked(**given: Any) -> Worked:
    return Worked(Subject(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), "vllm", given))


@pytest.mark.parametrize("given", [
    {"concurrency": 1}, {"concurrency": 64, "prompt_tokens": 2048}, {"request_rate": 2.0},
    {"request_rate": 2.0, "tensor_parallel_size": 2, "data_parallel_size": 2},
])  # fmt: skip
def test_the_ends_of_serving_are_no_better_than_those_of_a_step_and_a_prompt(given: dict[str, Any]) -> None:
    found = worked(**given)
    for name, alone in (
        ("serving.tpot_seconds", "decode.seconds_per_step"),
        ("serving.ttft_seconds", "prefill.seconds"),
    ):
        low, middle, high = found.figure(find_metric(name)).range()
        assert low < middle < high
        figure = found.figure(find_metric(name))
        assert figure.pick("pessimistic", "<=", bool) == figure.pick("high", "<=", bool) == high
        assert figure.pick("pessimistic", ">=", bool) == figure.pick("low", "<=", bool) == low
        assert figure.pick("mid", "<=", bool) == middle
        bounds = found.figure(find_metric(alone)).range()
        if "concurrency" in given:
            assert high >= bounds[2] * (0.98 if alone.startswith("prefill") else 1 - 1e-9), alone


def test_alone_a_step_at_the_slow_end_takes_what_the_bound_of_decode_says() -> None:
    found = worked(concurrency=1, output_tokens=512)
    step = found.figure(find_metric("decode.seconds_per_step")).range()
    assert at(found, SLOW).tpot_seconds == pytest.approx(step[2], rel=0.02)
    assert at(found, FAST).tpot_seconds == pytest.approx(step[0], rel=0.02)


def test_a_rate_that_only_the_middle_carries_breaks_the_pessimistic_rule(write: Write) -> None:
    write("""
        workloads: {w: {prompt-tokens: 2K, output-tokens: 500, request-rate: 6}}
        rules:
          - serving.ttft_seconds <= 300 ms
          - {rule: serving.ttft_seconds <= 300 ms, bound: mid}
          - {rule: serving.ttft_seconds <= 300 ms, bound: low}
          - {rule: serving.max_request_rate >= 6, bound: mid}
          - serving.max_request_rate >= 6
        deployments: {a: {model: llama-3.1-8b, gpu: h100-sxm, workloads: w}}
    """)
    found = findings(result())
    assert [f["pass"] for f in found] == [False, True, True, True, False]
    assert "has no value at worst (" in found[0]["message"]
    assert "6 requests come a second, more than the " in found[0]["message"]


def test_more_requests_than_are_carried_are_said(write: Write) -> None:
    write(
        """
        workloads: {w: {prompt-tokens: 2K, output-tokens: 500, request-rate: 30}}
        rules: [serving.ttft_seconds <= 300 ms, "{rule: serving.tpot_seconds <= 1 s, bound: mid}"]
        deployments: {a: {model: llama-3.1-8b, gpu: h100-sxm, workloads: w}}
    """.replace('"', "")
    )
    for found in findings(result()):
        assert not found["pass"]
        assert "30 requests come a second, more than the " in found["message"]
        assert "does not apply" not in found["message"]


def test_targets_bind_where_there_are_some_and_are_skipped_where_not(write: Write) -> None:
    write("""
        workloads:
          tight: {prompt-tokens: 2K, output-tokens: 500, request-rate: 1, tpot: 0.001}
          loose: {prompt-tokens: 2K, output-tokens: 500, request-rate: 1, ttft: 5}
        rules: [serving.targets_hold == true]
        deployments:
          a: {model: llama-3.1-8b, gpu: h100-sxm, workloads: [tight, loose]}
          b: {model: llama-3.1-8b, gpu: h100-sxm}
    """)
    checked = result()
    found = findings(checked)
    assert [(f["pass"], f["status"]) for f in found] == [(False, "broken"), (True, "held"), (True, "inapplicable")]
    assert "tpot" in found[0]["message"]
    assert checked["summary"]["inapplicable"] == 1
    assert not any("target for" in text for d in checked["deployments"] for text in d["warnings"])


def test_targets_that_no_rule_reads_are_a_warning(write: Write) -> None:
    write("""
        workloads: {chat: {request-rate: 1, ttft: 0.5, tpot: 0.05}}
        rules: [verdict.fits == true]
        deployments: {a: {model: llama-3.1-8b, gpu: h100-sxm, workloads: chat}}
    """)
    (deployment,) = result()["deployments"]
    assert any("target for ttft and tpot that no rule" in text for text in deployment["warnings"])


def test_what_does_not_start_is_a_warning_where_no_rule_asks(write: Write) -> None:
    for rules, warned in (
        ("capacity.kv_tokens >= 1000", True),  # which the pool of a start that is refused would hold
        ("decode.seconds_per_step <= 10 s", True),
        ("verdict.fits == true", False),
        ("verdict.binding == kv", False),
    ):
        write(f"deployments: {{a: {{model: qwen3-32b, gpu: h100-sxm, rules: ['{rules}']}}}}")
        checked = result()
        (deployment,) = checked["deployments"]
        said = [text for text in deployment["warnings"] if "does not fit" in text]
        assert bool(said) is warned, rules
        assert all("10.00 GiB of cache" in text and text.endswith("add verdict.fits == true") for text in said)
    write("deployments: {a: {model: llama-3.1-8b, gpu: h100-sxm, rules: ['capacity.kv_tokens >= 1000']}}")
    assert not any("does not fit" in text for d in result()["deployments"] for text in d["warnings"])


def test_a_workload_longer_than_the_limit_does_not_fit(write: Write) -> None:
    write("""
        rules: [verdict.fits == true]
        deployments:
          a: {model: llama-3.1-8b, gpu: h100-sxm, max-model-len: 4K, prompt-tokens: 8K}
    """)
    (found,) = findings(result())
    assert not found["pass"]
    assert "is longer than max_model_len 4,096" in found["message"]
    assert found["fix"] == "--max-model-len 8448"
