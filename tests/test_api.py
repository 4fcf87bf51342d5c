"""The Python front door: what the command line answers, and every error one of kvplan's."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.api import AS_TEXT
from kvplan.cli import flags
from kvplan.errors import InputError, KvplanError
from kvplan.spec.gpu import GpuSpec
from kvplan.spec.model import ModelSpec
from kvplan.units import GIB

LOG = Path(__file__).parent / "data/logs"
LINE = "vllm serve Qwen/Qwen3-32B --max-model-len 8192"


@pytest.mark.parametrize("gpu", ["l40s", load_gpu("l40s")], ids=["name", "spec"])
@pytest.mark.parametrize("model", ["qwen3-32b", LINE, load_model("qwen3-32b")], ids=["name", "line", "spec"])
def test_memory_and_bandwidth_replace_those_of_the_gpu_that_is_named(model: Any, gpu: Any) -> None:
    found = plan(model, gpu=gpu, gpu_memory=80 * GIB, gpu_bandwidth=10**12, max_model_len=8192)
    assert found.memory is not None
    assert (found.memory[0].gpu, found.memory[0].total_bytes) == ("l40s", 80 * GIB)
    expected = replace(load_gpu("l40s"), torch_total_bytes=80 * GIB, bandwidth_bytes_per_second=10**12)
    assert found.decode == plan(model, gpu=expected, max_model_len=8192).decode
    assert found.decode != plan(model, gpu="l40s", gpu_memory=80 * GIB, max_model_len=8192).decode


def test_a_spec_and_its_name_give_the_same_plan() -> None:
    given = {"gpu": "l40s", "max_model_len": 8192, "gpu_memory": "80GiB"}
    assert plan(load_model("qwen3-32b"), **given).to_dict() == plan("qwen3-32b", **given).to_dict()


@pytest.mark.parametrize("model", ["qwen3-32b", LINE, load_model("qwen3-32b")], ids=["name", "line", "spec"])
def test_one_plan_is_of_one_engine(model: Any) -> None:
    for engine in ("vllm@0.20.0,vllm@0.33.0", "vllm,sglang"):
        with pytest.raises(InputError, match="several engines"):
            plan(model, gpu="l40s", engine=engine)


def test_text_with_a_unit_is_read_as_on_the_command_line() -> None:
    words = {"gpu_memory": "80GiB", "gpu_bandwidth": "1TB/s", "max_model_len": 8192, "tpot": "40ms"}
    numbers = {"gpu_memory": 80 * GIB, "gpu_bandwidth": 10**12, "max_model_len": 8192, "tpot": 0.04}
    assert plan("qwen3-32b", gpu="l40s", **words).to_dict() == plan("qwen3-32b", gpu="l40s", **numbers).to_dict()
    assert {o.setting: o.kind for o in (*flags.PLAN, *flags.SERVICE) if o.setting in AS_TEXT} == AS_TEXT
    with pytest.raises(InputError, match="--gpu-memory") as error:
        plan("qwen3-32b", gpu_memory="80G")
    assert "80GiB" in str(error.value.hint)


ODD: tuple[Any, ...] = (3, "x", [], {}, 1.5, True, -1, b"x", (1, 2), float("nan"), object())


@pytest.mark.parametrize("name", sorted({o.setting for o in (*flags.PLAN, *flags.SERVICE)} - {"hub"}))
def test_no_value_of_any_setting_gets_out_as_another_error(name: str) -> None:
    for value in ODD:
        with suppress(KvplanError):
            plan("qwen3-32b", **{"gpu": "l40s", name: value})


def test_a_start_may_come_from_a_log() -> None:
    log = LOG / "vllm-0.10.2-qwen3-next-tp2.log"
    found = plan(from_log=log)
    assert found.model.id == plan("qwen3-next-80b-a3b", from_log=str(log)).model.id == "qwen3-next-80b-a3b"
    with pytest.raises(InputError, match="from_log"):
        plan(load_model("qwen3-32b"), from_log=str(log))
    with pytest.raises(InputError, match="ModelSpec"):
        plan()


@pytest.mark.parametrize(
    ("short", "name"), [("tp", "tensor_parallel_size"), ("pp", "pipeline_parallel_size"), ("dp", "data_parallel_size")]
)
def test_short_names_are_answered_with_the_long_ones(short: str, name: str) -> None:
    with pytest.raises(KvplanError) as error:
        plan("qwen3-32b", **{short: 2})
    assert error.value.hint == f"it is {name} here"


@dataclass(frozen=True, kw_only=True, repr=False)
class MyModel(ModelSpec):
    """Somebody's own."""


@dataclass(frozen=True, kw_only=True, repr=False)
class MyGpu(GpuSpec):
    """Somebody's own."""


def copied(cls: Any, spec: Any) -> Any:
    return cls(**{field.name: getattr(spec, field.name) for field in fields(cls) if field.init})


def test_subclasses_of_specs_are_specs() -> None:
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    own = plan(copied(MyModel, model), gpu=copied(MyGpu, gpu))
    assert own.capacity == plan(model, gpu=gpu).capacity


@pytest.mark.parametrize("model", [None, 3, b"llama-3.1-8b", ["llama-3.1-8b"]])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(InputError, match="is no ModelSpec"):
        plan(model)


@pytest.mark.parametrize("gpu", [3, b"h100-sxm", {"id": "h100"}])
def test_what_is_no_gpu(gpu: Any) -> None:
    with pytest.raises(InputError, match="is no GpuSpec"):
        plan("llama-3.1-8b", gpu=gpu)
