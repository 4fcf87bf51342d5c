"""What people type first, and that the hint is what they should have typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run, one_line_error

PLAN = ("plan", "qwen3-32b")
TWO = "--gpu l40s -tp 2"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        *(((*PLAN, "--gpu", name), "unknown GPU", TWO)
          for name in ("2xl40s", "2x l40s", "2 x L40S", "l40s:2", "l40sx2", "l40s*2", "l40s,l40s")),
        ((*PLAN, "--gpu", "2"), "unknown GPU '2'", "--gpu NAME -tp 2"),
        ((*PLAN, "--gpu", "24GB"), "unknown GPU '24GB'", "for a card of that size: --gpu-memory 24GB"),
        ((*PLAN, "--gpu", "l40s,h100-sxm"), "unknown GPU", "kvplan sweep --vary gpu=l40s,h100-sxm"),
        ((*PLAN, "--gpu", "l40s", "--gpu", "l40s"), "--gpu: is there twice", "-tp 2"),
        ((*PLAN, "--num-gpus", "2"), "'--num-gpus'", "it is called --tensor-parallel-size here"),
        ((*PLAN, "--hf-overrides", "{}"), "'--hf-overrides'", 'kvplan plan "vllm serve MODEL --hf-overrides ..."'),
        ((*PLAN, "--rope-scaling={}"), "'--rope-scaling'", 'kvplan plan "vllm serve MODEL --rope-scaling ..."'),
        (("plan", "vllm", "serve", "Qwen/Qwen3-32B", "-tp", "2"), "one argument", '"vllm serve Qwen/Qwen3-32B ..."'),
        (("plan", "vllm", "serve", "x", "--port", "1"), "one argument", '"vllm serve x ..."'),
        ((*PLAN, "l40s"), "'l40s'", "kvplan plan qwen3-32b --gpu l40s"),
        ((*PLAN, "-tp", "2", "l40s", "--enforce-eager"), "'l40s'", "kvplan plan qwen3-32b --gpu l40s"),
        ((*PLAN, "nothing"), "unexpected extra argument", "--help"),
        (("plan", "Qwen3 32B"), "unknown model 'Qwen3 32B'", "did you mean qwen3-32b?"),
        (("plan", "make me a plan"), "starts no engine", "vllm serve"),
        ((*PLAN, "--engine", "vllm==0.20.0"), "--engine: 'vllm==0.20.0'", "type vllm@0.20.0"),
        ((*PLAN, "--gpu-memory", "48Gi"), "unknown unit 'Gi'", "type 48GiB"),
        ((*PLAN, "--gpu-memory-utilization", "95%"), "'95%'", "type --gpu-memory-utilization 0.95"),
        (("gpus", "l40s"), "unknown command", "kvplan gpus list l40s"),
        (("models", "qwen3"), "unknown command", "kvplan models list qwen3"),
        (("check", "-f", "kvplan.yaml"), "'-f'", "kvplan check kvplan.yaml"),
        (("check", "--report", "junit"), "names no file", "--report junit=FILE"),
        (("completion", "tcsh"), "unknown shell", "bash, zsh, fish, powershell"),
        (("plan", "OLLAMA_NUM_PARALLEL=x ollama run qwen3:8b"), "OLLAMA_NUM_PARALLEL", "OLLAMA_NUM_PARALLEL=8"),
        (("engines", "zzz"), "unknown engine 'zzz'", "known: vllm"),
        (("plan", r"C:\models\Qwen3-32B"), "no such file or folder", "check the path"),
    ],
)  # fmt: skip
def test_what_was_meant_is_in_the_hint(run: Run, words: tuple[str, ...], message: str, hint: str) -> None:
    said, advised = one_line_error(run(*words))
    assert message in said
    assert hint in advised


def test_nothing_is_near_to_a_dash(run: Run) -> None:
    assert "did you mean" not in one_line_error(run("plan", "-"))[1]
    assert not one_line_error(run("engines", "zzz"))[0].count("--engine")


RULES = "schema: kvplan.rules/1\ndeployments:\n  a:\n    model: qwen3-32b\n"
MANIFEST = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {}\n"


@pytest.mark.parametrize(
    ("name", "text", "words", "message", "hint"),
    [
        ("kvplan.yaml", RULES, ("plan",), "kvplan.rules/1", "kvplan check"),
        ("deployment.yaml", MANIFEST, ("check",), "no rule file", "from: deployment.yaml"),
        ("bad.yaml", f"{RULES}    context: 8192\n", ("check",), "unknown key 'context'", "did you mean max-model-len?"),
        ("empty.yaml", "", ("plan", "qwen3-32b", "--gpu"), "the file is empty", "kvplan gpus show ID --json"),
        ("empty.yaml", "", ("plan",), "the file is empty", "kvplan models import ID"),
        ("empty.gguf", "", ("plan",), "the file is empty", "downloaded whole"),
    ],
)
def test_a_file_of_another_kind(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, words: tuple[str, ...],
    message: str, hint: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text, encoding="utf-8")
    done = run(*words, name)
    assert done.status == 2
    assert message in done.err
    assert hint in done.err


def test_a_report_that_cannot_be_written_names_its_flag(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kvplan.yaml").write_text(f"{RULES}    rules: kv.bytes_per_token > 0\n", encoding="utf-8")
    Path("folder").mkdir()
    assert "--report: cannot write folder" in one_line_error(run("check", "--report", "junit=folder"))[0]


def test_idle_gpus_are_told_how_to_work(run: Run) -> None:
    assert "type -tp 2 to split" in run("plan", "qwen3-32b", "--gpu", "l40s", "--gpus", "2").err
    assert "type -tp" not in run("plan", "qwen3-32b", "--gpu", "l40s", "--gpus", "3", "-pp", "2").err


def test_help_offers_no_json_where_there_is_none(run: Run) -> None:
    assert "--json" not in run("completion", "--help").out
    assert "--json" in run("formats", "--help").out


def test_tables_say_how_long_a_request_is(run: Run) -> None:
    words = ("compare", "llama-3.1-8b", "qwen3-32b")
    assert "of 1,024 prompt + 256 output tokens" in run(*words).out
    assert "of 5,000 prompt + 256 output tokens" in run(*words, "--prompt-tokens", "5000").out
    assert "of prompt and output tokens" in run(*words, "--vary", "prompt-tokens=1K,2K").out
    swept = run("sweep", "llama-3.1-8b", "--gpu", "l40s", "--vary", "tp=1,2").out
    assert "requests: of prompt and output tokens at once" in swept


def test_explain_takes_a_command_line(run: Run) -> None:
    line = "vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8 -tp 2 --max-model-len 8K"
    plain = run("explain", "qwen3-32b", "--kv-cache-dtype", "fp8", "--max-model-len", "8192", "--json")
    assert run("explain", line, "--json").out == plain.out
    assert "kv_cache_dtype fp8" in run("explain", line).err
    over = run("explain", line, "--kv-cache-dtype", "bf16", "--json").out
    assert over == run("explain", "qwen3-32b", "--kv-cache-dtype", "bf16", "--max-model-len", "8192", "--json").out


def test_diff_names_the_setting_and_breaks_no_name(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, length in (("a", "8K"), ("b", "16K")):
        text = f"{RULES}    gpu: h200-sxm\n    max-model-len: {length}\n    rules: capacity.max_concurrency > 1\n"
        Path("kvplan.yaml").write_text(text, encoding="utf-8")
        assert run("check", "--write-baseline", f"{name}.json").status == 0
    for form in ("text", "table"):
        out = run("diff", "a.json", "b.json", "--format", form).out
        assert "a: max-model-len 8192 -> 16384" in out
        assert "capacity.max_concurrency" in out


def test_the_way_to_a_longer_context_keeps_what_was_asked_for(run: Run) -> None:
    """The line that stretches a model repeats the cache's format and the ranks."""
    done = run("plan", "qwen3-32b", "--gpu", "l40s", "-tp", "2", "--max-model-len", "64K", "--kv-cache-dtype", "fp8")
    typed = done.err.partition('kvplan plan "')[2].partition('" --gpu l40s')[0].replace('\\"', '"')
    assert " --kv-cache-dtype fp8 " in typed
    again = run("plan", typed, "--gpu", "l40s", "--json")
    assert again.status == 0
    plain = json.loads(again.out)
    assert (plain["inputs"]["kv_cache_dtype"], plain["inputs"]["max_model_len"]) == ("fp8", 65_536)


