"""Wrong and hostile files: one line with a hint, in bounded time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.errors import KvplanError
from kvplan.sources.commands import is_command, read_command

MANIFESTS = Path(__file__).parents[2] / "data" / "manifests"
POD = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n"


def refused(path: Path | str) -> KvplanError:
    """The one-line error that a file gives, without hanging."""
    begin = time.process_time()
    with pytest.raises(KvplanError) as caught:
        read_command(str(path)).under({})
    assert time.process_time() - begin < 60
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("name", ["a.sh", "Dockerfile", "a.yaml", "a.service"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\x00\x01\x02",
        b"\xff\xfe\x00",
        b"\xff\xffvllm serve a/b",
        b"vllm serve 'a/b",
        b"FROM vllm/vllm-openai",
        b'[Service]\nExecStart=vllm serve "x',
        b"- vllm\n- {",
        b"vllm: [" * 500,
        b"&a [vllm, *a]",
        b"\x1b[2Jvllm \x07",
        b'FROM x\nCMD ["vllm", "serve"',
        b"FROM\nvllm",
        b"vllm serve " + b"$(" * 5000,
        b"vllm serve " + b"${A:-" * 5000,
        b"(" * 100000 + b" vllm",
        b"<<" * 50000,
        b"A=(" * 50000 + b" vllm",
        b"vllm serve " + b"\\\n" * 100000 + b"'",
    ],
    ids=lambda b: repr(b[:24]) if isinstance(b, bytes) else None,
)
def test_no_file_is_too_wrong(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refused(path)


def test_large_files_and_what_is_no_file(tmp_path: Path) -> None:
    large = tmp_path / "large.sh"
    with open(large, "wb") as file:
        file.truncate(100_000_000)
    assert "100,000,000 bytes" in str(refused(large))
    (tmp_path / "folder.sh").mkdir()
    assert "is a folder" in str(refused(tmp_path / "folder.sh"))
    os.mkfifo(tmp_path / "pipe.sh")
    assert "not a regular file" in str(refused(tmp_path / "pipe.sh"))
    (tmp_path / "loop.sh").symlink_to(tmp_path / "loop.sh")
    assert "cannot be read" in str(refused(tmp_path / "loop.sh"))
    assert "cannot be read" in str(refused("no/such\0file.sh"))


def test_yaml_bombs(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    layers = "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]\n" for i in range(1, 12))
    path.write_text("apiVersion: v1\nkind: Pod\nb0: &b0 [vllm]\n" + layers)
    assert "aliases expand to too many values" in str(refused(path))
    path.write_text("apiVersion: v1\nkind: Pod\na: &a\n  b: *a\n  vllm: 1\n")
    assert "nests deeper" in str(refused(path))
    path.write_text("apiVersion: v1\nvllm: " + "[" * 2000)
    refused(path)
    path.write_text("---\napiVersion: v1\n" * 3000)
    assert "too many values" in str(refused(path))
    path.write_text("apiVersion: v1\n<<: &m {<<: *m}\n")
    refused(path)


def test_values_that_grow(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    env = "".join(f"    - {{name: A{i}, value: $(A{i - 1})$(A{i - 1})}}\n" for i in range(1, 60))
    start = "  - command: [vllm, serve, $(A59)]\n    env:\n    - {name: A0, value: xxxxxxxx}\n"
    path.write_text(POD + start + env)
    assert "grows beyond" in str(refused(path))


def test_templates_are_named(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text("apiVersion: v1\nkind: Pod\nspec:\n  x: {{ .Values.vllm }}\n  {{- if .Values.y }}\n")
    error = refused(path)
    assert "not YAML" in str(error)
    assert error.hint is not None
    assert "helm template" in error.hint


def test_odd_shapes_of_manifests(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    for text in (
        POD + "  - null\n  - 5\n  - {command: 7, args: {a: b}, env: 3, image: [x]}\n",
        POD + "  - {command: [vllm, serve, [a]], env: [1, {name: [x]}, {name: y}], resources: [1]}\n",
        "apiVersion: v1\nkind: List\nitems: {a: vllm}\n",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: []\ndata: vllm\n",
        "services: {a: null, b: [vllm], c: {command: {x: y}, environment: 4, deploy: 7, gpus: [null]}}\n",
        "services: {a: {image: vllm/vllm-openai, gpus: [{count: x}], command: null}}\n",
        "image: {repository: [vllm], tag: {}}\nargs: {a: [b, {c: d}], e: {f: g}}\n",
        "vllmConfig: 5\nvllm: {maxModelLen: [4096], x: {y: z}}\nargs: null\n",
    ):
        path.write_text(text)
        refused(path)


def outcome(text: str) -> str:
    """The model that is read, or what kvplan says instead; nothing else may be raised."""
    try:
        command = read_command(text)
        command.under({})
    except KvplanError as error:
        return str(error)
    assert command.model
    return command.model if command.model.isprintable() else ""


words = st.sampled_from(
    [
        "vllm",
        "serve",
        "a/b",
        "-tp",
        "2",
        "--max-model-len",
        "$A",
        "${A:-4}",
        "'",
        '"',
        "\\",
        "\n",
        "|",
        ";",
        "&",
        "(",
        ")",
        "FROM vllm/vllm-openai",
        "CMD",
        "ENTRYPOINT",
        "[",
        "]",
        "ENV A=1",
        "apiVersion: v1",
        "kind: Pod",
        "services:",
        "  x:",
        "    command: vllm serve a/b",
        "image: vllm/vllm-openai",
        "args:",
        "- ",
        "{",
        "}",
        ": ",
        "*a",
        "&a",
        "<<EOF",
        "EOF",
        "[Service]",
        "ExecStart=",
        "docker run",
        "--gpus",
        "ollama run x",
        "python -m sglang.launch_server",
        "llama-server -m",
        "x.gguf",
        "--config",
        "=",
        "\t",
        "#",
        "$(",
        "`",
        "-",
        "--",
        "\x00",
        "\x1b[0m",
        "é",
        "9" * 30,
        "exec",
        "A=(",
        "A+=(",
        "${A[@]}",
        "if",
        "fi",
        "case",
        "esac",
        "tmux",
        "<<: *a",
        "extraArgs:",
        "%h",
        "env",
        "sh -c",
    ]
)


@given(
    st.lists(words, max_size=30),
    st.sampled_from([" ", "", "\n"]),
    st.sampled_from(["x.sh", "Dockerfile", "x.yaml", "x.service", ""]),
)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_kvplan_errors_come_out(tmp_path: Path, parts: list[str], glue: str, name: str) -> None:
    text = glue.join(parts)
    if name:
        path = tmp_path / name
        path.write_bytes(text.encode())
        text = str(path)
    if name or is_command(text):
        assert outcome(text).isprintable()


@given(st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_manifests(tmp_path: Path, data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(sorted(MANIFESTS.iterdir())))
    content = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        size = data.draw(st.integers(0, 12))
        content[at : at + size] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"'", b'"', b"$", b"{", b"\n", b"- ", b"&a ", b"*a"])
        )
        if not content:
            return
    path = tmp_path / source.name
    path.write_bytes(bytes(content))
    picked = data.draw(st.sampled_from(["#llm", "#vllm", "#server", "#3", ""]))
    assert outcome(f"{path}{picked}").isprintable()
