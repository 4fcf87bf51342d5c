"""The quick way through a header gives what the careful one gives, or leaves the header to it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.errors import SpecError
from kvplan.sources.checkpoint import groups
from kvplan.sources.checkpoint.groups import read_groups
from kvplan.sources.checkpoint.safetensors import header_bytes, read_header

NAMES = (
    "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "visual.blocks.0.proj.weight", "h.1.é.weight",
    *(f"model.layers.{i}.self_attn.q_proj.weight" for i in range(4)),
    *(f"model.layers.{i}.mlp.experts.{e}.up_proj.weight" for i in range(3) for e in (0, 7, 12)),
    "model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj.weight_scale",
    "model.layers.x.weight", "a.layers..b", "layers.0.w1", ".layers.3.q", "model.layers.2", "a.experts.3.b.layers.4.c",
)  # fmt: skip


class Held:
    """A file with a header and nothing behind it that is read."""

    def __init__(self, head: bytes, room: int) -> None:
        self.head, self.size = head, len(head) + room

    def read(self, start: int, length: int) -> bytes:
        return self.head[start : start + length]


def carefully(file: Held) -> Counter[Any]:
    """(name with its layer and expert left out, dtype, bytes) -> tensors."""
    return Counter((plain(e.name), e.dtype, e.num_bytes) for e in read_header(file, "f"))


def plain(name: str) -> str:
    """A name as the groups of two layers have it."""
    before, inside, rest = name.partition(".layers.")
    number, dot, rest = rest.partition(".")
    if inside and dot and number.isdigit():
        name = f"{before}.layers.{2 if int(number) >= 2 else 0}.{rest}"
    before, inside, rest = name.partition(".experts.")
    number, dot, rest = rest.partition(".")
    return f"{before}.experts.0.{rest}" if inside and dot and number.isdigit() else name


def quickly(file: Held) -> Counter[Any]:
    from kvplan.sources.checkpoint.safetensors import stored_bytes, text

    found: Counter[Any] = Counter()
    for (before, place, rest, dtype, shape), times in read_groups(file, "f", 2).items():
        found[plain(text(before + place + rest)), dtype.decode(), stored_bytes(dtype, shape)] += times
    return found


TENSORS = st.lists(
    st.tuples(
        st.sampled_from(NAMES), st.sampled_from(("BF16", "F32", "F8_E4M3")), st.lists(st.integers(1, 9), max_size=3)
    ),
    min_size=1, max_size=20, unique_by=lambda tensor: tensor[0],
)  # fmt: skip
METADATA = st.sampled_from((None, {"format": "pt"}, {"a": "}{", "b": ""}))


@given(TENSORS, METADATA, st.sampled_from(({}, {"separators": (", ", ": ")}, {"ensure_ascii": False})))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_ways_count_the_same(checkpoints: Any, tensors: Any, metadata: Any, how: dict[str, Any]) -> None:
    head, room = checkpoints.header([(n, d, tuple(s)) for n, d, s in tensors], metadata, **how)
    file = Held(head, room)
    assert quickly(file) == carefully(file)


@given(TENSORS, st.data())
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_header_is_refused_by_both_or_read_by_both(
    checkpoints: Any, tensors: Any, data: st.DataObject
) -> None:
    head, room = checkpoints.header([(n, d, tuple(s)) for n, d, s in tensors], {"format": "pt"})
    body = bytearray(head[8:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b'"', b"0", b"}", b",", b"\xff", b"\\", b" ", b"_"])
        )
    file = Held(len(body).to_bytes(8, "little") + bytes(body), room)
    outcomes: list[Any] = []
    for way in (quickly, carefully):
        try:
            outcomes.append(way(file))
        except SpecError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_a_checkpoint_as_the_library_writes_it_takes_the_quick_way(checkpoints: Any) -> None:
    """Tensors of one name may differ in shape from layer to layer only in a header that is read carefully."""
    config = checkpoints.LLAMA
    head, room = checkpoints.header(checkpoints.llama_tensors(config), {"format": "pt"})
    data, _ = header_bytes(Held(head, room), "f")
    found = groups._usual(data, room, 2)
    assert found is not None
    assert len(found) == 12
    assert found.total() == 3 + 9 * config["num_hidden_layers"]
    assert groups._usual(data, room + 2, 2) is None


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff\xfe"])
def test_names_that_are_not_utf8_are_refused(checkpoints: Any, name: bytes) -> None:
    head, room = checkpoints.header([("n" * len(name), "BF16", (2,))])
    with pytest.raises(SpecError, match="is not UTF-8"):
        read_groups(Held(head.replace(b"n" * len(name), name, 1), room), "f", 2)
