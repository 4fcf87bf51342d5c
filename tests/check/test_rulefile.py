"""A rule file: what it may say, how files see each other, and that every mistake is said with its place."""

from __future__ import annotations

import pytest

from .conftest import Write, findings, problems, result, run

ONE = "deployments:\n  a: {model: llama-3.1-8b, gpu: h100-sxm}\n"


def settings(found: dict, name: str = "a") -> dict:
    return next(d["settings"] for d in found["deployments"] if d["name"] == name)


def test_a_deployment_is_fields_or_a_command_line(write: Write) -> None:
    write("""
        deployments:
          a: {model: llama-3.1-8b, gpu: h100-sxm, tp: 2, max-model-len: 32K, max_num_seqs: 64, enforce-eager: true}
          b:
            command: vllm serve llama-3.1-8b -tp 2 --max-model-len 32K --max-num-seqs 64 --enforce-eager
            gpu: h100-sxm
    """)
    found = result()
    assert settings(found, "a") == settings(found, "b")
    assert settings(found)["max_model_len"] == 32768
    assert settings(found)["tensor_parallel_size"] == 2
    assert settings(found)["enforce_eager"] is True
    assert "max_model_len" not in found["deployments"][0]["defaults"]
    assert "block_size" in found["deployments"][0]["defaults"]


def test_a_field_counts_over_the_command_line_and_both_over_defaults(write: Write) -> None:
    write("""
        defaults: {gpu: h100-sxm, max-model-len: 4K, max-num-seqs: 8, gpu-memory-utilization: 0.5, engine: sglang}
        deployments:
          a: {command: vllm serve llama-3.1-8b --max-model-len 16K --max-num-seqs 64, max-num-seqs: 32}
          b: {model: llama-3.1-8b, engine: vllm}
    """)
    found = result()
    a, b = settings(found, "a"), settings(found, "b")
    assert (a["max_model_len"], a["max_num_seqs"], a["gpu_memory_utilization"], a["engine"]) == (16384, 32, 0.5, "vllm")
    assert (b["max_model_len"], b["max_num_seqs"], b["engine"]) == (4096, 8, "vllm")


def test_null_and_false_take_a_default_back(write: Write) -> None:
    write("""
        defaults: {gpu: h100-sxm, max-model-len: 4K, enforce-eager: true}
        deployments:
          a: {model: llama-3.1-8b, max-model-len: null, enforce-eager: false}
    """)
    a = settings(result())
    assert (a["max_model_len"], a["enforce_eager"]) == (131072, False)


def test_a_default_that_an_engine_does_not_have_is_left_out_with_a_warning(write: Write) -> None:
    write("""
        defaults: {gpu: rtx-4090, max-num-batched-tokens: 4096}
        deployments:
          a: {model: qwen3-8b, engine: llama.cpp, weights: q4_k_m, ctx-size: 8K}
    """)
    found = result()
    assert any("max-num-batched-tokens" in text for text in found["deployments"][0]["warnings"])


def test_workloads_by_name_of_its_own_and_whose_settings_count(write: Write) -> None:
    write("""
        workloads:
          chat: {prompt-tokens: 2K, output-tokens: 500, concurrency: 32}
          rag: {prompt-tokens: 16K, concurrency: 8}
        defaults: {gpu: h100-sxm, workloads: [chat, rag], output-tokens: 100}
        rules: [{rule: inputs.concurrency <= 16, workloads: rag}]
        deployments:
          a: {model: llama-3.1-8b}
          b: {model: llama-3.1-8b, workloads: chat, concurrency: 4}
          c: {model: llama-3.1-8b, concurrency: 4, workloads: {own: {concurrency: 5}}}
          d: {model: llama-3.1-8b, workloads: []}
    """)
    found = result()
    loads = {
        d["name"]: [(w["name"], w["concurrency"], w["output_tokens"]) for w in d["workloads"]]
        for d in found["deployments"]
    }
    assert loads == {
        "a": [("chat", 32, 500), ("rag", 8, 100)],
        "b": [("chat", 4, 500)],
        "c": [("own", 5, 100)],
        "d": [(None, 1, 100)],
    }
    assert [(f["workload"], f["pass"]) for f in findings(found)] == [("rag", True)]


