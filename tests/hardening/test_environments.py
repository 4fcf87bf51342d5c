"""Where it runs: pipes that close, disks that are full, folders that cannot be written, odd locales and terminals."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvplan.cli.app import VERBS

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
PLAN = ("plan", "llama-3.1-8b", "--gpu", "h100-sxm")
LINES: tuple[tuple[str, ...], ...] = (
    PLAN,
    (*PLAN, "--json"),
    ("explain", "gemma-3-27b"),
    ("sweep", "llama-3.1-8b", "--gpu", "h200", "--vary", "tp=1,2", "--format", "csv"),
    ("fit", "llama-3.1-8b", "--gpu", "l40s", "--max-gpus", "1"),
    ("compare", "llama-3.1-8b", "qwen3-8b"),
    ("models", "list"),
    ("models", "show", "llama-3.1-8b"),
    ("models", "import", str(DATA / "sample-model.yaml")),
    ("gpus", "list"),
    ("engines",),
    ("log", str(DATA / "logs" / "vllm-0.31.0-llama-3.1-8b.log"), "--gpu", "a100-sxm4-80gb"),
    ("simulate", "llama-3.1-8b", "--gpu", "h200", "--trace", str(DATA / "traces" / "azure_59.csv"), "--limit", "3"),
    ("trace", "describe", str(DATA / "traces" / "azure_59.csv")),
    ("check", str(ROOT / "examples" / "vllm-kubernetes" / "kvplan.yaml")),
    ("diff", "a.json", "a.json"),
    ("formats",),
    ("completion", "bash"),
    ("plan", "--help"),
    (),
)
"""A command line for every verb that prints, and for what is printed without one."""


class Done(NamedTuple):
    """How a process ended."""

    status: int
    out: bytes
    err: str


def kvplan(*words: str, shell: str = 'exec "$@"', env: dict[str, str | None] | None = None, **how: Any) -> Done:
    """Run ``python -m kvplan`` below a shell that redirects what it says."""
    variables: dict[str, str | None] = {
        **os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": None, "FORCE_COLOR": None, **(env or {}),
    }  # fmt: skip
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **how}
    command = ["sh", "-c", shell, "sh", sys.executable, "-m", "kvplan", *words]
    kept = {name: text for name, text in variables.items() if text is not None}
    done = subprocess.run(command, env=kept, timeout=60, check=False, **settings)
    return Done(done.returncode, done.stdout or b"", (done.stderr or b"").decode())


def refused(done: Done) -> str:
    """The message of a command that failed as all should."""
    heads = [line.partition(":")[0] for line in done.err.splitlines()]
    assert done.status == 2, done
    assert heads in (["error"], ["error", "hint"]), done.err
    return done.err.splitlines()[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the result of a check in it."""
    made = tmp_path_factory.mktemp("here")
    assert kvplan(*next(x for x in LINES if x[:1] == ("check",)), "-o", "a.json", cwd=made).status == 0
    return made


def test_each_verb_that_prints_has_a_command_line() -> None:
    assert {words[0] for words in LINES if words} == set(VERBS) - {"validate"}


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(words: tuple[str, ...], folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = kvplan(*words, cwd=folder, stdout=write)
    finally:
        os.close(write)
    assert done.status in (0, 1), done
    assert "error" not in done.err
    assert "Exception" not in done.err
    assert "Broken" not in done.err


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_full_disk_behind_standard_output_is_said(words: tuple[str, ...], folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        assert "No space left on device" in refused(kvplan(*words, cwd=folder, stdout=full))


@pytest.mark.parametrize(
    "words",
    [
        PLAN, (*PLAN, "--json"), ("sweep", "llama-3.1-8b", "--vary", "tp=1,2", "--format=csv"), (), ("--version",),
        ("validate", "--help"), ("models", "-h"),
    ],
)  # fmt: skip
def test_a_closed_standard_output_is_said(words: tuple[str, ...]) -> None:
    assert "standard output is closed" in refused(kvplan(*words, shell='exec "$@" >&-'))


def test_closed_streams_do_no_harm(folder: Path) -> None:
    assert kvplan("plan", "llama-3.1-8b", "--json", shell='exec "$@" <&- 2>&-').status == 0
    assert kvplan("plan", "no-such-model", shell='exec "$@" 2>&-') == Done(2, b"", "")
    assert "standard input" in refused(kvplan("log", "-", shell='exec "$@" <&-'))
    assert kvplan("check", "--help", shell='exec "$@" <&- >&- 2>&-') == Done(2, b"", "")


@pytest.mark.parametrize("name", ["plan.json", "plan.html", "plan.md"])
def test_a_file_that_does_not_fit_the_disk_is_not_written(tmp_path: Path, name: str) -> None:
    def little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    (tmp_path / name).write_text("as it was")
    message = refused(kvplan(*PLAN, "-q", "-o", name, cwd=tmp_path, preexec_fn=little))
    assert "cannot write" in message
    assert name in message
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "as it was")]


