"""Why a deployment does not fit, word by word, with bytes that are made up: at the last that fits and one beyond."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines import get_engine
from kvplan.engines.base import Pool, Settings, Stage, Term
from kvplan.errors import InputError
from kvplan.planning.evaluate import Obstacle, Waterfall, fit_length, mix_range, obstacles, over_length, weights_term
from kvplan.planning.settings import FIT, FITTED, resolve
from kvplan.planning.weights import WeightFormat
from kvplan.spec.formats import format_names, get_format
from kvplan.units import GIB, MIB

LLAMA = load_model("llama-3.1-8b")


def settings(**changes: Any) -> Settings:
    sizes = {"max_model_len": 2000, "prompt_tokens": 1000, "output_tokens": 100}
    return Settings(**{"engine": "x", "engine_version": "1", **sizes, **changes})


def stages(count: int = 1) -> tuple[Stage, ...]:
    return tuple(Stage(n, LLAMA, n == 0, n == count - 1, 0) for n in range(count))


def engine(start: int = 100 * MIB, request: int = 100 * MIB, most: int = 5, **more: Any) -> Any:
    return SimpleNamespace(**{
        "start_bytes": lambda stage, _: start + stage.number, "start_words": lambda _: "what is set aside needs",
        "request_bytes": lambda stage, _, tokens: request + stage.number,
        "holds": lambda _, asked, kv: asked.concurrency <= most,
        "lays_out_pool": True, "fills_budget": True, **more,
    })  # fmt: skip


def pool(starts: bool = True, refusal: str = "", used: tuple[int, ...] = (0,)) -> Pool:
    return Pool(16, 10, 160, 160, 1.0, 160, starts, used, refusal=refusal)


def fall(weights: int, other: int, budget: int, total: int | None = None) -> Waterfall:
    terms = tuple(
        Term(name, name, size, size, size, "exact", "") for name, size in (("weights", weights), ("activation", other))
    )
    return Waterfall(total or budget, budget, terms, budget - weights - other)


def standing(asked: Settings, falls: tuple[Waterfall, ...] | None, have: int, held: Pool | None, own: Any) -> Obstacle:
    """The first that stands."""
    count = len(falls or (0,))
    found = obstacles(own, asked, stages(count), falls, (have,) * count, held)
    return next((each for each in found if each.stands), Obstacle(False, None, lambda: ""))


def said(asked: Settings, falls: tuple[Waterfall, ...] | None, have: int, held: Pool | None, own: Any) -> Any:
    first = standing(asked, falls, have, held, own)
    return first.binding, first.reason()


NOTHING = (None, "")


def test_weights_that_load_and_that_do_not() -> None:
    own, size = engine(), 3 * GIB
    assert said(settings(), (fall(size, -1, size),), GIB, pool(), own) == NOTHING
    alone = said(settings(), (fall(size + 1, -9, size),), GIB, pool(), own)
    assert alone == ("weights", "the weights take 3.00 GiB per GPU, the budget is 3.00 GiB")
    staged = said(settings(), (fall(size, -1, size), fall(5 * GIB, 0, size)), GIB, pool(), own)
    assert staged == ("weights", "the weights take 5.00 GiB per GPU on pipeline stage 1, the budget is 3.00 GiB")


def test_what_is_needed_beside_the_weights() -> None:
    own = engine()
    assert said(settings(), (fall(3 * GIB, GIB - 1, 4 * GIB),), GIB, pool(), own) == NOTHING
    for more in (0, 1):
        found = said(settings(), (fall(3 * GIB, GIB + more, 4 * GIB),), GIB, pool(), own)
        assert found == ("activations", "beside the weights 1.00 GiB per GPU are left, and 1.00 GiB are needed first")


def test_a_cache_that_is_asked_for_by_its_bytes() -> None:
    asked = settings(kv_cache_memory_bytes=GIB)
    # the budget is no matter then: the device is
    assert said(asked, (fall(2 * GIB, GIB, 3 * GIB, 4 * GIB),), GIB, pool(), engine()) == NOTHING
    found = said(asked, (fall(2 * GIB, GIB + 1, 3 * GIB, 4 * GIB),), GIB, pool(), engine())
    assert found == ("kv", "with the cache asked for, 4.00 GiB per GPU are needed of 4.00 GiB")


def test_blocks_that_are_asked_for_by_their_number() -> None:
    falls, asked = (fall(2 * GIB, GIB, 4 * GIB, 5 * GIB),), settings(num_gpu_blocks_override=9)
    assert said(asked, falls, GIB, pool(used=(2 * GIB,)), engine()) == NOTHING
    found = said(asked, falls, GIB, pool(used=(2 * GIB + 1,)), engine())
    assert found == ("kv", "the blocks asked for take 2.00 GiB per GPU, of which 2.00 GiB are there")
    assert said(settings(), falls, GIB, pool(used=(9 * GIB,)), engine()) == NOTHING


@pytest.mark.parametrize(
    ("start", "one", "have", "fills", "words"),
    [
        (300, 300, 200, True, "one request of 2,000 tokens needs 0.29 GiB of cache per GPU, there are 0.20 GiB"),
        (200, 300, 100, True, "the smallest cache that starts needs 0.20 GiB of cache per GPU, there are 0.10 GiB"),
        # what the engine wants beyond one request is named where that request would hold, or where no budget is filled
        (300, 200, 200, True, "what is set aside needs 0.29 GiB of cache per GPU, there are 0.20 GiB"),
        (300, 200, 199, True, "one request of 2,000 tokens needs 0.29 GiB of cache per GPU, there are 0.19 GiB"),
        (300, 200, 199, False, "what is set aside needs 0.29 GiB of cache per GPU, there are 0.19 GiB"),
        (300, 300, -5, True, "one request of 2,000 tokens needs 0.29 GiB of cache per GPU, there are 0.00 GiB"),
    ],
)  # fmt: skip
def test_what_is_too_small_to_start(start: int, one: int, have: int, fills: bool, words: str) -> None:
    own = engine(start * MIB, one * MIB, fills_budget=fills)
    for held in (None, pool(starts=False)):
        assert said(settings(), None, have * MIB, held, own) == ("kv", words)


def test_small_figures_are_told_in_bytes() -> None:
    """Below 10 MiB, and where both would read alike."""
    words = "one request of 2,000 tokens needs {:,} bytes of cache per GPU, there are {:,}"
    for need, have in ((10 * MIB - 1, 7), (GIB + 1, GIB), (GIB, GIB - 1)):
        assert said(settings(), None, have, None, engine(need, need))[1] == words.format(need, have)
    assert "bytes" not in said(settings(), None, 7, None, engine(10 * MIB, 10 * MIB))[1]
    # the stage that needs most and the stage that has least
    found = obstacles(engine(9, 9), settings(), stages(3), None, (5, 3, 4), None)
    assert next(found).reason() == words.format(11, 3)


def test_refusals_lengths_and_workloads_in_turn() -> None:
    own = engine()
    assert said(settings(), None, GIB, pool(refusal="no state fits"), own) == ("kv", "no state fits")
    at_limit = settings(max_model_len=1100)
    assert said(at_limit, None, GIB, pool(), own) == NOTHING
    over = settings(max_model_len=1099)
    words = "a request of 1,100 tokens (1,000 prompt + 100 output) is longer than max_model_len 1,099"
    assert said(over, None, GIB, pool(), own) == (None, words)
    assert over_length(over) == words
    assert said(settings(concurrency=5), None, GIB, pool(), own) == NOTHING
    many = said(settings(concurrency=6), None, GIB, pool(), own)
    assert many == ("kv", "6 requests of 1,100 tokens do not hold at once; 5 do")
    unlaid = said(settings(concurrency=6), None, GIB, pool(), engine(lays_out_pool=False))
    assert unlaid == ("kv", "6 requests of 1,100 tokens do not hold at once")
    assert said(settings(), None, GIB, pool(), engine(most=0)) == ("kv", "one request of 1,100 tokens does not hold")


# ---- weights, whose files differ ----


def test_file_types_in_range_and_by_rule() -> None:
    """A type whose mix is a publisher's own lies between the formats it may take; one by rule within 4 per cent."""
    seen = set()
    for name in format_names("weights"):
        fmt = get_format(name)
        made = weights_term(10_000, WeightFormat(fmt, frozenset(), fmt, "given"))
        assert (made.name, made.part, made.bytes) == ("weights", "weights", 10_000)
        if not fmt.mix:
            assert (made.low_bytes, made.high_bytes, made.basis) == (10_000, 10_000, "exact")
            assert made.source == f"{fmt.name}: given"
            continue
        low, high = mix_range(fmt)
        assert (made.low_bytes, made.high_bytes, made.basis) == (100 * low, 100 * high, "modelled")
        ruled = (low, high) == (96, 104)
        seen.add(ruled)
        note = "the rule of the quantizer; converters differ" if ruled else "a publisher's own mix"
        assert made.source == f"{fmt.name}: given ({note})"
        assert low < 100 < high
    assert True in seen


# ---- a length that is fitted ----


def test_a_length_that_is_fitted_to_the_memory() -> None:
    own = get_engine("generic")
    asked, _ = resolve(LLAMA, load_gpu("l4"), own, {"max_model_len": FIT})
    found = fit_length(LLAMA, load_gpu("l4"), own, asked)
    assert found.defaults["max_model_len"] == FITTED == "fitted to the memory"
    longest = plan(LLAMA.id, gpu="l4", engine="generic", max_model_len=131_072).capacity
    assert longest is not None
    assert found.max_model_len == longest.max_single_request_tokens < 131_072
    roomy = fit_length(LLAMA, load_gpu("b200"), own, asked)
    assert roomy.max_model_len == 131_072
    for gpu in (load_gpu("l4"), None):
        tight, _ = resolve(load_model("llama-3.1-70b"), gpu, own, {"max_model_len": FIT})
        if gpu is None:
            with pytest.raises(InputError, match="no memory is given") as refused:
                fit_length(load_model("llama-3.1-70b"), gpu, own, tight)
            assert (refused.value.where, refused.value.hint) == ("--max-model-len", "add --gpu NAME")
        else:
            assert fit_length(load_model("llama-3.1-70b"), gpu, own, tight).max_model_len == 1
