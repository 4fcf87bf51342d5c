"""What is typed after ``--engine``."""

from __future__ import annotations

import pytest

from kvplan.engines import get_engine
from kvplan.errors import InputError, UnknownNameError
from kvplan.planning.side_by_side import engine_names


@pytest.mark.parametrize("text", ["all,foo", "vllm,all", "all@1"])
def test_all_stands_alone(text: str) -> None:
    with pytest.raises(InputError, match="stands alone") as caught:
        engine_names(text)
    assert "--engine all" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "first"),
    [("all", "vllm"), ("all@1", "vllm"), ("vllm,sglang", "vllm"), ("sglang,vllm", "sglang"), (",mlx", "vllm"),
     ("all,mlx", "vllm")],
)  # fmt: skip
def test_where_one_is_asked_for_one_is_named(text: str, first: str) -> None:
    with pytest.raises(InputError, match="where one is asked for") as caught:
        get_engine(text)
    assert caught.value.hint == f"name one at a time, {first} first"


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="foo") as caught:
        get_engine("foo")
    assert "vllm" in (caught.value.hint or "")


def test_a_release_in_one_figure_takes_the_nearest() -> None:
    found = get_engine("vllm@9")
    assert found.version == "0.33.0"
    assert [text for text in found.warnings if "0.33.0" in text]


@pytest.mark.parametrize("text", ["vllm@x", "vllm@0", "vllm@0.x", "sglang@x"])
def test_what_is_no_version_says_what_to_type(text: str) -> None:
    with pytest.raises(InputError) as caught:
        get_engine(text)
    assert "@" in (caught.value.hint or "")
    assert len(caught.value.hint or "") < 100
