"""``models``, ``gpus`` and ``formats``: what they list, show and refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.catalog import gpu_ids, load_model, model_ids
from kvplan.catalog.summary import summaries, summarise
from kvplan.cli.formats import bits_per_element
from kvplan.cli.model_sheet import layer_rows, role_parameters
from kvplan.spec.formats import format_names, get_format

from .conftest import Run, one_line_error

ROOT = Path(__file__).resolve().parents[2]


def items(run: Run, *words: str) -> list[dict[str, object]]:
    """The one list in the JSON answer of a catalog verb."""
    done = run(*words, "--json")
    assert done.status == 0, done.err
    answer = json.loads(done.out)
    assert answer.pop("schema") == f"kvplan.{words[0]}/1"
    (found,) = answer.values()
    return found


class TestModelsList:
    def test_it_has_the_whole_catalog(self, run: Run) -> None:
        assert sorted(str(row["id"]) for row in items(run, "models", "list")) == sorted(model_ids())

    def test_figures_are_the_specs(self, run: Run) -> None:
        row = items(run, "models", "list", "llama-3.1-70b")[0]
        assert (row["parameters"], row["num_layers"]) == (70_553_706_496, 80)
        assert (row["kv_bytes_per_token"], row["max_position_embeddings"]) == (327_680, 131_072)

    def test_the_generated_table_is_fresh(self) -> None:
        script = ROOT / "scripts" / "make_summary.py"
        assert subprocess.run([sys.executable, script, "--check"], cwd="/", timeout=120).returncode == 0
        some = {row.id: row for row in summaries()}
        for model in ("deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-120b"):
            assert summarise(load_model(model)) == some[model]

    @pytest.mark.parametrize("text", ["QWEN3", "google/", "mamba"])
    def test_text_filters_id_family_and_repository(self, run: Run, text: str) -> None:
        found = items(run, "models", "list", text)
        assert 0 < len(found) < 100
        for row in found:
            assert text.lower() in f"{row['id']} {row['family']} {row['repo']}".lower()

    def test_another_name_finds_its_model(self, run: Run) -> None:
        assert [row["id"] for row in items(run, "models", "list", "Llama-3.1-8B-Instruct")] == ["llama-3.1-8b"]

    def test_family(self, run: Run) -> None:
        assert {row["family"] for row in items(run, "models", "list", "--family", "gemma-3")} == {"gemma-3"}
        said, hint = one_line_error(run("models", "list", "--family", "gemmma"))
        assert "unknown family 'gemmma'" in said
        assert "did you mean gemma" in hint

    def test_unknown_text(self, run: Run) -> None:
        said, hint = one_line_error(run("models", "list", "lamma-3.1-8"))
        assert "unknown model" in said
        assert "llama-3.1-8b" in hint

    @pytest.mark.parametrize("width", [80, 200])
    def test_table_fits_the_terminal_with_the_columns_that_matter(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, width: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        lines = run("models", "list", "--format", "table").out.splitlines()
        assert max(map(len, lines)) <= width
        row = next(line.split() for line in lines if line.startswith("deepseek-r1-distill-llama-70b"))
        assert row[:6] == ["deepseek-r1-distill-llama-70b", "70.55", "B", "80", "320.00", "131,072"]
        assert ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B" in row) is (width == 200)


class TestModelsShow:
    def test_layers_add_up(self) -> None:
        for name in ("gemma-3n-e4b", "deepseek-v4-flash", "falcon-h1-7b", "qwen3-next-80b-a3b"):
            model = load_model(name)
            rows = layer_rows(model)
            assert sum(r.layers for r in {row.block: row for row in rows}.values()) == model.num_layers
            assert sum(r.layers * r.fixed_bytes_per_layer for r in rows) == summarise(model).fixed_bytes_per_sequence

    def test_bytes_of_the_layers_are_bytes_per_token(self) -> None:
        for name in ("llama-3.1-70b", "gemma-3-27b", "gpt-oss-120b", "deepseek-v3", "gemma-3n-e4b"):
            model = load_model(name)
            total = sum(row.layers * row.bytes_per_token_per_layer for row in layer_rows(model))
            assert total == summarise(model).kv_bytes_per_token

    @pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gemma-3n-e4b", "whisper-large-v3"])
    def test_roles_add_up(self, name: str) -> None:
        model = load_model(name)
        assert sum(role_parameters(model).values()) == model.parameters

    def test_json_has_the_lists_keys_and_more(self, run: Run) -> None:
        (row,) = items(run, "models", "show", "deepseek-v3")
        listed = next(r for r in items(run, "models", "list", "deepseek-v3") if r["id"] == "deepseek-v3")
        assert {key: row[key] for key in listed} == listed
        assert row["checkpoint"] is not None
        assert [layer["layers"] for layer in row["layers"]] == [3, 58]  # type: ignore[attr-defined]

    def test_a_file_of_ones_own(self, run: Run) -> None:
        (row,) = items(run, "models", "show", str(ROOT / "tests" / "data" / "opt-175b.yaml"))
        assert row["kv_bytes_per_token"] == 4_718_592

    @pytest.mark.parametrize("name", model_ids())
    def test_every_model_can_be_shown(self, run: Run, name: str) -> None:
        done = run("models", "show", name)
        said = "".join(f"warning: {text}\n" for text in load_model(name).file_warnings)
        assert (done.status, done.err) == (0, said)
        assert done.out.startswith(name)

    def test_unknown(self, run: Run) -> None:
        _, hint = one_line_error(run("models", "show", "llama-3.1-8bb"))
        assert "llama-3.1-8b" in hint


class TestLint:
    def test_the_catalog_has_no_error(self, run: Run) -> None:
        done = run("models", "lint", str(ROOT / "models"), "--json")
        answer = json.loads(done.out)
        assert (done.status, answer["errors"], answer["files"]) == (0, 0, len(model_ids()))
        assert run("gpus", "lint", str(ROOT / "kvplan" / "data" / "gpus")).status == 0

    def test_a_wrong_file_is_status_1_with_its_line(self, run: Run, tmp_path: Path) -> None:
        text = (ROOT / "tests" / "data" / "opt-175b.yaml").read_text()
        wrong = tmp_path / "wrong.yaml"
        wrong.write_text(text.replace("hidden_size:", "hiden_size:"))
        line = 1 + text[: text.index("hidden_size:")].count("\n")
        done = run("models", "lint", str(wrong))
        assert done.status == 1
        assert f"{wrong}:{line}: error: unknown key 'hiden_size'" in done.out
        assert "hidden_size" in done.out
        assert "1 file, " in done.err

    @pytest.mark.parametrize("content", [b"\x00\x01\x02", b"a: [", b"- 1", b"", b"a: 1\na: 2\n", b"x: &a [*a, *a]\n"])
    def test_what_is_no_model_is_a_finding(self, run: Run, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.yaml").write_bytes(content)
        done = run("models", "lint", str(tmp_path))
        assert done.status == 1
        assert "error: " in done.out
        assert "Traceback" not in done.err

    @pytest.mark.parametrize("path", ["no/such/file.yaml", "{}"])
    def test_nothing_to_check_is_an_error(self, run: Run, tmp_path: Path, path: str) -> None:
        one_line_error(run("models", "lint", path.format(tmp_path)))


def test_schema_is_a_json_schema(run: Run) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(run("models", "schema").out)
    jsonschema.Draft202012Validator.check_schema(schema)


class TestGpus:
    def test_list_has_the_whole_catalog(self, run: Run) -> None:
        assert sorted(str(row["id"]) for row in items(run, "gpus", "list")) == sorted(gpu_ids())

    def test_measured_card(self, run: Run) -> None:
        (row,) = items(run, "gpus", "show", "NVIDIA H200")
        assert (row["nvml_total_bytes"], row["torch_total_bytes"]) == (150_754_820_096, 150_109_880_320)
        assert (row["device_bytes"], row["device_bytes_basis"]) == (150_109_880_320, "measured")

    def test_filters(self, run: Run) -> None:
        assert all("h100" in str(row["id"]) for row in items(run, "gpus", "list", "h100"))
        assert {row["vendor"] for row in items(run, "gpus", "list", "--vendor", "AMD")} == {"amd"}
        _, hint = one_line_error(run("gpus", "list", "--vendor", "nvidea"))
        assert "did you mean nvidia?" in hint

    @pytest.mark.parametrize("name", gpu_ids())
    def test_every_gpu_can_be_shown(self, run: Run, name: str) -> None:
        done = run("gpus", "show", name)
        assert (done.status, done.err) == (0, "")
        assert done.out.startswith(name)

    def test_unknown(self, run: Run) -> None:
        said, hint = one_line_error(run("gpus", "show", "h100-sxmm"))
        assert "unknown GPU" in said
        assert "h100-sxm" in hint


class TestFormats:
    def test_every_format_with_every_alias(self, run: Run) -> None:
        rows = items(run, "formats")
        assert [row["name"] for row in rows] == format_names()
        text = run("formats").out
        for row in rows:
            assert all(alias in text for alias in row["aliases"])  # type: ignore[attr-defined]
            assert row["source"], row["name"]

    @pytest.mark.parametrize(
        ("name", "bits"),
        [
            ("bf16", 16.0),
            ("fp8_per_token_head", 8.25),
            ("q8_0", 8.5),
            ("q4_0", 4.5),
            ("nvfp4", 4.5),
            ("int8_per_token", 8 + 2 * 8 / 1024),
            ("awq", 8 * 133 / 256),
            ("nf4_dq", 8 * 8452 / 16384),
            ("fp8_block", 8 + 32 / 128**2),
        ],
    )
    def test_bits(self, name: str, bits: float) -> None:
        assert bits_per_element(get_format(name)) == pytest.approx(bits, abs=1e-9)

    def test_name_and_use_filter(self, run: Run) -> None:
        assert [row["name"] for row in items(run, "formats", "q4_k_m")] == ["q4_k_m"]
        assert "mxfp4" in {row["name"] for row in items(run, "formats", "MXFP4")}
        assert {row["use"] for row in items(run, "formats", "--use", "cache")} == {"cache", "both"}
        one_line_error(run("formats", "--use", "both"))
        _, hint = one_line_error(run("formats", "fp88"))
        assert "fp8" in hint


def test_lint_takes_configurations_folders_and_gguf_files(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(config))
    for path in (model / "config.json", model, tmp_path / "models"):
        assert run("models", "lint", str(path)).status == 0
    (tmp_path / "models" / "broken.gguf").write_bytes(b"GGUF" + bytes(40))
    done = run("models", "lint", str(tmp_path / "models"), "--json")
    assert done.status == 1
    found = json.loads(done.out)
    assert (found["files"], found["errors"]) == (2, 1)
