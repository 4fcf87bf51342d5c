"""Rules of single engines that show in few deployments: pools without tokens, latent rows kept whole, sizes by card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan import load_gpu, load_model, plan
from kvplan.engines import get_engine
from kvplan.engines.common import nearest_of
from kvplan.engines.llama_cpp import offload
from kvplan.engines.mlx import growth
from kvplan.engines.sglang.fraction import chunk_default, decode_batch_default, encoder_factor
from kvplan.engines.sglang.pools import Cell, pools_of
from kvplan.engines.vllm.layout import backends_of, mixers_of
from kvplan.errors import UnsupportedError
from kvplan.planning.evaluate import evaluate
from kvplan.planning.settings import resolve
from kvplan.units import GIB


def outcome(name: str, engine: str, gpu: str = "h200-sxm", model: Any = None, **given: Any) -> Any:
    spec, device, chosen = model or load_model(name), load_gpu(gpu), get_engine(engine)
    settings, _ = resolve(spec, device, chosen, {"max_model_len": 4096, **given})
    return chosen, evaluate(spec, device, chosen, settings)


@pytest.mark.parametrize(
    ("value", "text"), [(1, "2"), (3, "2 or 4"), (5, "4 or 8"), (9, "8"), (7, "4 or 8"), (2, "4"), (8, "4")]
)
def test_neighbours_of_what_is_not_known(value: int, text: str) -> None:
    assert nearest_of(value, (4, 2, 8)) == text


# ---- SGLang ----


def test_sizes_by_card() -> None:
    """``chunked_prefill_size`` and the largest captured batch step at 20, 35, 60 and 160 GiB."""
    cards = [(gib * 1024 - less) for gib in (20, 35, 60, 160) for less in (1, 0)]
    assert [chunk_default(mib, "0.5.23") for mib in cards] == [2048, 4096, 4096, 4096, 4096, 8192, 8192, 16384]
    assert [chunk_default(mib, "0.5.12") for mib in cards] == [2048, 2048, 2048, 4096, 4096, 8192, 8192, 16384]
    assert [chunk_default(mib, "0.5.2") for mib in cards] == [2048, 2048, 2048, 8192, 8192, 8192, 8192, 16384]
    small = [decode_batch_default(mib, 3, "0.5.23") for mib in cards]
    large = [decode_batch_default(mib, 4, "0.5.23") for mib in cards]
    assert small == [8, 48, 48, 32, 32, 256, 256, 512]
    assert large == [8, 160, 160, 160, 160, 512, 512, 512]
    assert [decode_batch_default(25 * 1024, tp, "0.5.17") for tp in (1, 4)] == [24, 80]


def test_the_share_of_multimodal_models() -> None:
    """0.95 of it for an encoder like ViT-L/14 (24 layers of 1024), a tenth less for one twice as large: 0.8 to 1.05."""
    base = int(11.5 * 24 * 1024**2)
    assert encoder_factor(base, "0.5.23") == pytest.approx(0.95)
    assert encoder_factor(2 * base, "0.5.23") == pytest.approx(0.95 * 0.9)
    assert encoder_factor(50 * base, "0.5.23") == pytest.approx(0.95 * 0.8)
    assert encoder_factor(base // 4, "0.5.23") == pytest.approx(0.95 * 1.05)
    assert encoder_factor(2 * base, "0.4.9") == 0.9
    warned = "the smaller share of multimodal models is reckoned from the parameters of their encoder"
    for name, given, told in (
        ("qwen2.5-vl-7b", {}, True),
        ("qwen2.5-vl-7b", {"mem_fraction_static": 0.7}, False),
        ("qwen3-8b", {}, False),
    ):
        made = plan(name, gpu="h200-sxm", engine="sglang", max_model_len=4096, **given)  # type: ignore[arg-type]
        assert (warned in made.warnings) is told


def test_models_whose_layers_do_not_grow_take_the_tokens_that_are_asked_for() -> None:
    state = Cell(0, 0, 0, 0, 0, conv=1000, recurrent=3000)
    given: dict[str, Any] = dict(version="0.5.23", page=64, ratio=0.8, state_ratio=0.9, slots=None)
    found = pools_of(190_000, state, **given, limit=1000)
    assert (found.tokens, found.window_tokens) == (960, 0)
    assert found.slots == 90_000 // 4000 - found.padding_slots
    assert pools_of(190_000, state, **given, limit=None).tokens == 0


@pytest.mark.parametrize("page", [1, 16, 64])
def test_sglang_starts_from_its_least_bytes_on(page: int) -> None:
    """To the byte though a token costs a broken number of them, 12 x 2048 x 1.8; two pages less are too few."""
    chosen, found = outcome("gpt-oss-20b", "sglang", page_size=page)
    least = chosen.start_bytes(found.stages[0], found.settings)
    assert chosen.pool(found.stages, found.settings, (least,)).starts
    assert not chosen.pool(found.stages, found.settings, (least - int(2 * page * 44236.8),)).starts


def test_a_common_prefix_is_held_once_under_sglang() -> None:
    """Ten requests of 1,280 tokens that share 1,000: 10 x 1280 - 9 x 1000 tokens, whole pages."""
    for page, shared in ((1, 1000), (64, 960)):
        given: dict[str, Any] = dict(concurrency=10, shared_prefix_tokens=1000, page_size=page)
        chosen, found = outcome("llama-3.1-8b", "sglang", **given)
        assert chosen.shared_prefix_tokens(found.stages[0].spec, found.settings) == shared
        tokens = 10 * 1280 - 9 * shared
        enough, short = (tokens * 131_072, (tokens - 1) * 131_072)
        assert chosen.holds(found.stages, found.settings, (enough,))
        assert not chosen.holds(found.stages, found.settings, (short,))
    chosen, found = outcome("llama-3.1-8b", "sglang", shared_prefix_tokens=1024)
    assert chosen.shared_prefix_tokens(found.stages[0].spec, found.settings) == 1023  # of 1,024: the last is computed
    chosen, found = outcome("llama-3.1-8b", "sglang", shared_prefix_tokens=1000, disable_radix_cache=True)
    assert chosen.shared_prefix_tokens(found.stages[0].spec, found.settings) == 0


def test_a_windowed_pool_that_holds_no_window_says_what_it_needs() -> None:
    chosen, found = outcome("gpt-oss-20b", "sglang", page_size=64)
    refusal = chosen.pool(found.stages, found.settings, (150 * 44_237,)).refusal
    assert refusal == "64 tokens for windowed layers, and one request needs more than 191"


@pytest.mark.parametrize(("tokens", "windowed"), [(50, 64), (128, 128), (1000, 192), (4096, 192)])
def test_a_request_of_gpt_oss_holds_its_window_and_a_page(tokens: int, windowed: int) -> None:
    """12 layers of each sort, 2 KiB a token and layer; the window of 128 and a page of 64 beside."""
    chosen, found = outcome("gpt-oss-20b", "sglang", page_size=64)
    held = -(-tokens // 64) * 64
    assert chosen.request_bytes(found.stages[0], found.settings, tokens) == (held + windowed) * 12 * 2048


# ---- TensorRT-LLM ----


def test_pools_of_windows_under_tensorrt_llm() -> None:
    made = plan("gemma-3-27b", engine="tensorrt-llm", kv_cache_memory_bytes=4 * GIB, max_model_len=4096)
    assert made.allocation is not None
    layers = {p.kind: p.bytes / (p.cells or 1) / 8192 for p in made.allocation.pools}
    assert layers == {"full": 10, "sliding": 52}
    for size, near in ((48, 32), (3, 2), (100, 64)):
        with pytest.raises(UnsupportedError, match="power of two") as refused:
            plan("llama-3.1-8b", engine="tensorrt-llm", tokens_per_block=size, max_model_len=4096)
        assert refused.value.hint == f"type --tokens-per-block {near}"


# ---- ExLlamaV3 ----


def test_a_request_of_exllamav3_is_its_pages_and_one_slot() -> None:
    chosen, found = outcome("qwen3-next-80b-a3b", "exllamav3")
    (stage,) = found.stages
    slots = sum(p.bytes for p in chosen.slot_pools(stage.spec, found.settings))
    token = chosen.token_bytes(stage.spec, found.settings)
    count = found.settings.max_num_seqs
    assert slots
    assert count
    for tokens, pages in ((1, 1), (256, 1), (257, 2), (4096, 16)):
        assert chosen.request_bytes(stage, found.settings, tokens) == pages * 256 * token + slots // count


# ---- llama.cpp ----


def test_latent_rows_that_llama_cpp_keeps_whole() -> None:
    """MiniCPM3's graph caches K and V of every head: 16 heads of 128 + 64 and of 128 in DeepSeek-V2-Lite's shape."""
    spec = load_model("deepseek-v2-lite")
    whole = replace(spec, architecture="MiniCPM3ForCausalLM")
    given: dict[str, Any] = dict(ctx_size=1024, parallel=1, max_model_len=None)
    latent, heads = (plan(m, engine="llama.cpp", **given).allocation for m in (spec, whole))
    assert latent is not None
    assert heads is not None
    assert latent.bytes == 1024 * 27 * 576 * 2
    assert heads.bytes == 1024 * 27 * 16 * (192 + 128) * 2
    told = "llama.cpp caches K and V of every head for minicpm3, not the latent row"
    assert told in plan(whole, engine="llama.cpp", **given).warnings
    assert told not in plan(spec, engine="llama.cpp", **given).warnings


@pytest.mark.parametrize(
    ("asked", "layers"),
    [(None, 33), ("all", 33), (-1, 33), (" Auto ", 33), (99, 33), (33, 33), (32, 32), (7, 7), (0, 0)],
)
def test_layers_on_gpus_with_the_output_head_as_the_last(asked: Any, layers: int) -> None:
    assert offload.gpu_layers(asked, 32) == layers
    if layers:
        assert offload.split(32, layers, (1.0,)).host == min(32, 33 - layers)


def test_blocks_of_a_quantised_type_divide_a_latent_row() -> None:
    """q8_0 stores blocks of 32: 512 + 64 elements are 18 of them, 500 + 64 are none."""
    spec = load_model("deepseek-v2-lite")
    given: dict[str, Any] = dict(engine="llama.cpp", ctx_size=1024, kv_cache_dtype="q8_0", max_model_len=None)
    assert plan(spec, **given).allocation is not None
    blocks = {
        name: replace(block, mixers=tuple(replace(m, kv_lora_rank=500) for m in block.mixers))
        for name, block in spec.blocks.items()
    }
    with pytest.raises(UnsupportedError, match=r"do not divide the K head size of 564"):
        plan(replace(spec, blocks=blocks), **given)


# ---- vLLM ----


def test_less_than_the_null_block_holds_no_request() -> None:
    chosen, found = outcome("llama-3.1-8b", "vllm")
    block = 16 * 131_072
    counts = [chosen.requests_at(found.stages, found.settings, (size * block,), 16) for size in (0, 1, 2, 3)]
    assert counts == [0, 0, 1, 2]


@pytest.mark.parametrize(("gpu", "pages"), [("b200", (32, 64)), ("h200-sxm", (32, 64)), ("rtx-5090", (64,))])
def test_pages_of_pooled_index_keys(gpu: str, pages: tuple[int, ...]) -> None:
    """A pooled key stands for several tokens: blocks are as many pages of the indexer, which has fewer on 12.x."""
    spec, device, chosen = load_model("glm-5.3-flash"), load_gpu(gpu), get_engine("vllm")
    settings, _ = resolve(spec, device, chosen, {"max_model_len": 4096})
    sizes = backends_of(spec, settings, chosen.kv_formats(spec, settings))[0].sizes
    pooled = {s.ratio for m in mixers_of(spec) for s in m.streams() if s.role == "index"}
    assert sizes == tuple(max(pooled) * page for page in pages)


# ---- MLX ----


def test_a_prompt_alone_does_not_grow_past_itself() -> None:
    for prompt in (1, 255, 256, 300, 5000):
        found = growth.chunked(prompt, prompt, 2048, 8192)
        assert found.last == found.after_prompt == growth.up(prompt)
        assert growth.plain(prompt, prompt, 2048).last == growth.up(prompt)
