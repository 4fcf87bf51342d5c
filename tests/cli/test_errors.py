"""Whatever is typed: one line that says what is wrong, one that says what to type, status 2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.cli import app as app_module
from kvplan.cli import output, place

from .conftest import Run, one_line_error

PLAN = ("plan", "llama-3.1-8b", "--gpu", "h100-sxm")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("plam",), "unknown command 'plam'", "did you mean plan?"),
        (("meta-llama/Llama-3.1-8B",), "unknown command", "kvplan plan meta-llama/Llama-3.1-8B"),
        (("--helpp",), "unknown option '--helpp'", "did you mean --help?"),
        (("models", "lst"), "unknown command 'lst'", "did you mean list?"),
        (("models", "list", "--familly", "x"), "unknown option '--familly'", "did you mean --family?"),
        (("models", "show"), "MODEL is missing", "`kvplan models show --help`"),
        (("models", "show", "a", "b"), "unexpected extra argument", "`kvplan models show --help`"),
        (("formats", "--use"), "--use: needs a value", "`kvplan formats --help`"),
        (("formats", "--use", "--json"), "--use: needs a value", "`kvplan formats --help`"),
        (("formats", "--json=1"), "--json: takes no value", "type --json alone"),
        (("formats", "--format", "tabel"), "--format: unknown output format 'tabel'", "did you mean table?"),
        (("formats", "--json", "--format", "text"), "--json: contradicts --format text", "one of them"),
        (("formats", "--color", "blue"), "--color: unknown colour mode 'blue'", "auto, always, never"),
        (("formats", "-o", ""), "-o: needs a file name", "-o plan.json"),
        (("plan", "llama-3.1-8b", "-tpp", "4"), "unknown option '-tpp'", "did you mean"),
        (("validate", "llama-3.1-8b", "--gpu", "H100"), "unknown option '--gpu'", "--device chooses one"),
        (("plan", "llama-3.1-8b", "-tp4"), "unknown option '-tp4'", "did you mean -tp 4?"),
    ],
)
def test_usage_errors_are_one_line_and_a_hint(run: Run, words: tuple[str, ...], message: str, hint: str) -> None:
    said, advised = one_line_error(run(*words))
    assert message in said
    assert hint in advised


@pytest.mark.parametrize("words", [("plan", "{}"), ("{}",), ("formats", "{}"), ("--{}",), ("formats", "--use", "{}")])
def test_escape_sequences_never_reach_the_terminal(run: Run, words: tuple[str, ...]) -> None:
    hostile = "\x1b[31mx\x07\r\n\u202e\x9b" * 100
    said, _ = one_line_error(run(*(word.format(hostile) for word in words)))
    assert "\\x1b" in said
    assert len(said) < 2200


@pytest.mark.parametrize(
    "spelling", [("-tp", "4"), ("-tp=4",), ("--tensor-parallel-size=4",), ("--tensor_parallel_size", "4")]
)
def test_every_spelling_of_a_flag_is_the_same_flag(run: Run, spelling: tuple[str, ...]) -> None:
    done = run("plan", "llama-3.1-70b", "--gpu", "h100-sxm", "--max-model-len", "32K", *spelling, "--json")
    assert done.status == 0
    assert json.loads(done.out)["inputs"]["tensor_parallel_size"] == 4


def test_values_that_look_like_options_are_values(run: Run) -> None:
    done = run(*PLAN, "--max-model-len", "-1", "--json")
    assert done.status == 0
    assert json.loads(done.out)["inputs"]["max_model_len"] > 0


def test_a_short_option_takes_an_equals_sign(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "formats.json"
    assert run("formats", f"-o={target}").status == 0
    assert json.loads(target.read_text())["schema"] == "kvplan.formats/1"


def test_an_internal_error_is_one_line_and_debug_shows_where(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(output.Output, "emit", broken)
    said, hint = one_line_error(run("formats"))
    assert said == "internal error: ZeroDivisionError: of all things"
    assert "--debug" in hint
    done = run("formats", "--debug")
    assert done.status == 2
    assert "Traceback" in done.err
    assert "in broken" in done.err


@pytest.mark.parametrize(("failure", "status"), [(KeyboardInterrupt, 130), (MemoryError, 2), (RecursionError, 2)])
def test_interruption_and_exhaustion(
    run: Run, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException], status: int
) -> None:
    def stop(*_: object) -> None:
        raise failure

    monkeypatch.setattr(output.Output, "emit", stop)
    done = run("formats")
    assert done.status == status
    assert "Traceback" not in done.err


def test_ctrl_c_of_a_process_ends_with_130() -> None:
    code = (
        "import time, kvplan.cli.output as o; o.Output.emit = lambda *a, **k: (print(1, flush=True), time.sleep(30))\n"
    )
    code += "import sys; sys.argv[1:] = ['formats']; from kvplan.cli.main import entry; entry()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == b""


def test_a_reader_that_leaves_early_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "kvplan", "formats"], stdout=stdout, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_an_error(spawn: Run) -> None:
    with open("/dev/full", "w") as full:
        done = spawn("formats", stdout=full)
    said, _ = one_line_error(done)
    assert "cannot write to standard output" in said


def test_a_closed_stdout_is_an_error_and_a_closed_stderr_is_none(spawn: Run) -> None:
    code = "import sys; sys.argv[1:] = ['formats']; from kvplan.cli.main import entry; entry()"
    said, _ = one_line_error(spawn(code=f"import sys; sys.stdout = None; {code}"))
    assert "standard output is closed" in said
    assert spawn(code=f"import sys; sys.stderr = None; {code.replace('formats', 'nope')}").status == 2


def test_a_terminal_without_unicode_gets_escapes_not_a_traceback(spawn: Run) -> None:
    code = "from kvplan.cli.output import Output; from kvplan.render.grid import Notes\n"
    done = spawn(code=code + "Output(format='text').emit([Notes(['漢字 é'])], {})", env={"PYTHONIOENCODING": "ascii"})
    assert (done.status, done.out) == (0, "\\u6f22\\u5b57 \\xe9\n")


class TestFile:
    """``-o FILE``: whole or not at all."""

    @pytest.mark.parametrize(
        ("name", "start"),
        [("a.json", '{\n  "schema"'), ("a.md", "| name | bits |"), ("a.txt", "name "), ("a", "name ")],
    )
    def test_format_follows_the_suffix(self, run: Run, tmp_path: Path, name: str, start: str) -> None:
        done = run("formats", "fp8", "-o", str(tmp_path / name))
        assert (done.status, done.out) == (0, "")
        assert (tmp_path / name).read_text().startswith(start)
        assert os.listdir(tmp_path) == [name]

    def test_an_error_leaves_the_old_file_alone(self, run: Run, tmp_path: Path) -> None:
        target = tmp_path / "plan.json"
        target.write_text("old")
        one_line_error(run("plan", "no-such-model", "-o", str(target)))
        assert target.read_text() == "old"

    def test_a_failed_write_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target = tmp_path / "plan.json"
        target.write_text("old")

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(output.InputError, match="No space left"):
            place.write_file(str(target), "new")
        assert target.read_text() == "old"
        assert os.listdir(tmp_path) == ["plan.json"]

    def test_an_interrupt_right_after_the_file_is_in_place_stays_an_interrupt(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put = os.replace

        def interrupted(new: str, target: str) -> None:
            put(new, target)
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            place.write_file(str(tmp_path / "grid.csv"), "whole\n")
        assert [p.name for p in tmp_path.iterdir()] == ["grid.csv"]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
    def test_a_process_that_is_ended_leaves_the_old_file_alone(self, tmp_path: Path, number: signal.Signals) -> None:
        if signal.getsignal(number) is signal.SIG_IGN:
            pytest.skip("what runs these tests ignores this signal, and so does what they run")
        target = tmp_path / "old.csv"
        target.write_text("old")
        code = (
            "import sys, time, kvplan.cli.place as o\n"
            "with o.replacing(sys.argv[1]) as file:\n"
            "    file.write(b'new'); file.flush(); print(1, flush=True); time.sleep(30)\n"
        )
        command = [sys.executable, "-c", code, str(target)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert len(os.listdir(tmp_path)) == 2
            process.send_signal(number)
            assert process.wait(timeout=30) == -number
        assert os.listdir(tmp_path) == ["old.csv"]
        assert target.read_text() == "old"

    def test_signals_are_as_before_once_a_file_is_written(self, tmp_path: Path) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
        place.write_file(str(tmp_path / "a"), "text")
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("a.pdf", "prints .html"),
            ("b.PNG", "can be .json"),
            ("c.docx", ".html"),
            ("d.xlsx", "can be"),
            ("e.csv.gz", "compress"),
        ],
    )
    def test_what_is_not_written_here_is_refused(self, run: Run, tmp_path: Path, name: str, hint: str) -> None:
        message, said = one_line_error(run("formats", "fp8", "-o", str(tmp_path / name)))
        assert "-o: nothing is written as ." in message
        assert hint in said
        assert os.listdir(tmp_path) == []
        assert run("formats", "fp8", "-o", str(tmp_path / name), "--format", "text").status == 0
        assert os.listdir(tmp_path) == [name]

    @pytest.mark.parametrize("name", ["a.svg", "b.CSV", "c.jsonl", "d.parquet"])
    def test_a_suffix_of_other_answers_is_no_plain_text(self, run: Run, tmp_path: Path, name: str) -> None:
        message, said = one_line_error(run("validate", "llama-3.2-1b", "--device", "cpu", "-o", str(tmp_path / name)))
        assert f"-o: this answer is not written as .{name[2:].lower()}" in message
        assert "it can be .json" in said
        assert os.listdir(tmp_path) == []
        assert run("formats", "fp8", "-o", str(tmp_path / name), "--format", "text").status == 0

    def test_permissions_and_links_are_kept(self, tmp_path: Path) -> None:
        target, link = tmp_path / "real", tmp_path / "link"
        target.write_text("old")
        target.chmod(0o640)
        link.symlink_to(target)
        place.write_file(str(link), "new")
        assert link.is_symlink()
        assert target.read_text() == "new"
        assert target.stat().st_mode & 0o777 == 0o640

    def test_devices_are_written_not_replaced(self, run: Run) -> None:
        before = os.stat("/dev/null")
        assert run("formats", "-o", "/dev/null").status == 0
        assert os.stat("/dev/null").st_ino == before.st_ino

    @pytest.mark.parametrize("bad", ["{}", "{}/no/such/folder/x", "{}/" + "x" * 300, "{}/nul\0l"])
    def test_what_cannot_be_written_is_an_error(self, run: Run, tmp_path: Path, bad: str) -> None:
        said, _ = one_line_error(run("formats", "-o", bad.format(tmp_path)))
        assert said.startswith("-o: cannot write")

    def test_dash_is_stdout(self, run: Run) -> None:
        assert run("formats", "fp8", "-o", "-").out == run("formats", "fp8").out != ""


class TestColor:
    """Flag over environment over terminal."""

    @pytest.mark.parametrize(
        ("words", "env", "colored"),
        [
            ((), {}, False),
            (("--color", "always"), {}, True),
            (("--color", "always"), {"NO_COLOR": "1"}, True),
            ((), {"FORCE_COLOR": "1"}, True),
            ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
            ((), {"NO_COLOR": "", "FORCE_COLOR": "1"}, True),
            (("--color", "never"), {"FORCE_COLOR": "1"}, False),
            (("--color", "always", "--json"), {}, False),
        ],
    )
    def test_who_decides(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], env: dict[str, str], colored: bool
    ) -> None:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        assert ("\x1b[" in run("formats", "fp8", *words).out) is colored

    def test_a_terminal_gets_a_coloured_table_unless_it_is_dumb(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        monkeypatch.setattr(sys, "stdout", type("Tty", (), {"isatty": lambda self: True, "encoding": "utf-8"})())
        monkeypatch.setenv("TERM", "xterm")
        assert (output.Output().format, output.Output().color) == ("table", True)
        monkeypatch.setenv("TERM", "dumb")
        assert output.Output().color is False


def test_piped_output_is_text(run: Run) -> None:
    assert run("formats", "fp8").out == run("formats", "fp8", "--format", "text").out


def test_quiet_silences_notes_and_warnings_but_no_errors(run: Run, tmp_path: Path) -> None:
    assert run("formats", "-o", str(tmp_path / "a")).err.startswith("wrote ")
    assert run("formats", "-q", "-o", str(tmp_path / "a")).err == ""
    assert run("formats", "-q", "nope").err.startswith("error: ")


def test_a_fast_start_does_not_outlive_a_long_run(spawn: Run) -> None:
    """Exit handlers still run although the process ends without taking the interpreter down."""
    code = "import atexit, sys; atexit.register(print, 'handler'); sys.argv[1:] = ['--version']\n"
    done = spawn(code=code + "from kvplan.cli.main import entry; entry()")
    assert done.status == 0
    assert done.out.endswith("\nhandler\n")


class TestHelp:
    def test_alone_it_shows_how_to_start(self, run: Run) -> None:
        done = run()
        assert (done.status, done.err) == (0, "")
        assert len(done.out.splitlines()) < 24  # lines of a terminal, and the prompt
        assert max(map(len, done.out.splitlines())) <= 80
        for verb in app_module.VERBS:
            assert verb in done.out

    @pytest.mark.parametrize("words", [(), *((verb,) for verb in app_module.VERBS)])
    @pytest.mark.parametrize("flag", ["--help", "-h"])
    def test_help_is_plain_text_on_stdout(self, run: Run, words: tuple[str, ...], flag: str) -> None:
        done = run(*words, flag)
        assert (done.status, done.err) == (0, "")
        assert done.out.startswith(f"Usage: kvplan {' '.join(words)}".rstrip())
        assert "\x1b" not in done.out
        assert "─" not in done.out
        assert max(map(len, done.out.splitlines())) <= 100

    def test_help_lists_every_verb_and_nothing_else(self, run: Run) -> None:
        listed = run("--help").out.partition("Commands:\n")[2].splitlines()
        assert [line.split()[0] for line in listed if line.startswith("  ") and line[2] != " "] == list(
            app_module.VERBS
        )

    def test_version(self, run: Run) -> None:
        from kvplan import __version__

        assert run("--version").out == f"kvplan {__version__}\n"


def test_an_interruption_while_the_command_line_is_loaded_says_nothing() -> None:
    code = (
        "import os, signal, sys\n"
        "class Loader:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'kvplan.cli.app':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Loader())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kvplan.cli.main import entry\n"
        "entry()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
