"""Advice, curves and prefixes at their edges, with deployments that fit where a test says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines.base import Settings, Stage
from kvplan.errors import InputError
from kvplan.planning import advice, calibration, curves, sweep, sweep_axes, workload_advice
from kvplan.planning.evaluate import mix_range
from kvplan.planning.prefix import running_limit
from kvplan.planning.speed import batching, decode
from kvplan.planning.speed.profile import Lengths, profile
from kvplan.planning.sweep import Base
from kvplan.planning.sweep_axes import Axis
from kvplan.spec.formats import format_names, get_format
from kvplan.spec.gguf_mix import mix_bounds

from .round_rates import ROUND, made
from .test_calibration import calibration as file_of
from .test_calibration import written
from .test_sweep import cells

LLAMA, GIB = load_model("llama-3.1-8b"), 2**30


# ---- more GPUs, and other changes ----


def outcome(binding: str | None = "weights", pool: Any = None, kv: Any = (GIB,), **given: Any) -> Any:
    known = {"gpus": "tp x pp x dp", "pipeline_parallel_size": "x"}
    defaults = {name: text for name, text in known.items() if name not in given}
    settings = Settings(engine="x", engine_version="", defaults=defaults, **given)
    stages = tuple(Stage(n, LLAMA, n == 0, n == 1, (n + 1) * GIB) for n in range(2))
    return SimpleNamespace(settings=settings, binding=binding, pool=pool, kv_bytes=kv, stages=stages, fits=False)


class Attempt:
    """An outcome that fits where a function of the changes says so."""

    def __init__(self, good: Any) -> None:
        self.good, self.tried = good, list[dict[str, Any]]()

    def __call__(self, **changes: Any) -> Any:
        self.tried.append(changes)
        sizes = {k: v for k, v in changes.items() if k in Settings.__dataclass_fields__}
        then = SimpleNamespace(number=0, weights_bytes=GIB // 2)
        settings = Settings(engine="x", engine_version="", **sizes)
        return SimpleNamespace(
            fits=bool(self.good(**changes)), settings=settings, stages=(then,), pool=None, kv_bytes=None
        )


def hints(advise: Any, of: Any, good: Any, **engine: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    own: Any = SimpleNamespace(**{"splits_tensors": True, "smaller_weights": ("fp8", "awq"), **engine})
    attempt = Attempt(good)
    return [tuple(hint) for hint in advise(LLAMA, own, of, attempt)], attempt.tried


def test_wider_layers_before_more_stages() -> None:
    found, tried = hints(advice._more_gpus, outcome(), lambda tensor_parallel_size, **_: tensor_parallel_size == 4)
    assert found == [("--tensor-parallel-size", "4", "fits on 4 GPUs (tp 4)")]
    assert [each["tensor_parallel_size"] for each in tried] == [2, 4]
    narrow, tried = hints(
        advice._more_gpus, outcome(tensor_parallel_size=8, pipeline_parallel_size=2, data_parallel_size=3, gpus=48),
        lambda tensor_parallel_size, **_: tensor_parallel_size == 1,
    )  # fmt: skip
    assert narrow == [("--tensor-parallel-size", "1 --gpus 6", "fits on 6 GPUs (tp 1)")]


@pytest.mark.parametrize("stages", [2, 8])
def test_stages_of_the_widest_layers(stages: int) -> None:
    def good(pipeline_parallel_size: int = 1, **_: Any) -> bool:
        return pipeline_parallel_size == stages

    found, tried = hints(advice._more_gpus, outcome(), good)
    value = f"8 --pipeline-parallel-size {stages}"
    assert found == [("--tensor-parallel-size", value, f"fits on {8 * stages} GPUs (tp 8, pp {stages})")]
    staged = [each["pipeline_parallel_size"] for each in tried if "pipeline_parallel_size" in each]
    assert staged == list(range(2, stages + 1))
    wide, _ = hints(advice._more_gpus, outcome(tensor_parallel_size=8, data_parallel_size=2), good)
    assert wide == [("--pipeline-parallel-size", f"{stages}", f"fits on {16 * stages} GPUs (tp 8, pp {stages})")]
    dealt, _ = hints(advice._more_gpus, outcome(), good, splits_tensors=False)
    assert dealt == [("--gpus", f"{stages}", f"fits on {stages} GPUs, whole layers on each")]
    typed, _ = hints(advice._more_gpus, outcome(pipeline_parallel_size=1), good, splits_tensors=False)
    assert typed == [
        ("--gpus", f"{stages} --pipeline-parallel-size {stages}", f"fits on {stages} GPUs, whole layers on each")
    ]


def test_no_more_stages_than_eight() -> None:
    found, tried = hints(advice._more_gpus, outcome(pipeline_parallel_size=2), lambda **_: False)
    assert found == []
    assert max(each.get("pipeline_parallel_size", 0) for each in tried) == 8 == advice.MAX_STAGES == advice.MAX_GPUS
    assert min(each["pipeline_parallel_size"] for each in tried if "pipeline_parallel_size" in each) == 3


def test_smaller_weights_where_the_weights_bind() -> None:
    def good(weights: str) -> bool:
        return weights == "awq"

    said = "a checkpoint in awq takes 0.50 GiB per GPU instead of 2.00 GiB"
    assert hints(advice._smaller_weights, outcome(), good)[0] == [("--weights", "awq", said)]
    assert hints(advice._smaller_weights, outcome("activations"), good)[0] != []
    assert hints(advice._smaller_weights, outcome("kv"), good)[0] == []
    assert hints(advice._smaller_weights, outcome(weights="fp8"), good)[0] == []
    assert hints(advice._smaller_weights, outcome(), lambda weights: False)[0] == []


def test_a_larger_share_of_the_device() -> None:
    own = {"settings": frozenset({"gpu_memory_utilization"}), "highest_utilization": 0.95}

    def good(gpu_memory_utilization: float) -> bool:
        return gpu_memory_utilization >= 0.901

    def at(share: float, **more: Any) -> list[Any]:
        return hints(advice._utilization, outcome(gpu_memory_utilization=share, **more), good, **own)[0]

    said = "the smallest share of the device with which it fits"
    assert at(0.9) == [("--gpu-memory-utilization", "0.901", said)] == at(0.949)
    assert at(0.95) == [] == at(0.9, kv_cache_memory_bytes=GIB)
    assert hints(advice._utilization, outcome(gpu_memory_utilization=0.9), good, settings=frozenset())[0] == []
    own["highest_utilization"] = 0.9
    assert at(0.5) == []
    own["highest_utilization"] = 0.901
    assert at(0.5) == [("--gpu-memory-utilization", "0.901", said)]


def test_fewer_layers_on_the_gpu() -> None:
    def good(n_gpu_layers: str) -> bool:
        return int(n_gpu_layers) <= 20

    own = {"settings": frozenset({"n_gpu_layers"})}
    said = "20 layers on the GPU, the others in host memory, which is slower"
    assert hints(advice._fewer_gpu_layers, outcome(), good, **own)[0] == [("--n-gpu-layers", "20", said)]
    used = outcome(extra={"n_gpu_layers_used": 20})
    assert hints(advice._fewer_gpu_layers, used, good, **own)[0][0][1] == "19"
    assert (
        hints(advice._fewer_gpu_layers, outcome(), lambda n_gpu_layers: int(n_gpu_layers) <= 32, **own)[0][0][1] == "32"
    )
    assert hints(advice._fewer_gpu_layers, outcome(), lambda n_gpu_layers: False, **own)[0] == []
    assert hints(advice._fewer_gpu_layers, outcome(), good, settings=frozenset())[0] == []


def test_fewer_sequences_where_states_limit_them() -> None:
    def at(most: int, refusal: str = "no", allowed: int | None = 5, asked: int | None = 100) -> list[Any]:
        pool = SimpleNamespace(refusal=refusal, max_num_seqs_allowed=allowed)
        of = outcome(pool=pool, max_num_seqs=asked)
        return hints(advice._fewer_sequences, of, lambda max_num_seqs: max_num_seqs <= most)[0]

    assert at(7) == [("--max-num-seqs", "7", "the most sequences for which the blocks hold a state each")]
    assert at(99)[0][1] == "99"
    assert at(0) == [] == at(7, refusal="") == at(7, allowed=None) == at(7, allowed=0) == at(7, asked=None)


def test_all_that_is_tried_for_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("_less_traffic", "_more_under_way", "_more_replicas", "_wider", "_smaller")
    for name in names:
        monkeypatch.setattr(workload_advice, name, lambda *_, said=name: iter((said,)))
    assert tuple(workload_advice.target_hints(None, None, None)) == names  # type: ignore[arg-type]


# ---- curves ----


def test_points_of_the_curves() -> None:
    gemma = load_model("gemma-3-27b")
    window = plan(gemma, engine="generic", max_model_len=8192).kv.groups
    assert {group.window for group in window} == {None, 1024}
    for length, knees, tokens in (
        (1024, [], [64, 128, 256, 512, 1024]), (1025, [(1024, 52)], [64, 128, 256, 512, 1024, 1025]),
        (64, [], [64]), (65, [], [64, 65]), (1, [], [1]),
    ):  # fmt: skip
        found = curves.curves(gemma, None, "generic", {"max_model_len": length, "prompt_tokens": 1, "output_tokens": 0})
        assert [tuple(knee) for knee in found.knees] == knees
        assert [at.tokens for at in found.lengths] == tokens
    assert found.max_num_seqs is None


@pytest.mark.parametrize(
    ("known", "top"),
    [([], 256), ([None, 0], 256), ([1], 4), ([3], 8), ([8, None, 5], 32), ([1 << 16], 1 << 16), ([1 << 17], 256)],
)
def test_batches_go_four_times_beyond_what_is_marked(known: list[int | None], top: int) -> None:
    found = curves._counts(known)
    marked = {n for n in known if n and n <= 1 << 16}
    assert found == sorted({1 << i for i in range(top.bit_length())} | marked)
    assert found[-1] == top


def test_limits_of_running_requests() -> None:
    def limit(most: int | None, **extra: Any) -> int | None:
        return running_limit(Settings(engine="x", engine_version="", max_num_seqs=most, extra=extra))

    assert (limit(8), limit(8, attn_dp_size=4), limit(None), limit(None, max_running_requests=9)) == (8, 32, None, 9)
    assert limit(8, max_running_requests=9) == 8


# ---- what else has an edge ----


def test_a_prefix_longer_than_the_prompt_spoils_its_own_cell_alone() -> None:
    base = Base(LLAMA, load_gpu("h100-sxm"), "vllm", {"max_model_len": 8192})
    found = cells(base, [Axis("shared_prefix_tokens", [5000, 0, 1024])], ["capacity.requests", "verdict.fits"])
    assert [cell["refused"] is None for cell in found] == [False, True, True]
    assert found[0]["refused"] == "--shared-prefix-tokens: the shared prefix is longer than the prompt"
    assert sweep.BLOCK == 65_536
    assert (sweep_axes.MAX_VALUES, sweep_axes.MAX_POINTS, sweep_axes.MAX_STEPS) == (10**7, 10**8, 2000)


@pytest.mark.parametrize("pp", [1, 2])
def test_tokens_of_those_that_decode_leave_less_room_for_prompts(pp: int) -> None:
    """A chunk of 512 beside 256 sequences, of which a pipeline has half in each micro-batch."""
    of = profile(made(pipeline_parallel_size=pp)._replace(rates=ROUND), Lengths(1000, 200))._replace(chunk=512)
    room = 512 - 256 / pp
    chunks = -(-1000 // room)
    steps = batching._steps(of, 257, 1000 / chunks, room)
    expected = batching._pace(steps, 0.05, chunks, room, of.lengths).per_token
    assert batching.seconds_per_token(of, 0.05, 256) == pytest.approx(expected)


def test_short_messages_of_every_collective() -> None:
    base = made(tensor_parallel_size=2)._replace(rates=ROUND._replace(short_bandwidth=4e10, short_seconds=2e-6))
    ((_, stage),) = profile(base, Lengths(1000, 200)).stages
    collectives, num_bytes = decode.sent(base.works[0], base.layout)
    assert collectives == 2 * 32 + 1
    assert stage.short_sending == pytest.approx(collectives * 2e-6)
    assert stage.short_message == pytest.approx(num_bytes / 4e10)
    assert (stage.sending, stage.message) == pytest.approx((collectives * 1e-5, num_bytes / 1e11))


@pytest.mark.parametrize("name", [n for n in format_names("weights") if mix_bounds(get_format(n).mix or "")])
def test_a_publisher_s_mix_lies_between_two_formats(name: str) -> None:
    fmt = get_format(name)
    bounds = mix_bounds(fmt.mix or "")
    assert bounds is not None
    least, most = (8 * get_format(each).block_bytes / get_format(each).block_elements for each in bounds)
    low, high = mix_range(fmt)
    assert low <= 200 * least / (least + most) < low + 1
    assert high - 1 <= 200 * most / (least + most) < high


def test_which_gpu_a_calibration_is_of(tmp_path: Any) -> None:
    def of(gpus: list[str], **device: Any) -> str | None:
        known = {"name": "NVIDIA H200", "driver": "580.159", **device}
        path = written(tmp_path, file_of(device={k: v for k, v in known.items() if v is not None}))
        return calibration.measured_on(path, gpus)[1]

    assert of(["l4", "h200-sxm"]) == "h200-sxm" == of(["h200-sxm"], name="x", gpu="h200-sxm")
    assert of(["l4"]) is None is of(["l4"], gpu="h200-sxm")
    assert of(["l4", "h200-sxm"], kind="cpu", name="EPYC") is None is of(["h200-sxm"], name="no such card")
    assert of(["mine"], name="no such card") == "mine"
    assert of([], name="no such card") is None
    with pytest.raises(InputError, match="does not say which GPU was measured") as refused:
        of(["l4", "h200-sxm"], name="no such card")
    assert (refused.value.where, refused.value.hint) == ("--calibration", 'write "gpu": ID into its device')
