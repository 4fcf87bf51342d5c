"""What engines share, by hand: texts of flags, what a command changes of a model, splits, terms, releases."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from at_random import plain, worked

from kvplan import load_model
from kvplan.engines import common
from kvplan.engines.base import Settings, Stage
from kvplan.engines.command_line import Word
from kvplan.engines.model_changes import ModelChanges, Rope, factor_context, factor_rule, from_config, read_json
from kvplan.engines.options import READERS, quoted
from kvplan.engines.versions import at_least, version_key
from kvplan.errors import InputError
from kvplan.units import GIB, MIB

# ---- texts of flags ----


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("count", "1", 1), ("count", " 8 ", 8), ("count", "1125899906842624", 1 << 50), ("count", "1,024", 1024),
        ("share", "1", 1.0), ("share", "0.9", 0.9), ("share", "1e-9", 1e-9), ("tokens_or_zero", "0", 0),
        ("tokens_or_zero", "8192", 8192), ("max_model_len", "-1", -1), ("max_model_len", "auto", -1),
        ("max_model_len", "131072", 131_072), ("engine_bytes", "1GiB", GIB), ("engine_bytes", "25g", 25 * 10**9),
        ("engine_bytes", "25G", 25 * GIB), ("engine_bytes", "25GB", 25 * 10**9), ("text", " a ", "a"),
        ("seconds", "0.5", 0.5), ("seconds", "30ms", 0.03), ("seconds", "2s", 2.0), ("seconds", "5us", 5e-6),
        ("per_second", "300/min", 5.0), ("per_second", "3600/h", 1.0), ("per_second", "5/s", 5.0),
        ("per_second", "5", 5.0), ("number", "0", 0.0), ("number", "0.0", 0.0), ("number", "0.8", 0.8),
        ("texts", "a,b,a", ("a", "b")), ("prices", "2.5", ((None, 2.5),)),
        ("prices", "h100-sxm=$2.5,l4=1", (("h100-sxm", 2.5), ("l4", 1.0))),
    ],
)  # fmt: skip
def test_read(kind: str, text: str, value: Any) -> None:
    found = READERS[kind](text, "--flag")
    assert found == (pytest.approx(value) if isinstance(value, float) else value)
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "says", "hint"),
    [
        ("count", "0", "0 is too small", "at least 1"), ("count", "-1", "not a whole number above 0", "--flag 8"),
        ("count", "1125899906842625", "absurdly large", "check"), ("count", "9" * 17, "absurdly large", "check"),
        ("count", "1.5", "not a whole number", "--flag 8"), ("count", "", "not a whole number", "--flag 8"),
        ("count", "\u0661", "not a whole number", "--flag 8"),
        ("share", "0", "not a share", "such as --flag 0.9"), ("share", "1.0001", "not a share", "type --flag 1"),
        ("share", "9.99", "not a share", "type --flag 1"), ("share", "10", "not a share", "type 0.1"),
        ("share", "100", "not a share", "type 1"), ("share", "101", "not a share", "such as --flag 0.9"),
        ("share", "90%", "not a share", "type --flag 0.9"), ("share", "100%", "not a share", "type --flag 1"),
        ("share", "101%", "not a share", "such as"), ("share", "0%", "not a share", "such as"),
        ("share", "x", "not a share", "such as"), ("engine_bytes", "x", "not a size", "40GiB, 40GB or 42949672960"),
        ("text", " ", "needs a value", "--flag NAME"), ("texts", "a,,b", "needs a value", "--flag NAME"),
        ("seconds", "0", "not a time above 0", "--flag 0.5, or 500ms"), ("seconds", "5h", "not a time", "0.5"),
        ("seconds", "1_0", "not a time", "0.5"), ("per_second", "1/d", "not a rate above 0", "300/min"),
        ("number", "-1", "not a number above 0", "0.8"), ("number", "1000000000000", "not a number", "0.8"),
        ("prices", "=2", "names no GPU", "--flag h100-sxm=2.5"), ("prices", "h100=0", "not a price above 0", "2.5"),
    ],
)  # fmt: skip
def test_not_read(kind: str, text: str, says: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        READERS[kind](text, "--flag")
    assert says in str(caught.value)
    assert hint in caught.value.hint
    assert str(caught.value).startswith("--flag")


def test_a_variable_is_set_with_an_equals_sign() -> None:
    with pytest.raises(InputError) as caught:
        READERS["count"]("x", "VARIABLE")
    assert caught.value.hint.startswith("VARIABLE=8")


@pytest.mark.parametrize(
    ("text", "word"),
    [("a-b_c.d/e=f,g:h+i%j@k1", "a-b_c.d/e=f,g:h+i%j@k1"), ("", "''"), ("a b", "'a b'"), ("it's", "'it'\"'\"'s'"),
     ("ä", "'ä'"), ("$x", "'$x'")],
)  # fmt: skip
def test_words_of_a_shell(text: str, word: str) -> None:
    import shlex

    assert quoted(text) == word
    assert shlex.split(word) == [text]


# ---- releases ----


@pytest.mark.parametrize(
    ("text", "key"),
    [("4.57.6", (4, 57, 6)), ("0.5.6.post1", (0, 5, 6)), ("1.3rc2.9", (1, 3)), ("x.1", ()), ("", ()), ("7", (7,)),
     ("1.12345678901", (1, 123456789))],
)  # fmt: skip
def test_version_keys(text: str, key: tuple[int, ...]) -> None:
    assert version_key(text) == key


@pytest.mark.parametrize(
    ("version", "since", "later"),
    [("0.5.12", "0.5.2", True), ("0.5.2", "0.5.12", False), ("0.5", "0.5.0", True), ("0.5", "0.5.1", False),
     ("0.5.0", "0.5", True), ("1", "0.9.9", True), ("0.5.12", "0.5.12", True)],
)  # fmt: skip
def test_later_releases(version: str, since: str, later: bool) -> None:
    assert at_least(version, since) is later


@pytest.mark.parametrize(
    ("asked", "used", "says"),
    [
        ("0.5.23", "0.5.23", None), ("0.5.24", "0.5.23", "rules of 0.5.23 are used"),
        ("0.4.8", "0.4.9", "rules of 0.4.9 are used"),
        ("0.5.13", "0.5.13", "follow from 0.5.12 and the releases after"),
        ("0.5.22.post1", "0.5.22.post1", "follow from 0.5.20 and"),
    ],
)  # fmt: skip
def test_releases_that_were_not_read(asked: str, used: str, says: str | None) -> None:
    engine, _ = worked(load_model("llama-3.1-8b"), f"sglang@{asked}", kv_cache_memory_bytes=1 << 34)
    assert engine.version == used
    assert [says is not None and says in w for w in engine.warnings] == ([] if says is None else [True])


@pytest.mark.parametrize("asked", ["x", "0." * 20 + "1"])
def test_what_is_no_release(asked: str) -> None:
    with pytest.raises(InputError, match="is not a version") as caught:
        worked(load_model("llama-3.1-8b"), f"sglang@{asked}")
    assert caught.value.hint == "type sglang@0.5.23"


# ---- what a command changes of its model ----


@pytest.mark.parametrize(
    ("data", "rope", "length", "others"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
         Rope("yarn", 4.0, 32768), 0, []),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, Rope("linear", 2.0, 0), 0, []),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 8.0}, "sliding_attention": {
            "rope_type": "default"}}}, Rope("yarn", 8.0, 0), 0, []),
        ({"rope_parameters": {"other": {"rope_type": "yarn"}}}, Rope("yarn", 1.0, 0), 0, []),
        ({"max_position_embeddings": 131072}, None, 131072, []), ({"max_position_embeddings": 4096.0}, None, 4096, []),
        ({"max_position_embeddings": 9, "seq_length": 5}, None, 5, []),
        ({"text_config": {"max_position_embeddings": 77, "num_hidden_layers": 3}}, None, 77, ["num_hidden_layers"]),
        ({"max_position_embeddings": 1 << 40, "rope_theta": 5}, None, 1 << 40, []),
    ],
)  # fmt: skip
def test_replaced_keys(data: dict[str, Any], rope: Rope | None, length: int, others: list[str]) -> None:
    changes, odd = from_config(data, "--hf-overrides")
    assert changes is not None
    assert (changes.rope, changes.length, odd) == (rope, length, others)
    assert changes.given == f"--hf-overrides '{json.dumps(data)}'"


def test_keys_without_a_bearing() -> None:
    assert from_config({"rope_theta": 1e6, "vocab_size": 5}, "--x") == (None, ["vocab_size"])


@pytest.mark.parametrize(
    "data",
    [
        {"rope_scaling": {"factor": 4.0}}, {"rope_scaling": "yarn"}, {"rope_scaling": {"rope_type": 4}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 0.99}},
        {"rope_scaling": {"rope_type": "yarn", "factor": True}},
        {"rope_scaling": {"rope_type": "yarn", "factor": (1 << 20) + 1}}, {"max_position_embeddings": 0},
        {"max_position_embeddings": -1}, {"max_position_embeddings": True}, {"max_position_embeddings": 1.5},
        {"max_position_embeddings": (1 << 40) + 1}, {"rope_scaling": {}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": -1}},
    ],
)  # fmt: skip
def test_rules_that_no_configuration_has(data: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        from_config(data, "--hf-overrides")
    assert caught.value.hint


@pytest.mark.parametrize("factor", [1, 1.5, 1 << 20])
def test_factors_up_to_their_limits(factor: float) -> None:
    changes, _ = from_config({"rope_scaling": {"rope_type": "yarn", "factor": factor}}, "--x")
    assert changes is not None
    assert changes.rope == Rope("yarn", float(factor), 0)


@pytest.mark.parametrize(
    ("length", "rope", "want"),
    [
        (0, None, 4096), (9000, None, 9000), (0, Rope("yarn", 4.0), 16384), (0, Rope("yarn", 4.0, 1024), 4096),
        (0, Rope("llama3", 8.0), 4096), (1000, Rope("linear", 2.5), 2500),
    ],
)  # fmt: skip
def test_the_longest_context_by_the_factor(length: int, rope: Rope | None, want: int) -> None:
    """SGLang's ``get_context_length``: the factor counts where the rule does not say what was before it."""
    model = plain(Random(1), max_position_embeddings=4096).model
    assert factor_rule(ModelChanges("--x", rope, length), model, "", 0) == (want, "")