def test_included_files_and_those_that_include_them_see_each_other(write: Write) -> None:
    write(
        """
        include: [common.yaml, teams/a.yaml, teams/b.yaml]
        rules: [verdict.fits == true]
        """,
        common_yaml="""
        defaults: {gpu: h100-sxm, max-model-len: 8K, max-num-seqs: 8}
        workloads: {chat: {concurrency: 3}}
        rules: [kv.bytes_per_token <= 128 KiB]
        """,
        teams__a_yaml="""
        include: ../common.yaml
        defaults: {max-model-len: 16K}
        rules: [inputs.max_model_len >= 16K]
        deployments: {a: {model: llama-3.1-8b, workloads: chat}}
        """,
        teams__b_yaml="""
        include: ../common.yaml
        deployments: {b: {model: llama-3.1-8b}}
        """,
    )
    found = result()
    assert found["files"] == ["kvplan.yaml", "common.yaml", "teams/a.yaml", "teams/b.yaml"]
    assert (settings(found, "a")["max_model_len"], settings(found, "b")["max_model_len"]) == (16384, 8192)
    assert settings(found, "b")["max_num_seqs"] == 8
    rules = {d["name"]: sorted(f["rule"] for f in d["findings"]) for d in found["deployments"]}
    shared = ["kv.bytes_per_token <= 128 KiB", "verdict.fits == true"]
    assert rules == {"a": sorted([*shared, "inputs.max_model_len >= 16K"]), "b": shared}
    assert found["deployments"][0]["workloads"][0]["concurrency"] == 3
    at = {f["rule"]: (f["file"], f["line"], f["column"]) for f in found["deployments"][0]["findings"]}
    assert at["inputs.max_model_len >= 16K"] == ("teams/a.yaml", 5, 9)


def test_paths_start_from_the_file_that_says_them(write: Write) -> None:
    write(
        "include: sub/kvplan.yaml\n",
        sub__kvplan_yaml="deployments: {a: {from: 'm.yaml#vllm', gpu: h100-sxm}}\n",
        sub__m_yaml=(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n    - name: vllm\n"
            "      image: vllm/vllm-openai:v0.20.1\n      args: [--model, llama-3.1-8b, --max-model-len, '4096']\n"
        ),
    )
    assert settings(result())["max_model_len"] == 4096


def test_variables_only_where_they_are_named(write: Write) -> None:
    write("""
        environment: {LENGTH: 8K}
        deployments:
          a: {model: llama-3.1-8b, gpu: h100-sxm, max-model-len: "${LENGTH}"}
          b: {command: "vllm serve llama-3.1-8b --max-model-len ${LENGTH} --port ${PORT}", gpu: h100-sxm}
    """)
    assert [settings(result(), n)["max_model_len"] for n in "ab"] == [8192, 8192]
    found = result(env={"LENGTH": "4K", "PORT": "1", "OTHER": "x"})
    assert [settings(found, n)["max_model_len"] for n in "ab"] == [4096, 4096]
    assert found["environment"] == {"LENGTH": "4K"}
    write(f"environment: [NOT_THERE]\n{ONE}")
    assert "the variable NOT_THERE is not set" in problems()[0]
    write("deployments: {a: {model: llama-3.1-8b, gpu: '${GPU}'}}\n")
    found = problems(env={"GPU": "h100-sxm"})
    assert any(line.startswith("kvplan.yaml:2:46: the variable GPU is not named") for line in found)


