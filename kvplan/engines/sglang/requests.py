"""What SGLang lays out by its running requests: state slots, and the windowed pool where no radix tree keeps prefixes.

Read in ``_calculate_mamba_ratio`` and ``_handle_max_mamba_cache`` (0.5.12, 0.5.14:
``srt/model_executor/model_runner_kv_cache_mixin.py``; 0.5.17 to 0.5.23: ``srt/mem_cache/kv_cache_configurator.py``;
0.5.6: ``srt/model_executor/model_runner.py``), in ``compute_swa_request_cap``
(``srt/model_executor/pool_configurator.py``) and ``_mamba_radix_cache_resolution`` (``srt/arg_groups/overrides.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.common import maybe_number, whole_number
from kvplan.engines.sglang.models import has_radix_tree, tracks_states
from kvplan.engines.versions import at_least
from kvplan.errors import InputError, UnsupportedError, nearest, printable

if TYPE_CHECKING:
    from kvplan.engines.base import Settings

STRATEGIES = ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy")
"""Values of ``--mamba-radix-cache-strategy`` (0.5.12: ``--mamba-scheduler-strategy``)."""
STRATEGY_SINCE, LAZY_SINCE, TRACKING_SINCE = "0.5.12", "0.5.14", "0.5.14"
"""The flag; its lazy value; ``auto`` that tracks states (before, it never does)."""
REQUEST_CAP_SINCE = "0.5.14"
"""From here on running requests size the windowed pool where nothing keeps prefixes."""
WITHOUT_PREFIXES_SINCE = "0.5.12"
"""From here on a count of running requests sets the state slots where nothing keeps prefixes; 0.5.6 takes `SLOTS_0_5_6`
where none is given, later releases the ratio."""
SLOTS_0_5_6 = 512
EVICTION_INTERVAL = 128
"""``SGLANG_SWA_EVICTION_INTERVAL``: decoded tokens between two evictions behind the window (``srt/environ.py``)."""
ASSUMED_MIB = 81559
"""Where no card is named, its chunk of a prefill is that of one with so much memory."""
RADIX_SLOTS = 3
"""State slots that one running request takes with the radix tree."""


def keeps_prefixes(settings: Settings, architecture: str, version: str) -> bool:
    """Whether the radix tree is on."""
    return not settings.extra.get("disable_radix_cache") and has_radix_tree(architecture, version)


def check_strategy(settings: Settings, architecture: str, version: str) -> None:
    """Refuse a strategy of the states that SGLang refuses.

    Raises:
        InputError: no strategy; UnsupportedError: this release or this architecture has it not, or it needs overlap.
    """
    flag, asked = "--mamba-radix-cache-strategy", settings.extra.get("mamba_radix_cache_strategy")
    if asked is None:
        return
    known = [name for name in STRATEGIES if name != "extra_buffer_lazy" or at_least(version, LAZY_SINCE)]
    if asked not in STRATEGIES:
        raise InputError(
            f"{printable(str(asked), 40)!r} is none of {', '.join(known)}", where=flag,
            hint=f"type {flag} {(nearest(str(asked), known) or ['auto'])[0]}",
        )  # fmt: skip
    if asked not in known or not at_least(version, STRATEGY_SINCE):
        raise UnsupportedError(f"SGLang {version} has no {asked}", where=flag, hint="leave it out, or plan sglang")
    if asked.startswith("extra") and not tracks_states(architecture, version):
        what = f"SGLang {version} does not track the states of {architecture}"
        raise UnsupportedError(what, where=flag, hint=f"type {flag} no_buffer")
    if asked == "extra_buffer_lazy" and settings.extra.get("disable_overlap_schedule"):
        raise UnsupportedError(
            "extra_buffer_lazy needs the overlapped schedule", where=flag, hint=f"type {flag} extra_buffer"
        )


def slots_per_request(settings: Settings, architecture: str, version: str) -> int:
    """State slots of one running request: its own, and with the radix tree those it takes and tracks besides."""
    if not keeps_prefixes(settings, architecture, version):
        return 1
    overlaps = not settings.extra.get("disable_overlap_schedule")
    asked = settings.extra.get("mamba_radix_cache_strategy") or "auto"
    if asked == "auto":
        wanted = overlaps or whole_number(settings, "page_size", 1) > 1
        tracked = wanted and at_least(version, TRACKING_SINCE) and tracks_states(architecture, version)
        asked = "extra_buffer" if tracked else "no_buffer"
    if asked == "no_buffer":
        return RADIX_SLOTS
    return RADIX_SLOTS + (2 if overlaps and asked == "extra_buffer" else 1)


def state_slots(settings: Settings, architecture: str, version: str) -> int | None:
    """State slots of one DP rank that the settings say; None: as many as the ratio gives."""
    dp = whole_number(settings, "attn_dp_size", 1)
    asked = maybe_number(settings, "max_mamba_cache_size")
    if asked is not None:
        return asked // dp
    if keeps_prefixes(settings, architecture, version):
        return None
    running = maybe_number(settings, "max_running_requests")
    if running is not None:
        return max(1, running // dp)
    return None if at_least(version, WITHOUT_PREFIXES_SINCE) else max(1, SLOTS_0_5_6 // dp)


def window_tokens(settings: Settings, window: int, architecture: str, version: str) -> int | None:
    """Tokens of the windowed pool of one DP rank, in whole pages; None: the ratio gives them.

    A running request holds its window, what decoding adds until the next eviction, and a page at either end; besides
    them prefills fill two chunks, or one where nothing overlaps.
    """
    running = maybe_number(settings, "max_running_requests")
    chunk = maybe_number(settings, "chunked_prefill_size")
    if running is None or chunk is None or not at_least(version, REQUEST_CAP_SINCE):
        return None
    if keeps_prefixes(settings, architecture, version):
        return None
    page, dp = whole_number(settings, "page_size", 1), whole_number(settings, "attn_dp_size", 1)
    chunks = 1 if settings.extra.get("disable_overlap_schedule") else 2
    each = window + EVICTION_INTERVAL + page + page
    held = each * max(1, running // dp) + chunks * (chunk // dp) + page
    return -(-held // page) * page
