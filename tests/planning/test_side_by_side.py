"""Several engines and several variants beside each other: who answers, what is left out, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines import distinct, get_engine
from kvplan.errors import InputError, KvplanError
from kvplan.planning.compare import FIGURES, MAX_VARIANTS, Comparison, compare
from kvplan.planning.side_by_side import Refused, SideBySide, engine_names, nothing_planned, side_by_side
from kvplan.planning.sweep import Base
from kvplan.planning.sweep_axes import Axis

MODEL, GPU = "llama-3.1-8b", "h100-sxm"


def beside(*names: str, gpu: str | None = GPU, **given: Any) -> SideBySide:
    return side_by_side(load_model(MODEL), load_gpu(gpu) if gpu else None, list(names), given)


def builds(count: int) -> list[str]:
    return [f"llama.cpp@b{4000 + n}" for n in range(count)]


def test_names_of_engines_are_each_there_once_in_the_order_typed() -> None:
    assert engine_names("all") == engine_names(" ALL ") == distinct()
    assert engine_names("sglang, vllm,sglang,vllm@0.11.0") == ["sglang", "vllm", "vllm@0.11.0"]
    assert engine_names(",".join(builds(32))) == builds(32)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "has an empty name", "--engine vllm,sglang, or --engine all"),
        ("vllm,", "has an empty name", "--engine vllm,sglang, or --engine all"),
        (",".join(builds(33)), "more than 32 engines", "--engine vllm,sglang, or --engine all"),
        (
            "sglang,All@1", "all is every engine, and stands alone",
            "type --engine all, or name those you want: --engine vllm,sglang",
        ),
        ("vllm,no-such", "unknown engine 'no-such'", None),
    ],
)  # fmt: skip
def test_names_that_are_refused(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(KvplanError) as refused:
        engine_names(text)
    assert refused.value.message.startswith(message)
    assert hint is None or (refused.value.where, refused.value.hint) == ("--engine", hint)


def test_each_engine_plans_as_alone_and_names_what_it_has_not() -> None:
    """llama.cpp deals whole layers over as many GPUs, and has no blocks."""
    given = {"tensor_parallel_size": 2, "data_parallel_size": 2, "block_size": 32, "max_model_len": 4096}
    found = beside("vllm", "llama.cpp", **given)
    assert found.refused == () == found.changes
    assert found.left_out == {"llama.cpp": ("--block-size", "--tensor-parallel-size")}
    alone = (
        plan(MODEL, gpu=GPU, engine="vllm", **given),
        plan(MODEL, gpu=GPU, engine="llama.cpp", gpus=4, data_parallel_size=2, max_model_len=4096),
    )
    assert [each.to_dict() for each in found.plans] == [each.to_dict() for each in alone]
    plain = found.to_dict()
    assert list(plain) == ["schema", "plans", "refused", "left_out", "changes"]
    assert plain["plans"] == [each.to_dict() for each in alone]
    assert plain["schema"] == "kvplan.plans/1"


@pytest.mark.parametrize(
    ("given", "gpus", "left"),
    [
        ({}, 1, ()),
        ({"tensor_parallel_size": 1, "pipeline_parallel_size": 2}, 2, None),
        ({"pipeline_parallel_size": 3}, 3, None),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, 4, ("--pipeline-parallel-size", "--tensor-par")),
        ({"tensor_parallel_size": 3}, 3, ("--tensor-par",)),
        ({"tensor_parallel_size": 2, "gpus": 5}, 5, ("--tensor-par",)),
    ],
)  # fmt: skip
def test_layers_are_dealt_over_as_many_gpus(given: dict[str, int], gpus: int, left: tuple[str, ...] | None) -> None:
    found = beside("llama.cpp", max_model_len=4096, **given)
    assert [each.inputs["gpus"] for each in found.plans] == [gpus]
    if left is not None:
        named = found.left_out.get("llama.cpp", ())
        assert len(named) == len(left)
        assert all(flag.startswith(start) for flag, start in zip(named, left, strict=True))


def test_a_comparison_holds_where_one_engine_does() -> None:
    fits = {"max_model_len": 4096}
    assert beside("vllm", "mlx", **fits).status == 0
    assert beside("vllm", gpu=None, **fits).status == 0
    big = {"concurrency": 5000, "prompt_tokens": 3000, **fits}
    assert beside("vllm", **big).status == 1
    refused = beside("sglang", max_model_len=10**9)
    assert (refused.status, refused.plans, len(refused.refused)) == (2, (), 1)
    said = refused.refused[0]
    assert said.message.startswith("--max-model-len: SGLang ")
    assert said.hint is not None
    assert said.hint.startswith("type --max-model-len 131072")
    # a target that is missed is no better than memory that is too small
    assert beside("vllm", tpot=1e-4, **fits).status == 1
    some = beside("sglang", "mlx", max_model_len=10**9)
    assert ([p.inputs["engine"] for p in some.plans], [r.engine for r in some.refused]) == (["mlx"], ["sglang"])


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_changes_between_neighbouring_versions() -> None:
    found = beside("vllm@0.20.0", "sglang", "vllm@0.11.0", "vllm@0.33.0", max_model_len=4096)
    assert [(each.engine, each.older, each.newer) for each in found.changes] == [
        ("vllm", "0.11.0", "0.20.0"), ("vllm", "0.20.0", "0.33.0"),
    ]  # fmt: skip
    every = get_engine("vllm@0.33.0").changes()
    for each in found.changes:
        low, high = numbers(each.older), numbers(each.newer)
        assert each.changes == tuple(c for c in every if low < numbers(c.since) <= high)
        assert each.changes[-1].since == each.newer or each.newer == "0.33.0"
    assert not beside("vllm@0.20.0", "vllm@0.20.0", max_model_len=4096).changes
    assert beside("vllm@0.12.0", "vllm@0.11.0", max_model_len=4096).changes[0].older == "0.11.0"


def test_the_one_error_of_engines_that_all_refuse() -> None:
    def error(*refused: Refused) -> InputError:
        return nothing_planned(SideBySide("", (), refused, {}, ()))

    same = error(Refused("a", "too long", "shorter"), Refused("b", "too long", None))
    assert (same.message, same.hint) == ("too long", "shorter")
    apart = error(Refused("a", "too long", "shorter"), Refused("b", "no kernels", None))
    assert (apart.message, apart.hint) == ("none of 2 engines can plan this; a: too long", "shorter")
    silent = error(Refused("b", "no kernels", None), Refused("a", "too long", "shorter"))
    assert silent.hint == "--engine b says more"


# ---- variants ----


def variants(*axes: Axis, **given: Any) -> Comparison:
    def lookup(values: Mapping[str, Any]) -> Base:
        return Base(load_model(MODEL), load_gpu(GPU), "vllm", {"max_model_len": 8192, **given, **values})

    return compare(lookup, axes)


def test_variants_are_plans_and_their_requests_are_held_to_the_first() -> None:
    found = variants(Axis("kv_cache_dtype", [None, "fp8"]), Axis("tensor_parallel_size", [1, 3, 2]))
    assert found.schema == "kvplan.compare/1"
    assert found.axes == {"kv_cache_dtype": ["default", "fp8"], "tensor_parallel_size": [1, 3, 2]}
    assert found.figures == FIGURES
    assert [row["ratio"] for row in found.rows] == [1.0, None, 1.0, 0.5, None, 0.5]
    assert [row["refused"] is None for row in found.rows] == [True, False, True] * 2
    row, made = found.rows[5], plan(MODEL, gpu=GPU, max_model_len=8192, tensor_parallel_size=2, kv_cache_dtype="fp8")
    assert made.capacity is not None
    assert made.decode is not None
    assert row["kv.bytes_per_1k_tokens"] == 1000 * made.kv.bytes_per_token
    assert row["kv.bytes_per_request"] == 1280 * made.kv.bytes_per_token
    assert row["kv.bytes_per_request_per_gpu"] == 1280 * made.kv.bytes_per_token // 2
    assert row["capacity.max_concurrency"] == made.capacity.max_concurrency
    assert row["decode.tokens_per_second_per_request"] == pytest.approx(made.decode.tokens_per_second_per_request)
    assert row["verdict.fits"] is True
    plain = found.to_dict()
    assert (plain["figures"], plain["rows"]) == (list(FIGURES), list(found.rows))
    assert list(plain) == ["schema", "axes", "figures", "rows"]


def test_the_first_that_has_a_size_is_the_measure() -> None:
    rows = variants(Axis("tensor_parallel_size", [3, 2]), Axis("kv_cache_dtype", ["fp8", None])).rows
    assert [row["ratio"] for row in rows] == [None, None, 1.0, 2.0]


def test_too_many_variants_and_none_that_is_legal() -> None:
    assert MAX_VARIANTS == 64
    assert len(variants(Axis("concurrency", list(range(1, 65)))).rows) == 64
    with pytest.raises(InputError, match=r"^--vary: 65 variants are too many to stand side by side") as many:
        variants(Axis("concurrency", list(range(1, 66))))
    assert many.value.hint == "at most 64, or use kvplan sweep"
    with pytest.raises(InputError, match=r"every variant is refused; the first: .* 3") as none:
        variants(Axis("tensor_parallel_size", [3, 5]))
    assert none.value.hint == "vary within what is legal"


def test_a_plan_holds_unless_memory_or_a_target_says_otherwise() -> None:
    made = plan(MODEL, gpu=GPU, max_model_len=4096)
    for fits, targets, holds in (
        (None, None, True), (True, None, True), (False, None, False), (True, False, False), (True, True, True),
        (None, False, False),
    ):  # fmt: skip
        serving: Any = SimpleNamespace(targets_hold=targets)
        assert made._replace(verdict=made.verdict._replace(fits=fits), serving=serving).holds is holds
    assert made._replace(verdict=made.verdict._replace(fits=False)).holds is False
