"""Files that people write: what is read, what is refused, and how the error reads."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import SpecError
from kvplan.sources.yaml_file import (
    lint_model_file,
    load_gpu_file,
    load_model_file,
    model_from_text,
    read_yaml,
)
from kvplan.sources.yaml_reader import MAX_BYTES, line_of, parse_yaml

DATA = Path(__file__).parents[1] / "data"
SAMPLE = (DATA / "sample-model.yaml").read_text()
GPU = (DATA / "sample-gpu.yaml").read_text()


def refused(path: Path, load: object = load_model_file) -> SpecError:
    """The error that a file brings: one line, no control characters, soon."""
    begin = time.perf_counter()
    with pytest.raises(SpecError) as caught:
        load(path)  # type: ignore[operator]
    assert time.perf_counter() - begin < 60
    assert str(caught.value).isprintable()
    assert (caught.value.hint or "").isprintable()
    return caught.value


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def line(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


# ---- reading ----


def test_sample_is_read() -> None:
    model = load_model_file(DATA / "sample-model.yaml")
    assert model.layers == ("linear", *(("local",) * 3 + ("global",)) * 4)
    assert model.vocab_size == 32_000
    assert model.rope == {"type": "yarn", "factor": 4.0, "scales": [1, 2]}
    assert model.checkpoint is not None
    assert model.checkpoint.roles == ("attention", "dense_ffn")
    assert model.blocks["local"].mixers[0].streams()[0].window == 1024
    assert model.notes == ("first", "second")
    assert load_gpu_file(DATA / "sample-gpu.yaml").device_bytes == 80 * 2**30


def test_positions_are_lines_of_keys_and_entries() -> None:
    _, positions = read_yaml(DATA / "sample-model.yaml")
    assert positions["blocks", "local", "mixers", 0, "window"] == line(SAMPLE, "        window: 1024")
    assert positions["layers", 1, "of", 1] == line(SAMPLE, "      - global")
    assert line_of(positions, ("blocks", "local", "mixers", 0, "nothing")) == line(SAMPLE, "      - kind: sliding")
    assert line_of(positions, ("nothing",)) == 2  # the first line is a comment


@pytest.mark.parametrize("change", [lambda t: "\ufeff" + t, lambda t: t.replace("\n", "\r\n")])
def test_byte_order_mark_and_crlf_are_no_obstacle(tmp_path: Path, change: object) -> None:
    path = written(tmp_path, change(SAMPLE))  # type: ignore[operator]
    assert load_model_file(path) == load_model_file(DATA / "sample-model.yaml")


def test_an_anchor_used_twice_is_fine() -> None:
    data, positions = parse_yaml("a: &x [1, {b: 2}]\nc: *x\n", "t.yaml")
    assert data == {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}
    assert positions["c",] == 2


# ---- files that are none ----


def test_a_folder(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path).message


def test_no_such_file(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "none.yaml").message


def test_a_link_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)
    assert "cannot be read" in refused(path).message


def test_a_null_byte_in_the_name() -> None:
    assert "cannot be read" in refused(Path("a\0b.yaml")).message


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_no_permission(tmp_path: Path) -> None:
    path = written(tmp_path, SAMPLE)
    path.chmod(0)
    assert "permission denied" in refused(path).message


def test_no_permission_as_the_system_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    assert "permission denied" in refused(tmp_path / "x.yaml").message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_nobody_writes_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(tmp_path / "pipe").message


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    assert "104,857,600 bytes" in refused(path).message


@pytest.mark.parametrize(
    ("content", "message", "at"),
    [
        (b"\x7fELF\0\0\0", "binary", None),
        ("schema: x\n".encode("utf-16"), "UTF-16", None),
        (b"schema: kvplan.model/1\nname: \xff\xfe\xff\n", "not UTF-8", 2),
        (b"", "empty", None),
        (b"# only a comment\n", "empty", None),
        (b"a:\n\t- b\n", "a tab in the indentation", 2),
        (b"a: 1\nb: 2\na: 3\n", "'a' is here twice (first on line 1)", 3),
        (b"a: 1\n---\nb: 2\n", "second document", 2),
        (b"a: [1, 2\nb: 3\n", "is not YAML", 2),
        (b"a: !!python/object/apply:os.system ['x']\n", "a tag", 1),
        (b"a: !mine x\n", "a tag", 1),
        (b"a: !!binary aGk=\n", "a tag", 1),
        (b"base: &b {x: 1}\na:\n  <<: *b\n", "merge key", 3),
        (b"a: *nowhere\n", "undefined alias", 1),
        (b"1: a\n", "no text", 1),
        (b"? [a, b]\n: c\n", "no text", 1),
        (b"a: " + b"9" * 5000 + b"\n", "absurdly large", 1),
        (b"a: 0x" + b"f" * 5000 + b"\n", "absurdly large", 1),
        (b"a: 9223372036854775808\n", "absurdly large", 1),
        (b"a: 1:30\n", "base 60", 1),
        (b"a: 010\n", "octal", 1),
        (b"a: .inf\n", "no number to count with", 1),
        (b"a: .nan\n", "no number to count with", 1),
        (b"a: 1.5e+999\n", "no number to count with", 1),
        (b'ok: 1\nname: "a\\e[31mb"\n', "control character", 2),
        (b"ok: 1\nname: a\x1b[31mb\n", "control character", 2),
        (b"a: &x [*x]\n", "nests deeper", 1),
    ],
)
def test_refused_content(tmp_path: Path, content: bytes, message: str, at: int | None) -> None:
    path = written(tmp_path, content)
    error = refused(path, read_yaml)
    assert message in error.message
    assert error.where == (f"{path}:{at}" if at else str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 300_000, "nests deeper"),
        (b"{a: " * 200_000, "nests deeper"),
        (b"- " * 400_000, "nests deeper"),
        (b"? " * 400_000, "nests deeper"),
        (b"a:\n" + b"- 1\n" * 200_000, "more than 50,000 values"),
        (b"a: &a [x,x,x,x,x,x,x,x,x]\n"
         + b"".join(b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9)) for n in range(98, 110)),
         "aliases expand"),
        (b"a: " + b"x" * 999_000, "should be"),
        (b"\"" + b"a" * 900_000, "is not YAML"),
    ],
    ids=["brackets", "braces", "dashes", "questions", "long list", "bomb", "long text", "open quote"],
)  # fmt: skip
def test_bombs_cost_little(tmp_path: Path, content: bytes, message: str) -> None:
    assert len(content) <= MAX_BYTES
    path = written(tmp_path, b"schema: kvplan.model/1\nx: 1\n" + content if message == "should be" else content)
    error = refused(path)
    if message != "should be":
        assert message in error.message
    assert len(str(error)) < 500


# ---- specs that are none ----


@pytest.mark.parametrize(
    ("old", "new", "message", "hint", "at"),
    [
        ("schema: kvplan.model/1", "schema: kvplan.model/9", "schema is 'kvplan.model/9'", "write schema", "schema:"),
        ("schema: kvplan.model/1", "", "no schema", "kvplan.model/1", ""),
        ("hidden_size: 1024", "hiden_size: 1024", "unknown key 'hiden_size'", "did you mean hidden_size?",
         "hiden_size"),
        ("        kv_heads: 4", "        kv_head: 4", "unknown key 'kv_head' in blocks.local.mixers[0]",
         "did you mean kv_heads?", "        kv_head:"),
        ("        window: 1024\n", "", "no window in blocks.local.mixers[0]", "add the key window",
         "      - kind: sliding"),
        ("        window: 1024", "        window: 0", "window must be above 0", None, "        window"),
        ("        window: 1024", "        window: '1024'", "window should be a whole number, not '1024'", None,
         "        window"),
        ("        window: 1024", "        window: 10.5", "should be a whole number, not 10.5", None, "        window"),
        ("        window: 1024", "        window: true", "should be a whole number, not true", None, "        window"),
        ("        kv_heads: 4", "        kv_heads: 5", "is not a multiple of kv_heads (5)", None, "        "),
        ("kind: sliding", "kind: slidding", "unknown cache kind 'slidding'", "did you mean sliding", "slidding"),
        ("      - kind: sliding\n", "      - input_size: 64\n", "no kind in blocks.local.mixers[0]",
         "one of full", "- input"),
        ("kind: dense", "kind: dens", "unknown FFN kind 'dens'", "dense", "dens,"),
        ("experts_per_token: 2", "experts_per_token: 9", "exceeds experts (8)", None, "experts_per_token"),
        ("qk_norm: head}", "qk_norm: tail}", "qk_norm is 'tail'", "head", "qk_norm"),
        ("      - global\n", "      - globl\n", "no block is called 'globl'", "blocks: local", "- globl"),
        ("repeat: 4", "repeat: 0", "repeat should be a whole number", None, "repeat: 0"),
        ("repeat: 4", "repeat: 100000000", "more than 10,000 layers", "check repeat", "  - repeat"),
        ("repeat: 4", "repeats: 4", "a block name or a repetition", "write a repetition", "  - repeats"),
        ("tie_word_embeddings: true", "tie_word_embeddings: 1", "should be true or false, not 1", None, "tie_word"),
        ("aliases: [sample, samp]", "aliases: sample", "aliases should be a list, not 'sample'", None, "aliases"),
        ("confidence: derived", "confidence: sure", "confidence is 'sure'", "seen", "confidence"),
        ("{name: vision, parameters: 1000000}", "{name: vision, params: 1}", "unknown key 'params' in towers[0]",
         "did you mean parameters?", "  - {name: vision"),
        ("roles: [attention, dense_ffn]", "roles: [attention], kv_cache_fmt: fp8",
         "unknown key 'kv_cache_fmt' in checkpoint",
         "kv_cache_format", "checkpoint"),
        ("shape: [1024, 16]", "shape: [1024, x]", "shape[1] should be a whole number, not 'x'", None, "shape"),
        ("vocab_size: 32_000", "vocab_size: -1", "must be above 0", None, "hidden_size"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, message: str, hint: str | None, at: str
) -> None:
    text = SAMPLE.replace(old, new, 1)
    assert text != SAMPLE
    path = written(tmp_path, text)
    error = refused(path)
    assert message in error.message
    assert hint is None or hint in (error.hint or "")
    expected = line(text, at) if at else 3
    assert error.where is not None
    assert error.where.startswith(f"{path}:")
    if at.strip():
        assert error.where == f"{path}:{expected}", error


def test_the_first_mistake_counts_the_others(tmp_path: Path) -> None:
    text = SAMPLE.replace("hidden_size", "hiden_size").replace("        window: 1024", "        window: x")
    path = written(tmp_path, text)
    assert "models lint" in (refused(path).hint or "")
    found = lint_model_file(path)
    assert [f.level for f in found] == ["error"] * len(found)
    assert [f.line for f in found] == [line(text, "hiden_size"), line(text, "        window")]


@pytest.mark.parametrize("text", ["- a\n", "just text\n", "5\n", "null\n"])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    assert "should be a mapping" in refused(written(tmp_path, text)).message


@pytest.mark.parametrize(
    ("old", "new"),
    [("blocks:", "blocks: 5\nother:"), ("layers:", "layers: 5\nother:"), ("layers:", "layers: []\nother:"),
     ("layers:", "layers: null\nother:"), ("  local:", "  local: 5\n  more:"), ("    mixers:",
      "    mixers: {}\n    more:"),
     ("layers:", "draft_layers: [nope]\nlayers:"), ("id: sample-1b", "id: [1]"), ("id: sample-1b", "id: null")],
)  # fmt: skip
def test_wrong_shapes_anywhere_are_errors_not_crashes(tmp_path: Path, old: str, new: str) -> None:
    refused(written(tmp_path, SAMPLE.replace(old, new, 1)))


def test_names_with_escape_sequences_are_shown_safely(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31mb.yaml"
    path.write_text("schema: 1\n")
    assert "\\x1b" in (refused(path).where or "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("vendor: sample", "vendr: sample", "unknown key 'vendr'"),
        ("datasheet_gb: 80", "datasheet_gb: 0", "must be above 0"),
        ("datasheet_gb: 80", "datasheet_gb: eighty", "should be a number, not 'eighty'"),
        ('date: "2026-05"', "day: x", "unknown key 'day' in price"),
        ("schema: kvplan.gpu/1", "schema: kvplan.model/1", "schema is"),
    ],
)
def test_gpu_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = GPU.replace(old, new, 1)
    assert text != GPU
    assert message in refused(written(tmp_path, text), load_gpu_file).message


LINES = SAMPLE.splitlines()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, len(LINES) - 1),
    st.sampled_from(["", "x", "- x", "  y: 1", "kind: 3", "\t", "a: [", "null", "0", "'", "&a *a"]),
)
def test_any_broken_line_is_a_spec_error_or_a_model(number: int, instead: str) -> None:
    lines = [*LINES[:number], instead, *LINES[number + 1 :]]
    try:
        model_from_text("\n".join(lines), "x.yaml")
    except SpecError as error:
        assert str(error).startswith("x.yaml")  # noqa: PT017


def test_pydantic_stays_out_of_the_core() -> None:
    import subprocess

    code = (
        "import sys, kvplan.catalog.build, kvplan.spec.model, kvplan.spec.gpu, kvplan.spec.formats;"
        "import kvplan.spec.gguf_mix;"
        "import kvplan.sources.yaml_file, kvplan.sources.yaml_reader; sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
