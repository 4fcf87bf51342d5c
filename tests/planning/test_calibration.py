"""Measured rates in place of stated ones: what the file may say, and what it changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvplan import plan
from kvplan.errors import InputError, KvplanError, SpecError
from kvplan.planning.calibration import SCHEMA, from_data, load_calibration
from kvplan.planning.plan import Plan


def figure(value: float, spread: float = 0.01) -> dict[str, float]:
    return {"value": value, "low": value * (1 - spread), "high": value * (1 + spread), "samples": 20}


def line(rate: float, seconds: float) -> dict[str, Any]:
    return {"bytes_per_second": figure(rate), "latency_seconds": figure(seconds), "worst_miss": 0.04}


def calibration(**changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "date": "2026-11-30",
        "device": {"name": "NVIDIA H200", "gpu": "h200-sxm", "driver": "580.159"},
        "software": {"kvplan": "0.1", "torch": "2.11.0+cu130", "triton": "3.6.0"},
        "read_bytes_per_second": figure(4.6e12),
        "matmul_flops": {"16": figure(770e12), "fp8": figure(1450e12)},
        "linear": {"16": line(4.6e12, 5e-6), "fp8": line(4.6e12, 5e-6)},
        "attention": {"16": line(4.44e12, 7.1e-6), "8": line(4.15e12, 6.4e-6)},
        "layer_seconds": figure(13e-6),
    }
    return {k: v for k, v in {**found, **changed}.items() if v is not None}


def written(folder: Path, data: Any) -> str:
    path = folder / "calibration.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return str(path)


def planned(path: str | None, **given: Any) -> Plan:
    settings = {"gpu": "h200-sxm", "engine": "generic", "max_model_len": 8192, **given}
    return plan("llama-3.1-8b", **settings, **({"calibration": path} if path else {}))


def test_the_rates_of_the_file_are_used(tmp_path: Path) -> None:
    slow = calibration(linear={"16": line(2.3e12, 10e-6)}, attention={"16": line(2.22e12, 14.2e-6)}, layer_seconds=figure(26e-6))  # fmt: skip  # noqa: E501
    before, after = planned(None).decode, planned(written(tmp_path, slow)).decode
    assert before is not None
    assert after is not None
    assert after.parts.memory == pytest.approx(15_009_849_344 / 2.3e12 + 1152 * 131_072 / 2.22e12)
    assert after.parts.latency == pytest.approx(before.parts.latency * 2, rel=0.02)
    assert "calibration of NVIDIA H200, 2026-11-30" in after.source
    assert planned(written(tmp_path, slow)).inputs["calibration"].startswith("calibration of NVIDIA H200")


FALCON = {"id": "falcon-7b", "query_heads": 71, "kv_heads": 1, "head_dim": 64, "head_dim_v": 64}


def test_lines_of_another_model_are_said_and_used(tmp_path: Path) -> None:
    path = written(tmp_path, calibration(model=FALCON))
    said = [w for w in planned(path).warnings if "falcon-7b" in w]
    assert said == [
        "--calibration: its lines of linear and attention layers were measured on falcon-7b, and belong to the shapes "
        "of that model: llama-3.1-8b may be faster or slower"
    ]
    unnamed = planned(written(tmp_path, calibration()))
    assert unnamed.decode == planned(written(tmp_path, calibration(model=FALCON))).decode


@pytest.mark.parametrize("name", ["llama-3.1-8b", "Meta-Llama/Llama-3.1-8B"])
def test_the_models_own_lines_are_not_remarked_on(tmp_path: Path, name: str) -> None:
    assert not [w for w in planned(written(tmp_path, calibration(model={"id": name}))).warnings if "--calibration" in w]


def test_without_lines_it_is_no_matter_which_model_was_measured(tmp_path: Path) -> None:
    bare = calibration(model=FALCON, linear=None, attention=None)
    assert not [w for w in planned(written(tmp_path, bare)).warnings if "--calibration" in w]


@pytest.mark.parametrize("wrong", [{}, {"id": ""}, {"id": "x", "query_heads": 0}, {"id": "x", "layers": 3}])
def test_a_model_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="model"):
        from_data(calibration(model=wrong))


def test_matrix_rates_move_prefill(tmp_path: Path) -> None:
    halved = calibration(matmul_flops={"16": figure(385e12)})
    before, after = planned(None).prefill, planned(written(tmp_path, halved)).prefill
    assert before is not None
    assert after is not None
    assert after.seconds / before.seconds == pytest.approx(2, rel=0.1)


def test_bounds_narrow_to_what_the_engine_leaves_open(tmp_path: Path) -> None:
    before, after = planned(None).decode, planned(written(tmp_path, calibration())).decode
    assert before is not None
    assert after is not None
    assert after.high - after.low < (before.high - before.low) * 0.6
    wide = calibration(read_bytes_per_second={**figure(4.6e12), "low": 2.3e12})
    assert from_data(wide).bounds(0.9, 1.1) == (0.5, 1.5)


def test_samples_of_many_times_a_figure_leave_no_bound_at_or_below_zero(tmp_path: Path) -> None:
    wild = calibration(matmul_flops={"16": {"value": 1e14, "low": 6e13, "high": 5.3e14}})
    made = planned(written(tmp_path, wild))
    assert made.decode is not None
    assert made.prefill is not None
    assert from_data(wild).bounds(0.9, 1.1) == (pytest.approx(0.6), pytest.approx(5.3))
    assert 0 < made.decode.low < made.decode.tokens_per_second < made.decode.high
    assert 0 < made.prefill.low_seconds < made.prefill.seconds < made.prefill.high_seconds


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("kvplan.validation/1", "it is a receipt: give the file of --save"),
        ("kvplan.calibration/2", "kvplan.calibration/2, of another kvplan"),
        ("other/1", '"schema": "kvplan.calibration/1"'),
    ],
)
def test_another_file_is_named(schema: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_data({**calibration(), "schema": schema}, "some.json")
    assert says in str(caught.value.hint)


def test_what_the_file_leaves_out_stays_as_stated(tmp_path: Path) -> None:
    bare = calibration(matmul_flops=None, linear=None, attention=None, layer_seconds=None)
    before, after = planned(None), planned(written(tmp_path, bare))
    assert before.decode is not None
    assert after.decode is not None
    assert after.decode.parts.latency == before.decode.parts.latency
    assert after.decode.parts.memory == pytest.approx(before.decode.parts.memory, rel=0.01)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("{", "not JSON"),
        ("[]", "is no kvplan.calibration/1"),
        ({"schema": "kvplan.calibration/2"}, "is no kvplan.calibration/1"),
        (calibration(date="yesterday"), "date"),
        (calibration(surprise=1), "surprise"),
        (calibration(read_bytes_per_second=figure(-1.0)), "read_bytes_per_second"),
        (calibration(read_bytes_per_second=float("nan")), "read_bytes_per_second"),
        (calibration(read_bytes_per_second={"value": 3, "low": 4, "high": 5}), "not in order"),
        (calibration(matmul_flops={"bf16": figure(1.0)}), "matmul_flops"),
        (calibration(linear={"16": {**line(1e12, 1e-6), "worst_miss": 1.5}}), "worst_miss"),
        (calibration(read_bytes_per_second=None, linear=None), "nothing says how fast memory is read"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, data: Any, says: str) -> None:
    with pytest.raises(KvplanError) as refusal:
        load_calibration(written(tmp_path, data))
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.hint


def test_a_file_of_another_gpu_or_none_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, calibration())
    for given, says in (({"gpu": "h100-sxm"}, "h200-sxm, not on h100-sxm"), ({"gpu": None}, "--calibration")):
        with pytest.raises(KvplanError, match=says):
            planned(path, **given)
    with pytest.raises(KvplanError, match="cannot read"):
        planned(str(tmp_path / "missing.json"))


def test_the_documented_file_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "speed.md").read_text(encoding="utf-8")
    shown = page.partition("```json\n")[2].partition("```")[0]
    found = load_calibration(written(tmp_path, shown), "h200-sxm")
    assert (found.read_bandwidth, found.attention["16"].seconds) == (4.6e12, 7.1e-6)
    fields = set(json.loads(shown)) | {"linear", "layer_seconds"}
    assert all(f"| `{name}` |" in page for name in fields)


def test_a_file_without_an_id_is_of_the_gpu_that_its_driver_names(tmp_path: Path) -> None:
    path = written(tmp_path, calibration(device={"name": "NVIDIA H200", "driver": "580.159"}))
    assert planned(path).inputs["calibration"].startswith("calibration of NVIDIA H200")
    with pytest.raises(KvplanError, match="measured on h200-sxm, not on h100-sxm"):
        planned(path, gpu="h100-sxm")
    unclear = written(tmp_path, calibration(device={"name": "NVIDIA A100", "driver": "580.159"}))
    with pytest.raises(KvplanError, match="does not say which GPU"):
        planned(unclear, gpu="a100-sxm4-80gb")
    unknown = written(tmp_path, calibration(device={"name": "Prototype 7", "driver": "1"}))
    with pytest.raises(KvplanError, match="Prototype 7, which is no GPU of the catalog, not on h100-sxm") as refused:
        planned(unknown, gpu="h100-sxm")
    assert refused.value.hint == 'write "gpu": "h100-sxm" into its device, if it was this one'
    named = written(tmp_path, calibration(device={"name": "Prototype 7", "gpu": "h100-sxm"}))
    assert planned(named, gpu="h100-sxm").decode is not None


def test_two_bandwidths_are_refused(tmp_path: Path) -> None:
    from kvplan.deployment import find_deployment

    path = written(tmp_path, calibration())
    with pytest.raises(KvplanError) as caught:
        find_deployment("llama-3.1-8b", {"gpu": "h200-sxm", "gpu_bandwidth": 10**12, "calibration": path})
    assert caught.value.where == "--gpu-bandwidth"


def test_fit_judges_the_measured_gpu_by_its_figures_and_the_others_by_stated_ones(tmp_path: Path) -> None:
    from kvplan import load_model
    from kvplan.planning.fit.ask import Ask
    from kvplan.planning.fit.search import fit
    from kvplan.planning.speed.profile import Lengths
    from kvplan.planning.workload_lengths import read_lengths

    slow = calibration(linear={"16": line(1.0e12, 20e-6)}, device={"name": "NVIDIA H200", "driver": "1"})
    path = written(tmp_path, slow)

    def times(**settings: Any) -> dict[str, float | None]:
        sizes = [read_lengths(text, "--prompt-tokens") for text in ("1024", "256")]
        ask = Ask(
            Lengths(1024, 256), *sizes, 1280, concurrency=1, gpus=("h200-sxm", "h100-sxm"), settings=settings,
            weights=("auto",), max_gpus=1,
        )  # fmt: skip
        return {row.gpu: row.tpot_seconds for row in fit(load_model("llama-3.1-8b"), ask).rows}

    stated, measured = times(), times(calibration=path)
    assert measured["h100-sxm"] == stated["h100-sxm"]
    assert measured["h200-sxm"] == planned(path, engine="vllm", max_model_len=1280).decode.seconds_per_step  # type: ignore[union-attr]


def test_a_pipe_that_nobody_writes_to_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"--calibration: cannot read .*: is not a regular file"):
        load_calibration(str(path))
