"""How large a share of the device SGLang gives to weights and cache when nobody says.

Read in ``python/sglang/srt/server_args.py`` of SGLang 0.4.9, 0.5.2, 0.5.6, 0.5.12, 0.5.14 and 0.5.17, and in
``python/sglang/srt/arg_groups/memory_hook.py`` of 0.5.20 to 0.5.23. All figures here are MiB, as SGLang reckons them.
"""

from __future__ import annotations

from kvplan.engines.versions import at_least

FORMULA_SINCE = "0.5.6"
"""Before: a fixed reserve by size of card (0.4.9 and 0.5.2)."""
PREFILL_GRAPHS_SINCE = "0.5.12"
LATENT_GRAPHS_MIB = 1536
LARGE_SMALL_CARDS_SINCE = "0.5.20"
"""Cards of 20 to 35 GiB: chunks of 4,096 instead of 2,048, larger decode graphs."""
RUNNING_LIMITS_GRAPHS_SINCE = "0.5.22"
"""Fewer running requests than a decode graph holds make it smaller (0.5.21 has no such rule)."""
ENCODER_SIZE_SINCE = "0.5.2"
"""Before (0.4.9): 0.9 of the share, whatever the encoder."""
_BASE_ENCODER = 24 * 1024**2
"""Layers times the square of the hidden size of the encoder that SGLang compares with (ViT-L/14)."""
_PARAMETERS_PER_SQUARE = 11.5
"""An encoder layer of hidden size H has 4 H^2 parameters in attention and 2 x 3.75 H^2 in its MLP."""


def chunk_default(gpu_mib: int, version: str) -> int:
    """``chunked_prefill_size`` by size of card."""
    if not at_least(version, FORMULA_SINCE):
        return 2048 if gpu_mib < 35 * 1024 else 8192 if gpu_mib < 160 * 1024 else 16384
    if gpu_mib < 20 * 1024:
        return 2048
    if gpu_mib < 35 * 1024:
        return 4096 if at_least(version, LARGE_SMALL_CARDS_SINCE) else 2048
    if gpu_mib < 60 * 1024:
        return 4096
    return 8192 if gpu_mib < 160 * 1024 else 16384


def decode_batch_default(gpu_mib: int, tp: int, version: str) -> int:
    """The largest batch whose decoding is captured as a graph."""
    if gpu_mib < 20 * 1024:
        return 8
    if gpu_mib < 35 * 1024:
        small, large = (48, 160) if at_least(version, LARGE_SMALL_CARDS_SINCE) else (24, 80)
    elif gpu_mib < 60 * 1024:
        small, large = 32, 160
    elif gpu_mib < 160 * 1024:
        small, large = 256, 512
    else:
        small = large = 512
    return small if tp < 4 else large


def prefill_graph_count(most: int) -> int:
    """Token counts up to `most` whose prefill is captured as a graph."""
    sizes = (
        *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256),
        *range(4608, most + 1, 512),
    )  # fmt: skip
    return sum(size <= most for size in sizes)


def reserved_mib(
    gpu_mib: int, *, version: str, tp: int, pp: int, chunk: int, running: int | None, attn_dp: int, latent: bool
) -> float:
    """What is left to activations, graphs and the rest.

    Args:
        chunk: chunked_prefill_size.
        running: max_running_requests, if given; smaller than the default it also limits the decode graphs.
        attn_dp: ranks that attend for requests of their own; 1: no DP attention.
        latent: the model has latent attention.
    """
    if not at_least(version, FORMULA_SINCE):
        return _by_class(gpu_mib, tp * pp) + (4096 if attn_dp > 1 else 0)
    batch = decode_batch_default(gpu_mib, tp, version)
    if running is not None and at_least(version, RUNNING_LIMITS_GRAPHS_SINCE):
        batch = min(batch, running)
    reserved = 512 + 1.5 * max(chunk, 2048) + 1024 * tp * pp / 8 + 2 * batch
    if attn_dp > 1:
        reserved += (4.5 if batch > 300 else 3) * batch * attn_dp
    if at_least(version, PREFILL_GRAPHS_SINCE):
        reserved += LATENT_GRAPHS_MIB if latent else 8 * prefill_graph_count(chunk)
    return max(reserved, 10240) if gpu_mib > 60 * 1024 else reserved


def _by_class(gpu_mib: int, ranks: int) -> float:
    if gpu_mib < 35 * 1024:
        return (2.8 + ranks / 10) * 1024
    if gpu_mib < 90 * 1024:
        return (9.5 + ranks / 2) * 1024
    return (12 + ranks / 2) * 1024 if gpu_mib < 160 * 1024 else 32 * 1024


def static_fraction(gpu_mib: int, reserved: float) -> float:
    """``mem_fraction_static``, rounded as SGLang rounds it."""
    return round((gpu_mib - reserved) / gpu_mib, 3)


def encoder_factor(parameters: int, version: str) -> float:
    """What the share of a multimodal model is multiplied by (``adjust_mem_fraction_for_vlm``).

    SGLang reads the layers and the hidden size of ``vision_config`` and takes 24 and 1024 where they have other
    names; here layers times hidden size squared follows from the encoder's `parameters`.
    """
    if not at_least(version, ENCODER_SIZE_SINCE):
        return 0.9
    ratio = parameters / _PARAMETERS_PER_SQUARE / _BASE_ENCODER
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (ratio - 1)))