@pytest.mark.parametrize(
    ("rope", "want"),
    [
        (None, 4096), ({"rope_type": "linear", "factor": 2.0}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1024, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0}, 4096),
    ],
)  # fmt: skip
def test_the_longest_context_of_a_configuration(rope: dict[str, Any] | None, want: int) -> None:
    assert factor_context(plain(Random(1), max_position_embeddings=4096, rope_scaling=rope).model) == want


@pytest.mark.parametrize(("text", "good"), [('{"a": 1}', True), ("[1]", False), ("{", False), ("1", False)])
def test_json_behind_a_flag(text: str, good: bool) -> None:
    if good:
        assert read_json(Word(text), "--rope-scaling") == {"a": 1}
        return
    for flag, key in (("--rope-scaling", "rope_type"), ("--hf-overrides", "max_position_embeddings")):
        with pytest.raises(InputError, match="is not a JSON object") as caught:
            read_json(Word(text), flag)
        assert key in caught.value.hint


# ---- splits, numbers, terms ----


@pytest.mark.parametrize("layers", range(1, 20))
@pytest.mark.parametrize("stages", range(1, 8))
def test_splits(layers: int, stages: int) -> None:
    if stages > layers:
        return
    first, back = common.even_layers(layers, stages), common.balanced_split(layers, stages)
    assert sum(first) == sum(back) == layers
    assert first == sorted(first, reverse=True)
    assert max(first) - min(first) <= 1
    extra = layers % stages
    assert [n - layers // stages for n in back] == [
        int(stages - 1 - extra <= n < stages - 1) for n in range(stages)
    ]  # before the last, counted backwards