def test_the_machine_does_not_speak_through_the_engines_variables(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    write(f"{ONE}")
    plain = result()
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert result() == plain


EACH = [
    ("deployments: {a: {model: llama-9, gpu: h100-sxm}}", "2:26: unknown model 'llama-9' (did you mean"),
    ("deployments: {a: {model: llama-3.1-8b, tp: true}}", "tp: true is no number"),
    ("deployments: {a: {model: llama-3.1-8b, gpu: h999}}", "2:45: unknown GPU 'h999'"),
    ("deployments: {a: {gpu: h100-sxm}}", "2:15: a says no model (give one of model, command, from)"),
    ("deployments: {a: {model: x, command: y z}}", "2:15: a has model and command"),
    ("deployments: {a: {model: vllm serve x}}", "starts an engine and is no model (use command:"),
    ("deployments: {a: {command: nothing}}", "'nothing' is no command line"),
    ("deployments: {a: {command: echo hello}}", "starts no engine"),
    ("deployments: {a: {from: gone.yaml}}", "2:25: gone.yaml does not exist"),
    ("deployments: [a]", "2:14: deployments is a mapping of names, not a list"),
    ("deployments: {a: 3}", "2:18: the deployment a is a mapping, not '3'"),
    (f"include: gone.yaml\n{ONE}", "2:10: includes gone.yaml, which does not exist"),
    (f"include: kvplan.yaml\n{ONE}", "2:10: includes go in a circle: kvplan.yaml -> kvplan.yaml"),
    (f"nonsense: 1\n{ONE}", "2:1: unknown key 'nonsense'"),
    (f"rule: [verdict.fits == true]\n{ONE}", "2:1: unknown key 'rule' (did you mean rules?)"),
    (f"rules: [[x]]\n{ONE}", "2:9: a rule is text, not a list"),
    (f"rules: [{{level: warn}}]\n{ONE}", "2:9: no rule"),
    (f"rules: [{{rule: verdict.fits == true, bound: worst}}]\n{ONE}", "2:45: bound is 'worst' (one of pessimistic,"),
    (f"rules: [{{rule: verdict.fits == true, workloads: [x]}}]\n{ONE}", "there is no workload 'x' (known: none)"),
    (f"defaults: [1]\n{ONE}", "2:11: defaults is a mapping, not a list"),
    (f"defaults: {{gpu-memory-utilization: 90}}\n{ONE}", "2:36: gpu-memory-utilization: '90' is not a share"),
    (f"defaults: {{hub: true}}\n{ONE}", "2:12: unknown key 'hub'"),
    (f"workloads: {{chat: {{tp: 2}}}}\n{ONE}", "2:20: unknown key 'tp'"),
    ("deployments: {a: {model: m, tp: 1, tensor-parallel-size: 2}}", "2:36: 'tensor-parallel-size' sets what another"),
    ("deployments: {a: {model: m, enforce-eager: maybe}}", "is neither true nor false"),
    ("deployments: {a: {model: llama-3.1-8b, gpu: h100-sxm, tp: 3}}", "2:59: llama-3.1-8b: query_heads (32)"),
    ("deployments: {a: {model: m}, a: {model: n}}", "2:30: 'a' is here twice (first on line 2)"),
    ("deployments:\n  <<: {a: 1}\n", "3:3: a merge key (<<)"),
    ("deployments:\n  a: !x {model: m}\n", "3:6: a tag (!x)"),
    ("deployments:\n\ta: 1\n", "3:1: a tab in the indentation"),
    ("deployments: {a: *nothing}", "undefined alias"),
    ("deployments: {", "is not YAML"),
    ("defaults: {}\n", "1:1: no deployments"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), EACH, ids=[m[:40] for _, m in EACH])
def test_a_mistake_says_where_what_and_what_to_write(write: Write, text: str, message: str) -> None:
    write(text)
    found = problems()
    assert any(message in line for line in found), found
    assert all(line.startswith("kvplan.yaml:") for line in found)


def test_all_mistakes_are_said_at_once_in_order(write: Write) -> None:
    write(
        """
        include: other.yaml
        rules: [verdict.fit == true, capacity.max_concurrency > x]
        deployments:
          a: {model: llama-9, gpu: h100-sxm, max-model-len: soon}
          b: {gpu: h100-sxm}
        """,
        other_yaml="deployments: {b: {model: llama-3.1-8b, gpu: h100-sxm}, c: {model: none-such}}\n",
    )
    found = problems()
    places = [line.split(": ")[0] for line in found]
    assert len(found) == 7
    assert len(set(places)) == 7
    keys = [(p.rsplit(":", 2)[0], *map(int, p.rsplit(":", 2)[1:])) for p in places]
    assert keys == sorted(keys)
    assert any("two deployments are called 'b'" in line for line in found)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("laughs", "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
            f"{b}: &{b} [{', '.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ), "aliases expand to more than 1,000 values"),
        ("itself", "a: &a {b: *a}\n", "nests deeper than"),
        ("deep", "a: " + "[" * 200 + "]" * 200 + "\n", "nests deeper than"),
        ("wide", "a: [" + "x, " * 60_000 + "x]\n", "holds more than 50,000 values"),
        ("documents", "a: 1\n---\nb: 2\n", "a second document begins here"),
    ],
)  # fmt: skip
def test_hostile_yaml_is_one_line(write: Write, name: str, text: str, message: str) -> None:
    write(text)
    found = problems()
    assert any(message in line for line in found)


