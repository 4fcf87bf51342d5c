"""The cache changes no result: every kind of layer with its cache and without, and what a wrong count does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe's extra is not installed")

from kvplan.cache import KINDS
from kvplan.cache.mlstm import Mlstm
from kvplan.catalog import load_model, model_ids
from kvplan.probe import correctness
from kvplan.probe.mixer_kinds import build_mixer
from kvplan.units import MIB

from .test_cpu import failed, session_of


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("llama-3.2-1b", {"full"}), ("gemma-3-4b", {"full", "sliding"}), ("deepseek-v2-lite", {"mla"}),
        ("llama-4-scout", {"full", "chunked"}), ("falcon-h1-7b", {"full", "mamba2"}),
        ("whisper-large-v3", {"full", "cross"}), ("gemma-3n-e2b", {"full", "sliding", "shared"}),
        ("deepseek-v4-flash", {"compressed"}), ("lfm2-8b-a1b", {"full", "short_conv"}), ("rwkv-7-g1-7.2b", {"rwkv"}),
        ("recurrentgemma-2b", {"sliding", "rg_lru"}), ("jamba-1.5-mini", {"full", "mamba1"}),
        ("kimi-linear-48b-a3b", {"mla", "kda"}), ("qwen3-next-80b-a3b", {"full", "gated_delta_net"}),
        ("minimax-text-01", {"full", "lightning"}),
    ],
)  # fmt: skip
def test_the_cache_changes_no_result(model: str, kinds: set[str]) -> None:
    session = session_of(model, "generic", max_model_len=2048)
    found = set()
    for layer, mixer in correctness._mixers(session):
        built = build_mixer(correctness.shortened(mixer), 0, "cpu")
        if built is None:
            continue
        assert built.proof_tokens(True) > (getattr(correctness.shortened(mixer), "window", None) or 0)
        rows = correctness._equal(layer.kind, built, session)
        assert failed(rows) == []
        assert len(rows) == 2
        found.add(layer.kind)
    assert kinds <= found


@pytest.mark.parametrize(
    ("model", "kind", "changed"),
    [
        ("deepseek-v4-flash", "compressed", {"window": 47}), ("deepseek-v4-flash", "compressed", {"ratio": 9}),
        ("lfm2-8b-a1b", "short_conv", {"columns": 1}), ("falcon-h1-7b", "mamba2", {"columns": 2}),
        ("gemma-3n-e2b", "shared", {"window": 47}), ("whisper-large-v3", "cross", {"fixed_entries": 47}),
    ],
)  # fmt: skip
def test_one_entry_or_column_too_few_would_be_seen(
    model: str, kind: str, changed: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kind counts is the room there is; what its layer needs is computed without it."""
    session = session_of(model, "generic", max_model_len=2048)
    layer, mixer = [x for x in correctness._mixers(session) if x[0].kind == kind][-1]
    short = correctness.shortened(mixer)
    name = "states" if "columns" in changed else "kv_streams" if kind == "shared" else "streams"
    counted = getattr(short, name)(**({"window": 48} if kind == "shared" else {}))
    lacking = tuple(
        part._replace(**changed) if getattr(part, next(iter(changed))) not in (None, 1) else part for part in counted
    )
    assert lacking != counted
    monkeypatch.setattr(type(short), name, lambda self, **given: lacking)
    built = build_mixer(short, 0, "cpu")
    assert built is not None
    try:
        rows = correctness._equal(layer.kind, built, session)
    except (IndexError, RuntimeError):
        return  # no room for it, which a run shows as a failed row
    assert failed(rows)


def test_every_kind_of_the_catalog_is_run_or_says_why_not() -> None:
    """Layers that read another's cache have rows too, and kinds that come in several forms one for each."""
    session = session_of("deepseek-v4-flash", max_model_len=2048)
    session.limits = session.limits._replace(max_bytes=512 * MIB)
    rows = {r.name: r for r in correctness.measure(session)}
    assert rows["compressed (window), float32: cache against recomputation"].passed
    assert rows["compressed (window, compressed, index), float64: cache against recomputation"].passed
    assert rows["compressed (window, compressed), float64: cache against recomputation"].passed
    assert "allocated and counted" in rows["compressed (window, compressed, index): index not run"].note
    shared = session_of("gemma-3n-e2b", max_model_len=2048)
    assert "shared" in {layer.kind for layer, _ in correctness._mixers(shared)}
    found: dict[str, Any] = {"mlstm": Mlstm(heads=4, qk_head_dim=16, v_head_dim=32)}  # no model of the catalog has it
    for name in model_ids():
        found |= {mixer.kind: mixer for _, mixer in load_model(name).mixers() if mixer.kind not in found}
    assert set(found) >= set(KINDS) - {"none"}  # which keeps nothing
    assert [k for k, m in found.items() if build_mixer(correctness.shortened(m), 0, "cpu") is None] == []


def test_a_forgotten_entry_would_be_seen() -> None:
    session = session_of("gemma-3-4b")
    mixer = next(m for x, m in correctness._mixers(session) if x.kind == "sliding")
    built: Any = build_mixer(replace(mixer, window=16), 0, "cpu")  # type: ignore[call-arg]
    x = built.inputs(40, 1)
    right = built.decode(x, 16)
    built.key, built.value = (s._replace(window=15) for s in (built.key, built.value))  # forgets one too early
    assert float((built.decode(x, 16) - right).abs().max()) > 1e-3


def test_work_of_a_step_grows_with_the_length_and_with_its_square() -> None:
    session = session_of("llama-3.2-1b")
    mixer = correctness._mixers(session)[0][1]
    rows = correctness._growth(session, mixer, "cpu")
    assert failed(rows) == []
    exponents = [r.measured for r in rows if r.name.startswith("work") and "exponent" in r.name]
    assert exponents == pytest.approx([1, 2], abs=0.02)


@pytest.mark.parametrize("model", ["llama-3.2-1b", "deepseek-v2-lite"])
def test_products_are_counted_as_torch_counts_them(model: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    session = session_of(model)
    built: Any = build_mixer(correctness._mixers(session)[0][1], 0, "cpu")
    for step in (built.cached_step, built.uncached_step):
        run = step(64)
        with FlopCounterMode(display=False) as counter:
            run()
        assert correctness._flops(step, 64) == counter.get_total_flops() > 0


def test_an_index_that_is_not_run_is_named() -> None:
    session = session_of("deepseek-v3.2", "transformers", megabytes=1024, max_model_len=2048)
    rows = {r.name: r for r in correctness._measure(session, "cpu")}
    assert rows["mla: index not run"].passed is None
    assert rows["mla, float64: cache against recomputation"].passed


def test_kinds_that_are_not_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness, "build_mixer", lambda kind, seed, device: None)
    rows = {r.name: r for r in correctness.measure(session_of("deepseek-v4-flash"))}
    left_out = [name for name, r in rows.items() if name.endswith(": not run") and r.passed is None and r.note]
    assert len(left_out) == 3