@pytest.mark.parametrize(
    ("value", "known", "want"),
    [(7, (2, 3, 4, 6, 8), "6 or 8"), (1, (2, 3), "2"), (9, (2, 8), "8"), (5, (4, 6), "4 or 6")],
)
def test_nearest(value: int, known: tuple[int, ...], want: str) -> None:
    assert common.nearest_of(value, known) == want


@pytest.mark.parametrize(
    ("value", "good"),
    [(1, True), (1 << 50, True), ((1 << 50) + 1, False), (0, False), (True, False), ("8", False), (1.0, False),
     (-1, False)],
)  # fmt: skip
def test_whole_numbers(value: Any, good: bool) -> None:
    settings = Settings(engine="x", engine_version="1", extra={"cache_tokens": value})
    if good:
        assert (
            common.whole_number(settings, "cache_tokens", 5) == common.maybe_number(settings, "cache_tokens") == value
        )
        return
    with pytest.raises(InputError, match="is not a whole number of at least 1") as caught:
        common.whole_number(settings, "cache_tokens", 5)
    assert str(caught.value).startswith("--cache-tokens")


def test_numbers_that_are_not_given() -> None:
    settings = Settings(engine="x", engine_version="1")
    assert common.whole_number(settings, "cache_tokens", 5) == 5
    assert common.maybe_number(settings, "cache_tokens") is None
    assert common.checked(0, "kv_start", least=0) == 0