@pytest.mark.parametrize("content", [b"\xff\xfea\x00", b"a: \x00", b"\xe9", b"", b"# nothing\n", b"- 1\n", b"3"])
def test_what_is_no_rule_file(write: Write, content: bytes) -> None:
    write("")
    with open("kvplan.yaml", "wb") as file:
        file.write(content)
    found = problems()
    assert len(found) == 1
    assert found[0].startswith("kvplan.yaml:1:1: ")


def test_a_rule_on_a_figure_without_a_value_is_broken_and_says_why(write: Write) -> None:
    write("""
        rules: [capacity.max_concurrency >= 1, kv.bytes_per_token <= 128 KiB]
        deployments: {a: {model: llama-3.1-8b}}
    """)
    first, second = findings(result())
    assert (first["pass"], first["value"], second["pass"]) == (False, None, True)
    assert first["message"] == "capacity.max_concurrency has no value: no GPU is named"


def test_identical_deployments_are_worked_out_once(write: Write) -> None:
    write("""
        defaults: {gpu: h100-sxm}
        rules: [capacity.max_concurrency >= 100]
        deployments: {a: {model: llama-3.1-8b}, b: {model: llama-3.1-8b}, c: {model: llama-3.1-8b, tp: 2}}
    """)
    checked = run()
    assert checked.worked[0] is checked.worked[1] is not checked.worked[2]
    assert len({f[0].fix for f in checked.findings[:2]}) == 1


def test_workloads_are_a_mapping_by_name(write: Write) -> None:
    write("""
        workloads: {"": {concurrency: 2}}
        deployments: {a: {model: llama-3.1-8b, gpu: h100-sxm, workloads: [{prompt-tokens: 2K}]}}
    """)
    said = problems()
    assert len(said) == 2
    assert "the name of a workload has 1 to" in said[0]
    assert "a workload is a name, not a mapping (write a mapping by name: " in said[1]


def test_a_variable_that_is_not_named_is_said_once(write: Write) -> None:
    write("""
        rules: ["capacity.max_concurrency >= ${HOME}"]
        deployments:
          a: {model: "${HOME}", gpu: "${HOME}", tp: "${HOME}"}
          b: {model: llama-3.1-8b, gpu: nope}
    """)
    said = problems()
    assert len(said) == 5
    assert all("the variable HOME is not named in the file" in text for text in said[:4])
    assert "nope" in said[4]