MOUNTS = 'mount -t tmpfs -o size=16k none "$PWD" && cd "$PWD" && "$@"; status=$?; ls -A >&2; exit $status'
READ_ONLY = 'mount --bind "$PWD" "$PWD" && mount -o remount,ro,bind "$PWD" && cd "$PWD" && exec "$@"'


@pytest.fixture(scope="module")
def unshare(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A shell line run where it may mount; skips where nothing may."""

    def wrapped(line: str) -> str:
        return f"exec unshare -m sh -c '{line}' sh \"$@\""

    tried = ["sh", "-c", wrapped(READ_ONLY), "sh", "true"]
    if subprocess.run(tried, cwd=tmp_path_factory.mktemp("mount"), capture_output=True, check=False).returncode:
        pytest.skip("mounting needs a right that this user has not")
    return wrapped


def test_a_file_system_that_is_full_keeps_nothing_half_done(tmp_path: Path, unshare: Callable[[str], str]) -> None:
    done = kvplan(*PLAN, "-q", "-o", "plan.html", cwd=tmp_path, shell=unshare(MOUNTS))
    assert "No space left on device" in refused(done)  # and `ls` has shown no file after it
    assert kvplan(*PLAN, "-q", "-o", "plan.json", cwd=tmp_path, shell=unshare(MOUNTS)).err == "plan.json\n"


@pytest.fixture
def locked(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """A folder that this user cannot write to: by its mode, or as root by a mount."""
    (tmp_path / "spec.yaml").write_bytes((DATA / "sample-model.yaml").read_bytes())
    if os.geteuid() == 0:
        yield {"cwd": tmp_path, "shell": request.getfixturevalue("unshare")(READ_ONLY)}
        return
    tmp_path.chmod(0o555)
    yield {"cwd": tmp_path}
    tmp_path.chmod(0o755)


def test_a_folder_that_cannot_be_written_is_read_all_the_same(locked: dict[str, Any]) -> None:
    assert kvplan("plan", "spec.yaml", "--json", env={"PYTHONDONTWRITEBYTECODE": None}, **locked).status == 0
    assert kvplan("models", "lint", "spec.yaml", **locked).status == 0
    assert "cannot write out.json" in refused(kvplan("plan", "spec.yaml", "-q", "-o", "out.json", **locked))
    assert "cannot write" in refused(kvplan("check", "--init", **locked))


@pytest.mark.parametrize("home", [None, "/nonexistent", "", "/dev/null"])
def test_a_home_that_is_not_there_is_not_needed(home: str | None, folder: Path) -> None:
    env = {"HOME": home, "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None, "TMPDIR": "/nonexistent"}
    assert kvplan(*PLAN, "--json", cwd=folder, env=env).status == 0
    assert "cannot be read" in refused(kvplan("plan", "~/no/such.yaml", env=env))
    assert "cannot write" in refused(kvplan(*PLAN, "-q", "-o", "/nonexistent/x.json", env=env))


LOCALES = [
    {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "tr"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"PYTHONIOENCODING": "cp1252"},
    {"PYTHONIOENCODING": "ascii:strict"},
]


@cache
def _in_utf8(*words: str) -> Done:
    return kvplan(*words, env={"PYTHONIOENCODING": "utf-8"})


@pytest.mark.parametrize("env", LOCALES, ids=str)
@pytest.mark.parametrize(
    "words",
    [(*PLAN, "--format", "table"), ("gpus", "show", "模型-İ4")],
    ids=" ".join,
)
def test_an_encoding_that_lacks_a_letter_gets_another_one(env: dict[str, str], words: tuple[str, ...]) -> None:
    plain = _in_utf8(*words)
    done = kvplan(*words, env={**env})
    assert done.status == plain.status
    assert "internal error" not in done.err
    if "ascii" in str(env) or "C" in env.values():
        assert done.out.isascii()
        assert done.err.isascii()
    assert len(done.out.splitlines()) == len(plain.out.splitlines())


def test_bars_are_drawn_in_ascii_where_that_is_all_there_is() -> None:
    bars = kvplan(*PLAN, "--format", "table", env={"PYTHONIOENCODING": "ascii"}).out.decode("ascii")
    assert "\\u" not in bars
    assert "#" in bars
    assert "█" in kvplan(*PLAN, "--format", "table", env={"PYTHONIOENCODING": "utf-8"}).out.decode()


@pytest.mark.parametrize("columns", ["20", "40", "0", "-5", "x", "100000"])
def test_any_width_of_a_terminal_will_do(columns: str) -> None:
    for words in (PLAN, ("explain", "gemma-3-27b"))[: 2 if columns == "20" else 1]:
        done = kvplan(*words, "--format", "table", env={"COLUMNS": columns})
        assert done.status == 0, done.err
        if columns in ("20", "40"):
            pasted = ("vllm serve ", "kvplan ")  # commands to paste are not broken
            lines = [line for line in done.out.decode().splitlines() if not line.strip().startswith(pasted)]
            assert max(map(len, lines)) <= int(columns)


@pytest.mark.parametrize(
    ("env", "colour"),
    [
        ({"TERM": "dumb", "FORCE_COLOR": None}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
    ],
)
def test_colour_is_where_it_was_asked_for(env: dict[str, str | None], colour: bool) -> None:
    assert (b"\x1b[" in kvplan(*PLAN, "--format", "table", env=env).out) == colour
    assert ("\x1b[" in kvplan("plan", "no-such-model", env=env).err) == colour


def _windows(text: bytes) -> list[bytes]:
    """What editors and shells of Windows make of a text file."""
    lines = text.replace(b"\n", b"\r\n")
    return [lines, b"\xef\xbb\xbf" + text, b"\xef\xbb\xbf" + lines, lines.decode().encode("utf-16")]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("sample-model.yaml", ("plan", "f.yaml")),
        ("sample-gpu.yaml", ("gpus", "lint", "f.yaml")),
        ("manifests/deployment.yaml", ("plan", "f.yaml")),
        ("manifests/serve-vllm.sh", ("plan", "f.sh")),
        ("logs/vllm-0.31.0-llama-3.1-8b.log", ("log", "f.log", "--gpu", "a100-sxm4-80gb")),
        ("traces/azure_59.csv", ("trace", "describe", "f.csv")),
        ("traces/mooncake_150.jsonl", ("trace", "describe", "f.jsonl")),
    ],
)
def test_text_files_of_windows_are_read(source: str, words: tuple[str, ...], tmp_path: Path) -> None:
    target = tmp_path / next(word for word in words if word.startswith("f."))
    original = (DATA / source).read_bytes()
    target.write_bytes(original)
    plain = kvplan(*words, "--json", cwd=tmp_path)
    assert plain.status in (0, 1), plain.err
    for data in _windows(original):
        target.write_bytes(data)
        done = kvplan(*words, "--json", cwd=tmp_path)
        if b"\0" in data and b"UTF-16" in done.out + done.err.encode():
            assert done.status in (1, 2)  # 1: what a linter found
            continue
        assert done.status == plain.status, (data[:9], done.err)
        assert json.loads(done.out).keys() == json.loads(plain.out).keys()
        assert json.loads(done.out).get("capacity") == json.loads(plain.out).get("capacity")


@pytest.mark.parametrize("path", ["C:\\models\\x.yaml", "C:\\models\\x", "\\\\host\\share\\x.gguf", "models\\x.yaml"])
def test_paths_of_windows_are_refused_by_their_name(path: str) -> None:
    assert path.rpartition("\\")[2] in refused(kvplan("plan", path))
    assert path.rpartition("\\")[2] in refused(kvplan("plan", f"llama-server.exe -m {path} -c 4096"))
