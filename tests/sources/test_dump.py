"""The written form of a model: short patterns, safe scalars, and nothing lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.catalog.build import model_from_plain
from kvplan.sources.dump import dump_model, find_pattern
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import Checkpoint

GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text", "num_hidden_layers": 14, "hidden_size": 2560, "intermediate_size": 10240,
    "sliding_window": 1024,
}  # fmt: skip


def test_layers_are_written_as_a_pattern() -> None:
    text = dump_model(read_config(GEMMA))
    assert text.startswith("schema: kvplan.model/1\nid: gemma3_text\n")
    assert "layers:\n  - {repeat: 2, of: [{repeat: 5, of: [local]}, global]}\n  - {repeat: 2, of: [local]}\n" in text


@settings(deadline=None, max_examples=300)
@given(
    text=st.text(min_size=1, max_size=30)
    | st.sampled_from(
        ["no", "2024-01-01", "1e5", "null", "a: b", "- x", "#", "~", "\U0001f600", "\u2028\x85\ufeff\x1b[31m"]
    ),
    number=st.floats(min_value=0.0001, max_value=1e6),
)
def test_any_text_and_number_read_back(text: str, number: float) -> None:
    spec = replace(
        read_config(GEMMA), name=text, notes=(text, text), rope={"type": "yarn", "factor": round(number, 6)},
        checkpoint=Checkpoint(format="fp8_block", overrides={"routed_experts": "mxfp4"}),
    )  # fmt: skip
    assert model_from_plain(yaml.safe_load(dump_model(spec))) == spec


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        ("a", ["a"]), ("aaaa", [(4, ["a"])]), ("abab", [(2, ["a", "b"])]), ("abc", ["a", "b", "c"]),
        ("aaab" * 5, [(5, [(3, ["a"]), "b"])]), ("ab" * 10 + "c", [(10, ["a", "b"]), "c"]),
        (("aab" * 2 + "c") * 3, [(3, [(2, [(2, ["a"]), "b"]), "c"])]),
    ],
)  # fmt: skip
def test_patterns(names: str, pattern: list[Any]) -> None:
    assert find_pattern(list(names)) == pattern


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60))
def test_patterns_spell_out_to_what_they_were(names: list[str]) -> None:
    def spell(entries: list[Any]) -> list[str]:
        found: list[str] = []
        for entry in entries:
            found += [entry] if isinstance(entry, str) else spell(entry[1]) * entry[0]
        return found

    assert spell(find_pattern(names)) == names
