"""What newer files leave to the class: windows and which layers slide, heads of sliding layers, shared caches."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.errors import SpecError
from kvplan.sources.hf.read import read_config
from kvplan.spec.model import ModelSpec

BASE: dict[str, Any] = {
    "num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1000,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 131072,
}  # fmt: skip


def read(kind: str, **keys: Any) -> ModelSpec:
    return read_config({k: v for k, v in {**BASE, "model_type": kind, **keys}.items() if v is not ...})


def windows(spec: ModelSpec) -> list[int | None]:
    return [getattr(spec.blocks[name].mixers[0], "window", None) for name in spec.layers]


@pytest.mark.parametrize(
    ("kind", "window", "full", "more"),
    [
        ("cohere2", 4096, {3, 7}, {}),
        ("exaone4", 4096, {3, 7}, {}),
        ("olmo3", 4096, {3, 7}, {}),
        ("gpt_oss", 128, {1, 3, 5, 7}, {}),
        ("gemma4_text", 512, {5, 7}, {}),
        ("mimo_v2_flash", 129, {0, 5}, {}),
        ("gpt_neo", 256, set(range(0, 24, 2)), {"num_hidden_layers": ..., "num_layers": 24, "num_heads": 8}),
    ],
)  # fmt: skip
def test_windows_of_the_class(kind: str, window: int, full: set[int], more: dict[str, Any]) -> None:
    found = windows(read(kind, **more))
    assert found == [None if i in full else window for i in range(len(found))]


@pytest.mark.parametrize("kind", ["cohere2", "exaone4", "olmo3", "gpt_oss"])
def test_a_null_window_switches_it_off(kind: str) -> None:
    assert set(windows(read(kind, sliding_window=None))) == {None}


def test_gpt_neo_with_another_number_of_layers_is_refused() -> None:
    with pytest.raises(SpecError, match="attention_types gives 24 layers, not 8"):
        read("gpt_neo", num_heads=8)


def test_the_last_layer_of_gemma_4_is_global() -> None:
    assert windows(read("gemma4_text", layer_types=["sliding_attention"] * 8))[-1] is None


def test_mimo_sliding_layers_have_twice_the_kv_heads() -> None:
    """The class has no key for them; the first files have."""
    kinds = ["full_attention", *["sliding_attention"] * 7]
    spec = read("mimo_v2_flash", layer_types=kinds, v_head_dim=32)
    heads = [spec.blocks[name].mixers[0].kv_heads for name in spec.layers]  # type: ignore[attr-defined]
    assert heads == [4] + [8] * 7
    named = read("mimo_v2_flash", layer_types=kinds, swa_num_key_value_heads=2, swa_num_attention_heads=8)
    assert named.blocks[named.layers[1]].mixers[0].kv_heads == 2  # type: ignore[attr-defined]


def test_hunyuan_layers_that_share_a_cache() -> None:
    """Every second layer has queries and an output projection of its own, and no K, no V and no cache."""
    plain, shared = read("hunyuan_v1_dense"), read("hunyuan_v1_dense", use_cla=True, cla_share_factor=2)
    mixers = [shared.blocks[name].mixers[0] for name in shared.layers]
    assert [mixer.kind for mixer in mixers] == ["full", "shared"] * 4
    assert not mixers[1].streams()
    assert plain.parameters - shared.parameters >= 4 * 2 * 512 * 4 * 64
    assert read("hunyuan_v1_dense", use_cla=False, cla_share_factor=2) == plain


def test_use_cla_elsewhere_is_refused() -> None:
    with pytest.raises(SpecError, match="use_cla"):
        read("llama", use_cla=True)


@pytest.mark.parametrize(("said", "expected"), [(8, 8), (..., 1), (1, 1)])
def test_falcon_as_first_published(said: Any, expected: int) -> None:
    """``RefinedWeb`` has ``n_head_kv`` and no word of the new architecture."""
    spec = read_config({
        "model_type": "RefinedWeb", "n_layer": 4, "n_head": 128, "hidden_size": 8192, "vocab_size": 65024,
        **({"n_head_kv": said} if said is not ... else {}),
    })  # fmt: skip
    assert spec.blocks[spec.layers[0]].mixers[0].kv_heads == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model_type", "full"),
    [("step3p5", [True] * 6), ("muse_glimmer", [False, True, False, False, False, True])],
)
def test_families_whose_files_list_their_layers(model_type: str, full: list[bool]) -> None:
    """What the class makes of a file without ``layer_types``: no windows in Step 3.5, every fourth layer from the
    last in Muse Glimmer."""
    data = {
        "model_type": model_type, "num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 100, "sliding_window": 512,
        "max_position_embeddings": 4096, "num_experts": 0,
    }  # fmt: skip
    model = read_config(data)
    found = [model.blocks[name].mixers[0].streams()[0].window is None for name in model.layers]
    assert found == full


def test_phimoe_slides_unless_its_window_is_the_context() -> None:
    """Phi-3.5-MoE's own file says a window of its whole context; a shorter one slides in every layer."""
    config = {
        "model_type": "phimoe", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 96, "vocab_size": 100, "num_local_experts": 2,
        "num_experts_per_tok": 1, "max_position_embeddings": 512,
    }  # fmt: skip
    shorter, whole, none = (read_config(config | {"sliding_window": n}) for n in (20, 512, None))
    assert windows(shorter) == [20] * 3
    assert windows(whole) == windows(none) == [None] * 3
