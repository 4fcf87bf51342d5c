"""What planning and simulation know of an engine, they ask the engine: none is named there, and none is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvplan.catalog import load_gpu, load_model
from kvplan.cli import flags
from kvplan.engines import distinct, get_engine
from kvplan.planning.evaluate import evaluate, settled
from kvplan.planning.fit.candidates import runs_on, serving
from kvplan.planning.speed.constants import ELSEWHERE, INDEX_IN_8_BITS, REPORTED, engine_rates

ROOT = Path(__file__).resolve().parents[2] / "kvplan"


def test_every_engine_has_speeds() -> None:
    assert set(ELSEWHERE) == set(INDEX_IN_8_BITS) == set(distinct())
    assert {engine for engine, _ in REPORTED} <= set(distinct())
    for name in distinct():
        assert engine_rates(name, "a vendor of tomorrow") == ELSEWHERE[name]


def test_all_but_arithmetic_serve() -> None:
    assert set(serving()) == set(distinct()) - {"generic"}
    assert runs_on("llamacpp", load_gpu("apple-m4-max"))
    assert not runs_on("llamacpp", load_gpu("tpu-v5e"))
    assert not runs_on("mlx", load_gpu("h100-sxm"))
    assert runs_on("generic", load_gpu("tpu-v5e"))


@pytest.mark.parametrize("name", [name for name in distinct() if not get_engine(name).lays_out_pool])
def test_an_engine_without_a_pool_starts_with_one_request(name: str) -> None:
    """What the screen of `fit` takes for granted of an engine that lays out no pool."""
    engine = get_engine(name)
    gpu = load_gpu("h100-sxm")
    model, settings, _ = settled(load_model("llama-3.1-8b"), gpu, engine, {"max_model_len": 4096})
    (stage,) = evaluate(model, gpu, engine, settings).stages
    need = engine.start_bytes(stage, settings)
    for more, starts in ((0, True), (-1, False)):
        assert engine.pool((stage,), settings, (need + more,)).starts is starts


@pytest.mark.parametrize("folder", ["planning/fit", "simulate"])
def test_the_search_and_the_simulation_name_no_engine(folder: str) -> None:
    names = "|".join(re.escape(name) for name in distinct() if name != "mlx")  # the usual engine of one vendor
    for path in (ROOT / folder).rglob("*.py"):
        found = re.findall(rf"""[=(\[{{ ,]["']({names})["']""", path.read_text(encoding="utf-8"))
        assert not found, path


def test_the_readme_and_the_help_name_every_engine() -> None:
    """Not by hand: a new engine fails here until the sentence has it."""
    (sentence,) = re.findall(r"^Engines: .*?;[^;]*;", (ROOT.parent / "README.md").read_text(), re.M | re.S)
    assert set(re.findall(r"`([a-z0-9.-]+)`", sentence)) == set(distinct())
    (option,) = [option for option in flags.ENGINE if option.setting == "engine"]
    assert all(name in re.split(r"[ ,(;]+", option.help) for name in distinct())