@pytest.mark.parametrize(
    ("value", "most", "hint"),
    [(0.5, 1, None), ("1", 1, None), (1, 1, None), (1.0001, 1, "--part 1"), (0, 1, "--part 0.9"), (-1, 1, "--part 0.9"),
     (True, 1, "--part 0.9"), ("x", 1, "--part 0.9"), (1e6, 1e6, None), (1.1e6, 1e6, "--part 1e+06"),
     (None, 1, "--part 0.9")],
)  # fmt: skip
def test_positive_numbers(value: Any, most: float, hint: str | None) -> None:
    if hint is None:
        assert common.positive(value, "part", most=most) == float(value)
        return
    with pytest.raises(InputError) as caught:
        common.positive(value, "part", most=most)
    assert hint in caught.value.hint
    assert (" and up to" in str(caught.value)) is (most < 1e6)


@pytest.mark.parametrize("seed", range(20))
def test_terms_of_a_forward(seed: int) -> None:
    rng = Random(f"forward {seed}")
    ffn = 128 * rng.randint(1, 40)
    shape = plain(rng, intermediate_size=ffn)
    tokens, lines = rng.randint(1, 9000), rng.randint(1, 300)
    for last in (True, False):
        stage = Stage(0, shape.model, True, last, 0)
        term = common.forward_term(stage, shape.model, tokens, lines, "x")
        size = 2 * tokens * (3 * ffn + 4 * shape.hidden) + (6 * lines * shape.vocab if last else 0)
        assert (term.bytes, term.low_bytes, term.high_bytes) == (size, size // 2, 2 * size)
        assert (term.part, term.basis) == ("activation", "modelled")
    assert common.experts_term(stage, shape.model, tokens) is None


def test_terms_of_experts() -> None:
    """Rows of every token and expert it uses, in 16 bits; inputs in 8 bits besides, if stored so."""
    for name, wide, hidden, used, eight in (
        ("deepseek-v3", 2048, 7168, 8, True),
        ("mixtral-8x7b", 14336, 4096, 2, False),
    ):
        model = load_model(name)
        stage = Stage(0, model, True, True, 0)
        term = common.experts_term(stage, model, 1000)
        size = 1000 * used * (4 * hidden + 6 * wide + (hidden + wide if eight else 0))
        assert term is not None
        assert (term.bytes, term.low_bytes, term.high_bytes) == (size, size // 2, size * 3 // 2)


def test_widest_ffn_counts_the_experts_in_use() -> None:
    model = load_model("deepseek-v3")  # 8 of 2,048 and a shared one of 2,048, or dense ones of 18,432
    assert common.widest_ffn(Stage(0, model, True, True, 0)) == max(9 * 2048, 18432)
    assert common.widest_ffn(Stage(0, load_model("llama-3.1-8b"), True, True, 0)) == 14336
    assert common.widest_ffn(Stage(0, load_model("mixtral-8x7b"), True, True, 0)) == 2 * 14336


def test_attention_weights_of_further_groups() -> None:
    shape = plain(Random(9))
    each = shape.hidden * shape.head_dim * 2 * (shape.query_heads + shape.kv_heads) * shape.layers * 2
    for groups in (2, 5):
        term = common.attention_weights_term(Stage(0, shape.model, True, True, 0), shape.model, groups)
        extra = each * (groups - 1)
        assert (term.bytes, term.low_bytes, term.high_bytes) == (extra, extra * 3 // 4, extra * 5 // 4)
        assert term.part == "weights"


def test_the_context_of_one_process() -> None:
    term = common.context_term()
    assert (term.bytes, term.low_bytes, term.high_bytes) == (512 * MIB, 300 * MIB, GIB)


def test_gpus_that_layers_are_dealt_over() -> None:
    assert common.layers_over({"gpus": 8})[0] == 8
    assert common.layers_over({"gpus": 8, "tensor_parallel_size": 2})[0] == 4
    assert common.layers_over({"gpus": 8, "tensor_parallel_size": 2, "data_parallel_size": 2})[0] == 2
    assert common.layers_over({"gpus": 1, "data_parallel_size": 2})[0] == 1
