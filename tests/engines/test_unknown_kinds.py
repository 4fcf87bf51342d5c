"""A kind of layer that an engine was never asked about is refused, not laid out by guess; generic has its bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from kvplan import load_gpu, load_model
from kvplan.cache import KINDS
from kvplan.cache.attention import Attention, FullAttention
from kvplan.engines import distinct, get_engine
from kvplan.engines.base import PLAIN_KINDS, Engine
from kvplan.engines.llama_cpp import caches
from kvplan.engines.llama_cpp.architectures import facts
from kvplan.engines.rows import cache_rows
from kvplan.errors import UnsupportedError
from kvplan.planning.evaluate import evaluate, settled
from kvplan.spec.kind import CacheKind, State, Stream, Tensor
from kvplan.spec.model import ModelSpec

NAMED = [name for name in distinct() if name != "generic"]
GPU = {"mlx": "apple-m4-max"}


@dataclass(frozen=True, kw_only=True, repr=False)
class HalfValues(Attention):
    """Attention whose V has half of the heads."""

    kind: str = "half_values"

    def streams(self) -> tuple[Stream, ...]:
        k, v = self.kv_streams()
        return (k, v._replace(heads=self.kv_heads // 2))


@dataclass(frozen=True, kw_only=True, repr=False)
class Remembering(CacheKind):
    """A state alone."""

    kind: str = "remembering"

    def states(self) -> tuple[State, ...]:
        return (State("recurrent", 4096, 64),)

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        return ()

    def shard(self, tp: int) -> Remembering:
        return self


def with_mixer(mixer: CacheKind, **changes: object) -> ModelSpec:
    model = load_model("llama-3.1-8b")
    (name,) = model.blocks
    return replace(model, blocks={name: replace(model.blocks[name], mixers=(mixer,))}, **changes)  # type: ignore[arg-type]


HALF = with_mixer(HalfValues(query_heads=32, kv_heads=8, head_dim=128))
STATES = with_mixer(Remembering())


@pytest.mark.parametrize("model", [HALF, STATES], ids=["streams", "states"])
@pytest.mark.parametrize("engine", NAMED)
def test_a_kind_that_an_engine_does_not_know_is_refused(engine: str, model: ModelSpec) -> None:
    (mixer,) = model.blocks[model.layers[0]].mixers
    for gpu in (load_gpu(GPU.get(engine, "h200-sxm")), None):
        with pytest.raises(UnsupportedError, match=f"{mixer.kind} caches of {engine} are not modelled") as caught:
            settled(model, gpu, get_engine(engine), {"max_model_len": 4096})
        assert caught.value.hint == "type --engine generic"


def test_generic_counts_what_it_says_itself() -> None:
    for model, size in ((HALF, 4096 * 32 * (8 + 4) * 128 * 2), (STATES, 32 * 4096 * 64 * 2)):
        engine = get_engine("generic")
        served, settings, _ = settled(model, load_gpu("h200-sxm"), engine, {"max_model_len": 4096})
        (stage,) = evaluate(served, load_gpu("h200-sxm"), engine, settings).stages
        assert engine.request_bytes(stage, settings, 4096) == size


def test_a_draft_is_looked_at_as_well() -> None:
    draft = {"method": "draft_model", "model": HALF, "num_speculative_tokens": 3}
    with pytest.raises(UnsupportedError, match="half_values caches of vllm are not modelled"):
        settled(
            load_model("llama-3.1-8b"), load_gpu("h200-sxm"), get_engine("vllm"),
            {"max_model_len": 4096, "speculative_config": draft},
        )  # fmt: skip


def test_an_engine_that_names_no_kind_knows_none() -> None:
    class Bare(Engine):
        name = "bare"

    with pytest.raises(UnsupportedError, match="full caches of bare are not modelled"):
        Bare().check_kinds(load_model("llama-3.1-8b"))


@pytest.mark.parametrize("engine", NAMED)
def test_engines_know_kinds_that_there_are(engine: str) -> None:
    known = get_engine(engine).known_kinds
    assert known is not None
    assert PLAIN_KINDS <= known <= set(KINDS)


def test_llama_cpp_has_empty_rows_for_no_kind_that_holds_something() -> None:
    known = facts(HALF)
    with pytest.raises(UnsupportedError, match=r"llama\.cpp has no cache of half_values layers"):
        caches.rows(HALF, known, HALF.blocks[HALF.layers[0]].mixers[0])
    assert set(KINDS) == caches.KNOWN_KINDS


@dataclass(frozen=True, kw_only=True, repr=False)
class Uneven(FullAttention):
    """K over a window, V over all: what one row cannot say."""

    def streams(self) -> tuple[Stream, ...]:
        k, v = self.kv_streams()
        return (k._replace(window=512), v)


@dataclass(frozen=True, kw_only=True, repr=False)
class Folded(FullAttention):
    """One entry for four tokens."""

    def streams(self) -> tuple[Stream, ...]:
        return tuple(s._replace(ratio=4) for s in self.kv_streams())


@pytest.mark.parametrize("kind", [Uneven, Folded])
def test_rows_keep_what_they_cannot_say_to_nobody(kind: type[FullAttention]) -> None:
    model = with_mixer(kind(query_heads=32, kv_heads=8, head_dim=128))
    with pytest.raises(UnsupportedError, match="the parts of full caches differ in what they keep"):
        cache_rows(model)
    assert len(cache_rows(load_model("llama-3.1-8b"))) == 1
    assert cache_rows(model, apart="full") == []
