"""Times of steps at made-up round rates, where each figure can be worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from round_rates import LLAMA_PARAMETERS, ROUND, TABLE, made, works

from kvplan import load_model
from kvplan.planning.speed import decode, prefill
from kvplan.planning.speed import work as of
from kvplan.planning.speed.decode import Layout, Step
from kvplan.planning.speed.profile import Lengths, passed, profile
from kvplan.planning.speed.rates import Rates


def step(batch: int, context: int, rates: Rates = ROUND, layout: Layout = Layout(), **given: Any) -> Step:  # noqa: B008
    return decode.step(works(**given), rates, layout, batch, context)


# ---- decode ----


def test_a_step_by_hand() -> None:
    """Batch 10 at 1000 tokens: 16.06 GB less the embedding, 1.31 GB of cache; 2 FLOPs a parameter and token."""
    weights = 2 * (LLAMA_PARAMETERS - TABLE) / 1e12
    cache_ = 131_072 * 1000 * 10 / 5e11
    products = 2 * (LLAMA_PARAMETERS - TABLE) * 10 / 1e15
    scores = 32 * 2 * 2 * 4096 * 1000 * 10 / 2e14
    # a head and four matrix kernels a layer, one attention kernel a layer, what stands between
    latency = (1 + 32 * 4) * 1e-6 + 32 * 10e-6 + 32 * 100e-6 + 0.5
    parts = step(10, 1000)
    assert parts.memory == pytest.approx(weights + cache_)
    assert parts.compute == pytest.approx(products + scores)
    assert parts.latency == pytest.approx(latency)
    assert parts.communication == 0
    together = (weights**3 + products**3) ** (1 / 3) + (cache_**3 + scores**3) ** (1 / 3)
    assert parts.seconds == pytest.approx(together + latency)


def test_without_matrix_rates_a_step_is_its_parts_one_after_the_other() -> None:
    unknown = ROUND._replace(matmul_flops=None)
    parts = step(10, 1000, unknown, Layout(tp=2), tensor_parallel_size=2)
    assert parts.compute is None
    assert parts.communication > 0
    assert parts.seconds == pytest.approx(parts.memory + parts.latency + parts.communication)
    assert step(10, 1000, ROUND._replace(attention_flops=None)).compute is None
    assert decode.bound(parts) is None
    assert decode.ceiling(works(), unknown, Layout(), 16) is None
    assert decode.ceiling(works(), ROUND._replace(attention_flops=None), Layout(), 16) is None
    assert decode.ridge_batch(works(), unknown, Layout()) is None
    assert decode.saturation_batch(works(), unknown, Layout(), 16) is None


def test_wider_steps_read_the_cache_once_and_compute_it_for_each_token() -> None:
    one, three = (decode.step(works(), ROUND, Layout(), 10, 1000, width=w) for w in (1, 3))
    assert three.memory == pytest.approx(one.memory)
    assert three.compute == pytest.approx(3 * one.compute)


@pytest.mark.parametrize(("tp", "batch"), [(2, 1), (4, 1), (4, 10), (8, 300)])
def test_messages_of_tensor_parallelism(tp: int, batch: int) -> None:
    """Two ring all-reduces a layer move 2 (r - 1) / r of a hidden vector, then the ranks' logits are gathered."""
    reduces = 64 * (2 * (tp - 1) / tp * 4096 * 2 * batch / 1e11 + 1e-5)
    gather = (tp - 1) * (128_256 // tp) * 2 * batch / 1e11 + 1e-5
    (work,) = works(tensor_parallel_size=tp)
    assert decode.message_seconds(work, ROUND, Layout(tp=tp), batch) == pytest.approx(reduces + gather)
    middle = work._replace(vocab_rows=0)
    assert decode.message_seconds(middle, ROUND, Layout(tp=tp), batch) == pytest.approx(reduces)


def test_messages_between_stages_are_one_hidden_vector() -> None:
    work = works(pipeline_parallel_size=2)[0]
    assert decode.message_seconds(work, ROUND, Layout(pp=2), 7) == pytest.approx(7 * 4096 * 2 / 1e11 + 1e-5)
    assert decode.message_seconds(work, ROUND, Layout(), 7) == 0


def test_messages_of_expert_parallelism() -> None:
    """DeepSeek-V3 on 8 replicas: 58 routed layers carry each token to 8 experts and back, 7 of 8 times elsewhere."""
    (work,) = works("deepseek-v3", data_parallel_size=8, enable_expert_parallel=True)
    layout = Layout(dp=8, expert_parallel=True)
    moved = 58 * 2 * 8 * 7 / 8 * 7168 * 2
    assert decode.message_seconds(work, ROUND, layout, 10) == pytest.approx(10 * moved / 1e11 + 2 * 58 * 1e-5)
    assert decode.message_seconds(work, ROUND, Layout(dp=8), 10) == 0
    # with two ranks a replica, the second all-reduce of a routed layer gives way to the pair of all-to-alls
    (work,) = works("deepseek-v3", data_parallel_size=4, tensor_parallel_size=2, enable_expert_parallel=True)
    layout = Layout(tp=2, dp=4, expert_parallel=True)
    reduces, row = 2 * 61 - 58, 7168 * 2
    tensor = reduces * (10 * 2 * 1 / 2 * row / 1e11 + 1e-5) + 10 * 129_280 // 2 * 2 / 1e11 + 1e-5
    expert = 10 * 58 * 2 * 8 * 7 / 8 * row / 2 / 1e11 + 2 * 58 * 1e-5
    assert decode.message_seconds(work, ROUND, layout, 10) == pytest.approx(tensor + expert)


def test_stages_follow_each_other_and_the_slowest_serves_every_micro_batch() -> None:
    staged = works(pipeline_parallel_size=4)
    one = decode.step(staged, ROUND, Layout(pp=4), 1, 1000)
    each = [decode.step([w], ROUND, Layout(pp=4), 1, 1000).seconds for w in staged]
    # Layout(pp=4) counts the step's own time with the stages passed and, as a bound, with the slowest stage
    apart = [seconds - 0.5 for seconds in each]
    assert one.seconds == pytest.approx(0.5 + sum(apart))
    crowd = decode.step(staged, ROUND, Layout(pp=4), 400, 1000)
    slowest = max(decode.step([w], ROUND._replace(step_seconds=0.0), Layout(), 100, 1000).seconds for w in staged)
    message = decode.message_seconds(staged[0], ROUND, Layout(pp=4), 100)
    assert crowd.seconds == pytest.approx(0.5 + 4 * (slowest + message), rel=1e-6)


def test_kernels_cost_what_they_cost() -> None:
    (dense,) = works()
    assert decode.kernel_seconds(dense, ROUND) == pytest.approx(129e-6 + 320e-6 + 3200e-6)
    # Mixtral 8x7B: per layer two kernels of attention and three of experts, and a routing
    (work,) = works("mixtral-8x7b")
    assert decode.kernel_seconds(work, ROUND) == pytest.approx((1 + 32 * 5) * 1e-6 + 320e-6 + 3200e-6 + 32e-3)
    # DeepSeek-V3: five kernels of attention; three dense layers, then experts with a shared one beside
    (work,) = works("deepseek-v3")
    linear = 1 + 61 * 5 + 3 * 2 + 58 * 5
    assert tuple(work.kernels) == (linear, 61, 61, 2 * 61, 58)
    # V3.2's indexer: two matrix kernels and one over its keys besides
    (work,) = works("deepseek-v3.2")
    assert tuple(work.kernels) == (linear + 61 * 2, 2 * 61, 61, 2 * 61, 58)


def test_what_bounds_a_step() -> None:
    assert decode.bound(Step(3.0, 2.0, 9.0, 1.0, 15.0)) == "memory"
    assert decode.bound(Step(2.0, 3.0, 9.0, 1.0, 15.0)) == "compute"
    assert decode.bound(Step(2.0, 3.0, 9.0, 4.0, 15.0)) == "communication"
    # where unpacking takes longer than reading, two equal times join to the cube root of 2
    assert decode.bound(Step(2.0 ** (1 / 3) * 1.001, 0.1, 0.0, 0.0, 2.0), 1.0) == "compute"
    assert decode.bound(Step(2.0 ** (1 / 3) * 0.999, 0.1, 0.0, 0.0, 2.0), 1.0) == "memory"


def test_the_ridge_is_where_products_take_as_long_as_reading() -> None:
    # 2 bytes a weight at 1e12 a second against 2 FLOPs at 1e15: a thousand tokens
    assert decode.ridge_batch(works(), ROUND, Layout()) == 1000
    assert decode.ridge_batch(works(), ROUND._replace(matmul_flops=2e15), Layout()) == 2000
    staged = works(pipeline_parallel_size=4)
    ridge = decode.ridge_batch(staged, ROUND, Layout(pp=4))
    assert ridge is not None
    assert 3996 < ridge <= 4000


def test_the_ceiling_is_what_every_token_costs_by_itself() -> None:
    products = 2 * (LLAMA_PARAMETERS - TABLE) / 1e15
    cache_, scores = 131_072 * 1000 / 5e11, 32 * 4 * 4096 * 1000 / 2e14
    own = products + (cache_**3 + scores**3) ** (1 / 3)
    assert decode.ceiling(works(), ROUND, Layout(), 1000) == pytest.approx(1 / own)
    assert decode.ceiling(works(), ROUND, Layout(dp=3), 1000) == pytest.approx(3 / own)
    (rank,) = works(tensor_parallel_size=2)
    sent = 64 * 4096 * 2 / 1e11 + 64_128 * 2 / 1e11
    split = products / 2 + ((cache_ / 2) ** 3 + (scores / 2) ** 3) ** (1 / 3) + sent
    assert decode.ceiling([rank], ROUND, Layout(tp=2), 1000) == pytest.approx(1 / split, rel=1e-4)


def test_seconds_that_the_memory_alone_takes() -> None:
    assert decode.memory_seconds(works(), ROUND, Layout(), 10, 1000) is None
    twice = ROUND._replace(weight_memory=2e12)
    weights, cache_ = 2 * (LLAMA_PARAMETERS - TABLE), 131_072 * 1000 * 10
    assert decode.memory_seconds(works(), twice, Layout(), 10, 1000) == pytest.approx(weights / 2e12 + cache_ / 5e11)
    other = ROUND._replace(attention_memory=1e12)
    assert decode.memory_seconds(works(), other, Layout(), 10, 1000) == pytest.approx(weights / 1e12 + cache_ / 1e12)


# ---- work ----


def test_work_of_a_tied_model() -> None:
    """Llama 3.2 1B reads its embedding as the head; two ranks read half of the rows each."""
    (work,) = works("llama-3.2-1b")
    assert work.head_bytes == 2 * 128_256 * 2048
    assert work.vocab_rows == 128_256
    (rank,) = works("llama-3.2-1b", tensor_parallel_size=2)
    assert (rank.head_bytes, rank.vocab_rows) == (2 * 64_128 * 2048, 64_128)
    first, last = works("llama-3.2-1b", pipeline_parallel_size=2)
    assert (first.head_bytes, first.vocab_rows) == (0, 0)
    assert (last.head_bytes, last.vocab_rows) == (2 * 128_256 * 2048, 128_256)


def test_parameters_that_a_token_multiplies() -> None:
    (work,) = works()
    assert of.token_parameters(work) == LLAMA_PARAMETERS - TABLE
    assert of.token_parameters(work, head=False) == LLAMA_PARAMETERS - 2 * TABLE
    # Mixtral 8x7B: 2 of 8 experts, 12.9 B of 46.7 B parameters
    spec = load_model("mixtral-8x7b")
    (work,) = works("mixtral-8x7b")
    routed = 32 * 8 * 3 * 4096 * 14_336
    assert of.token_parameters(work) == spec.parameters - 32_000 * 4096 - routed * 6 // 8
    (work,) = works("mixtral-8x7b", data_parallel_size=4, enable_expert_parallel=True)
    (experts,) = work.experts
    assert experts.parameters == routed // 4
    # four replicas' tokens meet in a quarter of the experts: as many products as before
    assert of.token_parameters(work, head=False) - work.parameters == routed * 2 // 8


def test_context_parallel_ranks_read_their_share() -> None:
    (work,) = works("deepseek-v3", tensor_parallel_size=8, decode_context_parallel_size=8)
    assert of.kv_bytes(work, 1000) == 125 * 70_272
    assert of.kv_bytes(work, 1001) == 126 * 70_272


def test_kivi_and_turboquant_read_what_they_store() -> None:
    (kivi,) = works(kv_cache_dtype="kivi_2bit_g32")
    packed = 131_072 * 3 // 16
    assert of.kv_bytes(kivi, 100) == 100 * 131_072
    assert of.kv_bytes(kivi, 1000) == 128 * 131_072 + 872 * packed
    (turbo,) = works(kv_cache_dtype="turboquant_k8v4")
    assert of.kv_bytes(turbo, 1000) == 1000 * (28 * 8 * 196 + 4 * 2 * 8 * 128 * 2)


def test_index_scores_count_at_the_rate_of_8_bits_where_the_engine_has_them() -> None:
    """DeepSeek-V3.2: 64 index heads of 128 on every rank look at every token; FLOPs stay what they are."""
    assert made("deepseek-v3.2", "vllm", tensor_parallel_size=8).rates.index_share == pytest.approx(0.5, rel=0.01)
    assert made("deepseek-v3.2", "transformers").rates.index_share == 1
    (work,) = works("deepseek-v3.2", tensor_parallel_size=8)
    index, n = 61 * 2 * 64 * 128, 10_000
    row, rebuilt = 2 * 16 * (576 + 512), 2 * 16 * (192 + 128)
    assert of.attention_flops(work, n) == 61 * 2048 * row + index * n
    assert of.attention_flops(work, n, 0.5) == 61 * 2048 * row + index * n / 2
    short = 2048 * 2049 // 2
    scores = 61 * (rebuilt * short + row * 2048 * (n - 2048))
    assert of.prefill_attention_flops(work, n) == scores + index * (n * (n + 1) // 2)
    assert of.prefill_attention_flops(work, n, 0.5) == scores + index * (n * (n + 1) // 2) / 2
    eight = ROUND._replace(index_share=0.5)
    slow, fast = (prefill.prompt([work], r, Layout(tp=8), n, 2048) for r in (ROUND, eight))
    assert slow is not None
    assert fast is not None
    assert slow.flops == fast.flops
    assert slow.compute - fast.compute == pytest.approx(index * (n * (n + 1) // 2) / 2 / 2e14)
    made_of = made("deepseek-v3.2", "vllm", tensor_parallel_size=8)._replace(rates=eight)
    lengths = Lengths(n, 256)
    total, _ = passed(profile(made_of, lengths), 4, 0.0, 1)
    want = decode.step(made_of.works, eight, made_of.layout, 4, lengths.context)
    assert total + eight.step_seconds == pytest.approx(want.seconds, rel=1e-6)


# ---- profile and lengths ----


def test_lengths() -> None:
    plain = Lengths(1000, 257)
    assert (plain.width, plain.request, plain.fresh, plain.steps) == (1, 1257, 1000, 256)
    assert (plain.context, plain.square) == (1128, 1000)
    assert (Lengths(1000, 1).steps, Lengths(1000, 0).steps) == (0, 0)
    shared = Lengths(1000, 257, shared=900)
    assert (shared.fresh, Lengths(1000, 257, shared=1000).fresh) == (100, 1)
    # long outputs are met more often: E[O^2] / 2 E[O]; the root of the mean square of prompts
    spread = Lengths(1000, 256, prompt_cv=0.75, output_cv=1.0)
    assert spread.context == 1000 + 256
    assert spread.square == 1250
    drafted = Lengths(1000, 257, drafts=2, tokens_per_step=2.0)
    assert (drafted.width, drafted.steps) == (3, 128)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("llama-3.1-8b", {}), ("llama-3.1-8b", {"tensor_parallel_size": 2}), ("gemma-3-27b", {}),
        ("mixtral-8x7b", {"tensor_parallel_size": 4}), ("qwen3-next-80b-a3b", {"tensor_parallel_size": 2}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch", [1, 50])
def test_a_profile_gives_the_steps_of_decode(name: str, given: dict[str, Any], batch: int) -> None:
    base = made(name, **given)._replace(rates=ROUND)
    lengths = Lengths(1000, 256)
    cost = profile(base, lengths)
    total, slowest = passed(cost, batch, 0.0, 1)
    want = decode.step(base.works, ROUND, base.layout, batch, lengths.context)
    assert total + cost.step_seconds == pytest.approx(want.seconds, rel=1e-6)
    assert slowest == total
    alone, _ = passed(cost, 0.0, 1000, 1)
    found = prefill.prompt(base.works, ROUND, base.layout, 1000, 8192)
    assert found is not None
    assert alone + cost.step_seconds == pytest.approx(found.seconds, rel=1e-6)


def test_equal_stages_are_counted_together() -> None:
    staged = made(pipeline_parallel_size=4)._replace(rates=ROUND)
    cost = profile(staged, Lengths(1000, 256))
    assert sorted(count for count, _ in cost.stages) == [1, 3]  # the last one has the head
    total, slowest = passed(cost, 10, 0.0, 1)
    hop = 10 * 4096 * 2 / 1e11 + 1e-5
    each = [decode.step([w], ROUND._replace(step_seconds=0.0), Layout(), 10, 1128).seconds + hop for w in staged.works]
    assert total == pytest.approx(sum(each), rel=1e-6)
    assert slowest == pytest.approx(max(each), rel=1e-6)


def test_a_shared_prefix_is_not_computed_again() -> None:
    base = made()._replace(rates=ROUND)
    cost = profile(base, Lengths(1000, 256, shared=600))
    (_, stage), fresh = cost.stages[0], 400
    squares = 32 * 4 * 4096 * (1000 * 1001 // 2 - 600 * 601 // 2)
    assert stage.prefill_scores * fresh == pytest.approx(squares / 2e14)
    # one chunk reads the whole cache at its end; each chunk reads the shared part
    assert (stage.prefill_cache + stage.prefill_chunk) * fresh == pytest.approx(131_072 * 1000 / 5e11)
    assert stage.prefill_chunk * fresh == pytest.approx(131_072 * (1000 + 600) / 2 / 5e11)
