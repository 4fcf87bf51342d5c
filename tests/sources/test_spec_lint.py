"""What ``kvplan lint`` says of the spec of a model and of an accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.sources.yaml_file import (
    lint_gpu_file,
    lint_model_file,
    load_model_file,
)

DATA = Path(__file__).parents[1] / "data"
SAMPLE = (DATA / "sample-model.yaml").read_text()
GPU = (DATA / "sample-gpu.yaml").read_text()


def written(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(content, encoding="utf-8")
    return path


# ---- lint ----


def levels(path: Path, message: str) -> list[str]:
    return [f.level for f in lint_model_file(path) if message in f.message]


def test_lint_says_nothing_about_a_sound_file(tmp_path: Path) -> None:
    model = load_model_file(DATA / "sample-model.yaml")
    path = written(tmp_path, SAMPLE + f"published_parameters: {model.parameters}\n")
    assert lint_model_file(path) == []
    assert lint_gpu_file(DATA / "sample-gpu.yaml") == []


def test_lint_holds_the_parameter_count_against_the_published_one(tmp_path: Path) -> None:
    right = load_model_file(DATA / "sample-model.yaml").parameters
    wrong = written(tmp_path, SAMPLE + f"published_parameters: {right * 102 // 100}\n")
    found = [f for f in lint_model_file(wrong) if "add up to" in f.message]
    assert [f.level for f in found] == ["error"]
    assert found[0].line == SAMPLE.count("\n") + 1
    assert f"{right:,}" in found[0].message
    noted = written(tmp_path, SAMPLE + f"published_parameters: {right * 102 // 100}\nparameters_note: towers\n")
    assert lint_model_file(noted) == []
    needless = written(tmp_path, SAMPLE + f"published_parameters: {right}\nparameters_note: towers\n")
    assert levels(needless, "parameters_note") == ["warning"]


@pytest.mark.parametrize(
    ("old", "new", "message", "level"),
    [
        ("        window: 1024", "        window: 65536", "larger than the context", "warning"),
        ("dtype: bf16", "dtype: bf15", "unknown weights format 'bf15'", "error"),
        ("format: fp8_block", "format: fp8_blok", "unknown weights format", "error"),
        ("roles: [attention, dense_ffn]", "roles: [attn]", "unknown role 'attn'", "error"),
        ("role: attention}", "role: norms}", "unknown role 'norms'", "error"),
        ("  - linear\n", "", "no layer is built from block 'linear'", "warning"),
        ("id: sample-1b", "id: Sample 1B", "is not lower-case", "error"),
        ("source: written by hand\n", "", "no source", "warning"),
        ("max_position_embeddings: 32768\n", "", "no max_position_embeddings", "warning"),
        (
            "max_position_embeddings: 32768\n",
            "max_position_embeddings: 32768\nstated_positions: -5\n",
            "stated_positions must be above 0",
            "error",
        ),
        ("kind: full,", "kind: shared, source: nope,", "no block is called 'nope'", "error"),
        ("kind: full,", "kind: shared, source: linear,", "keeps no cache to share", "error"),
        (
            "kind: sliding",
            "kind: shared\n        source: global",
            "no layer of block 'global' comes before it",
            "error",
        ),
    ],
)
def test_lint_remarks(tmp_path: Path, old: str, new: str, message: str, level: str) -> None:
    text = SAMPLE.replace(old, new, 1)
    assert text != SAMPLE
    assert levels(written(tmp_path, text), message) == [level]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nvml_total_bytes: 85_899_345_920", "nvml_total_bytes: 81920", "81,920 B, is too little for an accelerator"),
        ("nvml_total_bytes: 85_899_345_920", "nvml_total_bytes: 81_920_000", "does not fit a card of 80 GB"),
        ("bandwidth_bytes_per_second: 2_000_000_000_000", "bandwidth_bytes_per_second: 2000", "out of any range"),
        ("low_usd_per_hour: 1.5", "low_usd_per_hour: 3.5", "not above high_usd_per_hour"),
        ("nvml_total_source: made up\n", "", "no source for nvml_total_bytes"),
    ],
)
def test_lint_of_an_accelerator(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = GPU.replace(old, new, 1)
    assert text != GPU
    assert any(message in f.message for f in lint_gpu_file(written(tmp_path, text)))


def test_lint_of_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    found = lint_model_file(written(tmp_path, "a: 1\na: 2\n"))
    assert [(f.level, f.line) for f in found] == [("error", 2)]
    assert [(f.level, f.line) for f in lint_model_file(tmp_path)] == [("error", 1)]