def test_the_way_to_a_longer_context_keeps_the_device(run: Run) -> None:
    for model, card in (("qwen3-32b", ("--gpu-memory", "48GB")), ("llama-3.1-8b", ("--gpu", "l40s"))):
        err = run("plan", model, *card, "-tp", "2", "--max-model-len", "200K", "--engine", "vllm@0.20.0").err
        assert "--tensor-parallel-size 2 --max-model-len 204800 --hf-overrides" in err
        card = tuple("48000000000B" if word == "48GB" else word for word in card)
        assert err.rstrip().endswith(f"{' '.join(card)} --engine vllm@0.20.0")
    err = run("plan", "qwen3-32b", "--gpu-memory", "48GB", "--max-model-len", "64K").err
    assert err.rstrip().endswith("--gpu-memory 48000000000B")


def test_one_token_is_one_token(run: Run) -> None:
    assert "of 1 token\n" in run("plan", "llama-3.1-8b", "--gpu", "l40s", "--engine", "sglang").out


def test_help_offers_several_engines_where_a_verb_takes_them(run: Run) -> None:
    for verb in ("plan", "sweep", "compare"):
        assert "sets them side by side" in " ".join(run(verb, "--help").out.split())
    for verb in ("log", "simulate", "validate"):
        words = " ".join(run(verb, "--help").out.split())
        assert "--engine NAME" in words
        assert "side by side" not in words.partition("Engine:")[2]


def test_a_single_format_is_no_choice(run: Run) -> None:
    assert "--format NAME text, whatever it is written to" in " ".join(run("completion", "--help").out.split())


def test_what_the_cache_would_hold_is_no_promise_where_it_does_not_start(run: Run) -> None:
    said = "by the cache alone; the verdict says what stands in the way"
    assert said in run("plan", "qwen3-32b", "--gpu", "h100-sxm", "--format", "text").out
    assert said not in run("plan", "qwen3-8b", "--gpu", "h100-sxm", "--format", "text").out
