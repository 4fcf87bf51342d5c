"""``kvplan engines``, and plans under several engines."""

from __future__ import annotations

import json

import pytest

from kvplan.engines import ENGINES, distinct, get_engine
from kvplan.engines.vllm.versions import CHANGES

from .conftest import Run, one_line_error


def test_the_list_has_every_engine_once(run: Run) -> None:
    plain = json.loads(run("engines", "--json").out)
    assert plain["schema"] == "kvplan.engines/1"
    names = [engine["name"] for engine in plain["engines"]]
    assert names == distinct()
    known = {*names, *(alias for engine in plain["engines"] for alias in engine["aliases"])}
    assert known == set(ENGINES)
    for engine in plain["engines"]:
        assert engine["summary"]
        assert engine["policies"], engine["name"]
        assert engine["version"] in engine["versions"]


@pytest.mark.parametrize("name", distinct())
def test_changes_are_in_order(name: str) -> None:
    from kvplan.engines.versions import version_key

    keys = [version_key(change.since) for change in get_engine(name).changes()]
    assert keys == sorted(keys)


def test_one_engine(run: Run) -> None:
    done = run("engines", "vllm")
    assert done.status == 0
    for change in CHANGES.values():
        assert change.what in done.out
    one_line_error(run("engines", "vlm"))
    assert "is not known" in run("engines", "vllm@0.99.0").err


def test_all_engines_side_by_side(run: Run) -> None:
    done = run("plan", "llama-3.1-8b", "--gpu", "a100-sxm4-80gb", "--engine", "all", "--max-model-len", "32K", "--json")
    assert done.status == 0
    plain = json.loads(done.out)
    assert plain["schema"] == "kvplan.plans/1"
    assert [plan["inputs"]["engine"] for plan in plain["plans"]] == distinct()
    assert all(plan["schema"] == "kvplan.plan/1" for plan in plain["plans"])
    alone = json.loads(
        run(
            "plan", "llama-3.1-8b", "--gpu", "a100-sxm4-80gb", "--engine", "sglang", "--max-model-len", "32K", "--json"
        ).out
    )
    assert alone in plain["plans"]


def test_an_engine_that_refuses_has_its_reason(run: Run) -> None:
    done = run("plan", "whisper-large-v3", "--engine", "generic,sglang", "--gpu", "h100-sxm")
    assert done.status == 0
    assert "sglang: " in done.out
    assert "not modelled" in done.out


def test_flags_of_one_engine_are_left_out_for_others(run: Run) -> None:
    plain = json.loads(
        run("plan", "llama-3.1-8b", "--engine", "vllm,llama.cpp", "-c", "8192", "-np", "2", "--json").out
    )
    assert plain["left_out"] == {"vllm": ["--ctx-size", "--parallel"]}
    assert plain["plans"][1]["inputs"]["ctx_size"] == 8192


def test_engines_without_tensor_parallelism_deal_layers_over_as_many_gpus(run: Run) -> None:
    words = ("plan", "llama-3.1-70b", "--gpu", "h100-sxm", "--max-model-len", "8K", "--weights", "q8_0", "--json")
    plain = json.loads(run(*words, "-tp", "4", "--engine", "vllm,llama.cpp,ollama,exllamav3").out)
    assert plain["refused"] == []
    assert plain["left_out"] == {name: ["--tensor-parallel-size"] for name in ("llama.cpp", "ollama", "exllamav3")}
    dealt = next(made for made in plain["plans"] if made["inputs"]["engine"] == "llama.cpp")
    assert (
        dealt["inputs"]["layers_per_gpu"]
        == json.loads(run(*words, "--gpus", "4", "--engine", "llama.cpp").out)["inputs"]["layers_per_gpu"]
    )
    assert len(dealt["memory"]) == 4


def test_one_engine_named_twice(run: Run) -> None:
    done = run("plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine", "vllm,vllm")
    assert done.out.splitlines()[0].endswith("1 engine")


def test_two_versions_and_what_changed(run: Run) -> None:
    words = ("plan", "gemma-3-27b", "--gpu", "h100-sxm", "--engine", "vllm@0.33.0,vllm@0.20.0")
    plain = json.loads(run(*words, "--json").out)
    (between,) = plain["changes"]
    assert (between["older"], between["newer"]) == ("0.20.0", "0.33.0")
    said = {change["what"] for change in between["changes"]}
    assert CHANGES["in_flight_batches"].what in said
    assert CHANGES["tokens_from_concurrency"].what in said
    assert CHANGES["utilization_0_92"].what not in said
    assert "What changed between vllm 0.20.0 and 0.33.0" in run(*words).out


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("llama-3.1-8b", "--engine", "vllm,sglang"), 0),
        (("llama-3.1-8b", "--engine", "vllm,generic", "--gpu", "h100-sxm"), 0),
        (("llama-3.1-405b", "--engine", "vllm,generic", "--gpu", "rtx-4090"), 1),
        (("whisper-large-v3", "--engine", "sglang,tensorrt-llm"), 2),
    ],
)
def test_status(run: Run, words: tuple[str, ...], status: int) -> None:
    assert run("plan", *words).status == status


@pytest.mark.parametrize(
    "names", ["vllm,", ",", "vllm,,sglang", "vllm,nope", "vllm,sglang@x", ",".join(f"vllm@0.{i}" for i in range(40))]
)
def test_lists_that_are_none(run: Run, names: str) -> None:
    one_line_error(run("plan", "llama-3.1-8b", "--engine", names))
