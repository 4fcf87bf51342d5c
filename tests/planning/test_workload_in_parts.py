"""What is said of targets that are missed, and the changes that are tried, with deployments that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines.base import Settings
from kvplan.errors import InputError, KvplanError
from kvplan.planning import workload, workload_advice
from kvplan.planning.workload import Target, Traffic, check_targets
from kvplan.planning.workload_advice import (
    _less_traffic,
    _more_replicas,
    _more_under_way,
    _rounded_down,
    _smaller,
    _wider,
    missed,
    seconds,
)

LLAMA, L4 = load_model("llama-3.1-8b"), load_gpu("l4")


class Attempts:
    """Holds where a function of the changes says so; keeps what was tried."""

    def __init__(self, good: Any) -> None:
        self.good, self.tried = good, list[Any]()

    def holds(self, **changes: Any) -> bool:
        self.tried.append(next(iter(changes.values())))
        return bool(self.good(**changes))


def traffic(rate: float | None = 5.0, splits: bool = True) -> Any:
    engine = SimpleNamespace(splits_tensors=splits, smaller_kv_formats=("fp8", "fp4"), smaller_weights=("fp8", "awq"))
    return SimpleNamespace(rate=rate, model=LLAMA, engine=engine)


def outcome(**changes: Any) -> Any:
    return SimpleNamespace(settings=Settings(engine="x", engine_version="", **changes))


def serving(**figures: Any) -> Any:
    return SimpleNamespace(**{"max_request_rate": None, "replicas_needed": None, "targets": (), **figures})


# ---- words ----


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (("request_rate", "--request-rate", 5.0, 3.456), "3.46 requests/s are carried, --request-rate asks for 5"),
        (("request_rate", "--request-rate", 5.0, 0.0), "not even a single request meets the targets"),
        (("request_rate", "--request-rate", 5.0, None), "not even a single request meets the targets"),
        (("concurrency", "--concurrency", 1000, 1234.56),
         "1,234.6 requests are in flight (Little's law), --concurrency allows 1,000"),
        (("ttft", "--ttft", 0.5, 1.25), "time to first token 1.25 s, --ttft asks for 500 ms"),
        (("ttft", "--ttft", 2.0, None), "time to first token grows without end, --ttft asks for 2 s"),
        (("tpot", "--tpot", 0.01, 0.0123), "time per output token 12.3 ms, --tpot asks for 10 ms"),
    ],
)  # fmt: skip
def test_a_target_that_is_missed(target: Any, said: str) -> None:
    assert missed(Target(*target, holds=False)) == said


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(1, 3, "1 s"), (0.9994, 3, "999 ms"), (1.2345, 3, "1.23 s"), (0.0314159, 4, "31.42 ms"), (0.0, 3, "0 ms")],
)
def test_seconds_in_words(value: float, digits: int, text: str) -> None:
    assert seconds(value, digits) == text
    assert seconds(1.23456) == "1.23 s"


@pytest.mark.parametrize("value", [5.0, 4.999, 0.123456, 9.996, 123.7, 99.96, 0.00012349, 1234.0, 1.0, 7.005])
def test_a_figure_of_three_digits_that_is_not_above(value: float) -> None:
    text = _rounded_down(value)
    assert value * (1 - 1.1e-2) < float(text) <= value
    assert len(text.replace(".", "").strip("0")) <= 3
    if float(f"{value:.3g}") <= value:
        assert float(text) == float(f"{value:.3g}")


# ---- changes ----


def test_less_traffic() -> None:
    hint = list(_less_traffic(traffic(), outcome(), serving(max_request_rate=3.456), Attempts(None)))
    assert [tuple(h) for h in hint] == [
        ("--request-rate", "3.45", "requests a second that this deployment carries within the targets")
    ]
    for none in (0.0, None):
        assert list(_less_traffic(traffic(), outcome(), serving(max_request_rate=none), Attempts(None))) == []
    running = Attempts(lambda concurrency: concurrency <= 6)
    (found,) = _less_traffic(traffic(None), outcome(concurrency=10), serving(), running)
    assert tuple(found) == ("--concurrency", "6", "the most running requests with which the targets hold")
    assert list(_less_traffic(traffic(None), outcome(concurrency=10), serving(), Attempts(lambda concurrency: 0))) == []


def test_more_requests_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def attempts(of: Any, _: Any) -> Attempts:
        asked.append(of)
        return Attempts(lambda concurrency: concurrency == 8)

    monkeypatch.setattr(workload_advice, "_Attempts", attempts)
    mine: Any = SimpleNamespace(at_most=lambda count: ("at most", count))

    def hints(*targets: Target) -> list[Any]:
        return [tuple(h) for h in _more_under_way(mine, outcome(), serving(targets=targets))]

    wrong = Target("concurrency", "--concurrency", 5, 7.2, False)
    assert hints(wrong) == [("--concurrency", "8", "requests under way at this rate (Little's law)")]
    assert asked == [("at most", 8)]
    assert hints(wrong._replace(predicted=8.0)) != []
    assert hints(wrong._replace(predicted=8.1)) == []
    assert hints(wrong._replace(holds=True)) == [] == hints(wrong._replace(predicted=None))
    assert hints(Target("ttft", "--ttft", 5, 7.2, False)) == []


@pytest.mark.parametrize(
    ("dp", "needed", "rate", "enough", "value", "tried"),
    [
        (1, None, None, 4, "4", [2, 3, 4]), (1, 3, 5.0, 1, "3", [3]), (2, 3, 5.0, 1, "5", [5]),
        (1, 1, 5.0, 3, "3", [2, 3]), (1, None, 5.0, 1, None, []), (4, None, None, 1, "5", [5]),
        (1, None, None, 11, "11", [2, 3, 4, 5, 6, 7, 8, 9, 11]),
        (254, None, None, 999, None, [255]), (255, None, None, 256, "256", [256]), (256, None, None, 1, None, []),
    ],
)  # fmt: skip
def test_more_replicas(dp: int, needed: int | None, rate: Any, enough: int, value: Any, tried: list[int]) -> None:
    """From what the rate takes upwards, an eighth more at a time."""
    attempts = Attempts(lambda data_parallel_size: data_parallel_size >= enough)
    figures = serving(replicas_needed=needed)
    found = list(_more_replicas(traffic(rate), outcome(data_parallel_size=dp), figures, attempts))  # type: ignore[arg-type]
    assert [h.value for h in found] == ([] if value is None else [value])
    assert all((h.flag, h.effect) == ("--data-parallel-size", "replicas that share the traffic") for h in found)
    assert attempts.tried == tried


def test_wider_layers() -> None:
    attempts = Attempts(lambda tensor_parallel_size: tensor_parallel_size >= 4)
    (found,) = _wider(traffic(), outcome(), attempts)  # type: ignore[arg-type]
    assert tuple(found) == (
        "--tensor-parallel-size", "4", "GPUs that share every layer, so that each step is shorter",
    )  # fmt: skip
    assert attempts.tried == [2, 4]
    for made, tp in ((traffic(splits=False), 1), (traffic(), 8)):
        attempts = Attempts(lambda tensor_parallel_size: True)
        assert list(_wider(made, outcome(tensor_parallel_size=tp), attempts)) == []  # type: ignore[arg-type]
        assert attempts.tried == []


def test_smaller_formats() -> None:
    def hints(good: Any, **settings: Any) -> list[Any]:
        return [tuple(h) for h in _smaller(traffic(), outcome(**settings), Attempts(good))]  # type: ignore[arg-type]

    cache = ("--kv-cache-dtype", "fp4", "a smaller cache is read faster, and more requests hold")
    weights = ("--weights", "awq", "a checkpoint in awq is read and multiplied faster")
    last = lambda **to: "fp4" in to.values() or "awq" in to.values()  # noqa: E731
    assert hints(last) == [cache, weights]
    assert hints(last, kv_cache_dtype="fp8") == [weights]
    assert hints(last, weights="fp8") == [cache]
    assert [h[1] for h in hints(lambda **to: True)] == ["fp8", "fp8"]
    assert hints(lambda **to: False) == []


# ---- traffic ----


def test_what_is_about_a_gpu() -> None:
    for given, flag in (
        ({"ttft": 1.0, "price": 2.0}, "--ttft"), ({"tpot": 1.0}, "--tpot"), ({"request_rate": 1.0}, "--request-rate"),
        ({"acceptance_rate": 0.5}, "--acceptance-rate"), ({"price": 2.0}, "--price"),
        ({"output_cv": 1.0}, "--prompt-cv"),
    ):  # fmt: skip
        with pytest.raises(InputError, match="is about a GPU, and none is named") as refused:
            Traffic(LLAMA, None, None, None, given)  # type: ignore[arg-type]
        assert (refused.value.where, refused.value.hint) == (flag, "add --gpu NAME")


def test_limits_of_one_replica() -> None:
    def limits(dp: int = 2, **given: Any) -> Any:
        made = Traffic(LLAMA, L4, None, None, given)  # type: ignore[arg-type]
        return tuple(made.limits(Settings(engine="x", engine_version="", data_parallel_size=dp)))

    assert limits(ttft=0.5, tpot=0.1) == (0.5, 0.1, None, None)
    assert limits(concurrency=9) == (None, None, None, None) == limits(request_rate=3.0)
    assert limits(concurrency=9, request_rate=3.0) == (None, None, None, 4.5)
    other = Traffic(LLAMA, L4, None, None, {"concurrency": 9, "request_rate": 3.0}).at_most(5)  # type: ignore[arg-type]
    assert (other.concurrency, other.rate) == (5, 3.0)


@pytest.mark.parametrize(
    ("rate", "concurrency", "ttft", "tpot", "allowed"),
    [
        (2.0, 9, 0.5, 0.02, 8), (2.0, 8, 0.5, 0.02, None), (0.01, 1, 0.5, 0.02, 1), (None, 9, 0.5, 0.02, None),
        (2.0, None, 0.5, 0.02, None), (2.0, 9, None, 0.02, None), (2.0, 9, 0.5, None, None),
        (1 / 4.48, 1, 0.5, 0.02, None),
    ],
)  # fmt: skip
def test_targets_that_contradict_each_other(rate: Any, concurrency: Any, ttft: Any, tpot: Any, allowed: Any) -> None:
    """0.5 s and 199 tokens of 20 ms are 4.48 s; an output of one token takes none of them."""
    settings = Settings(engine="x", engine_version="", output_tokens=200)
    if allowed is None:
        check_targets(settings, rate, concurrency, ttft, tpot)
        return
    with pytest.raises(InputError) as refused:
        check_targets(settings, rate, concurrency, ttft, tpot)
    assert refused.value.message == (
        f"{concurrency} requests in flight at {rate:g} a second last {concurrency / rate:.4g} s each (Little's law), "
        f"and --ttft 0.5 with --tpot 0.02 allows 4.48 s"
    )
    assert (refused.value.where, refused.value.hint) == (
        "--concurrency", f"leave it out, or at most --concurrency {allowed}",
    )  # fmt: skip
    for output in (0, 1):
        with pytest.raises(InputError, match=r"allows 0\.5 s"):
            check_targets(Settings(engine="x", engine_version="", output_tokens=output), 2.0, 2, 0.5, 9.0)


def test_speeds_that_nothing_says() -> None:
    given = {"gpu": "h100-sxm", "engine": "llama.cpp", "ctx_size": 4096, "n_gpu_layers": "8"}
    with pytest.raises(KvplanError, match="no speed is given for layers in host memory") as refused:
        plan("llama-3.1-8b", ttft=1.0, **given)
    assert (refused.value.where, refused.value.hint) == ("--ttft", "leave it out, or name another GPU")
    only = plan("llama-3.1-8b", price=2.0, **given)  # which does not depend on it
    assert only.cost is not None
    assert only.serving is not None
    assert (only.cost.usd_per_hour, only.cost.per_request, only.serving.ttft_seconds) == (2.0, None, None)
    assert only.serving.targets == ()
    assert only.serving.targets_hold is None
    assert only.serving.queueing == workload.LOOP


def test_a_plan_says_which_targets_hold() -> None:
    given = {"gpu": "h100-sxm", "max_model_len": 4096, "prompt_tokens": 1000, "output_tokens": 100}
    one, two = plan("llama-3.1-8b", ttft=5.0, **given), plan("llama-3.1-8b", ttft=5.0, tpot=1.0, **given)
    assert one.verdict.reason.endswith("; --ttft holds")
    assert two.verdict.reason.endswith("; --ttft, --tpot hold")
    wrong = plan("llama-3.1-8b", ttft=0.001, tpot=0.0001, **given).verdict
    assert wrong.fits is True
    assert wrong.reason.startswith("the memory fits; time to first token ")
    assert "; time per output token " in wrong.reason
    assert wrong.reason.endswith(", --tpot asks for 0.1 ms")


def test_a_price_alone_says_nothing_of_targets() -> None:
    fits, not_ = (plan("llama-3.1-70b", gpu="h200-sxm", price=2.0, max_model_len=2048, tensor_parallel_size=n)
                  for n in (2, 1))  # fmt: skip
    for made_ in (fits, not_):
        assert made_.serving is not None
        assert made_.serving.targets_hold is None
        assert "hold;" not in made_.verdict.reason
        assert not made_.verdict.reason.endswith((" hold", "; "))
    missed = plan("llama-3.1-70b", gpu="h200-sxm", ttft=2.0, max_model_len=2048)
    assert missed.verdict.fits is False
    assert missed.verdict.reason == not_.verdict.reason
