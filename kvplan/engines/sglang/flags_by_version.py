"""What SGLang's command line takes in which release.

Source: ``srt/server_args.py`` of 0.4.9, 0.5.2, 0.5.6, 0.5.12, 0.5.14 and 0.5.17, ``srt/arg_groups/fields/`` of
0.5.20 and 0.5.23.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.versions import at_least
from kvplan.errors import UnsupportedError, nearest
from kvplan.spec.formats import get_format

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.spec.model import ModelSpec

ATTENTION_DP_SINCE = "0.5.23"
"""``--attn-dp-size N``; before, ``--dp-size N --enable-dp-attention``."""
SINCE = {
    "swa_full_tokens_ratio": "0.5.2", "max_mamba_cache_size": "0.5.2", "mamba_ssm_cache_dtype": "0.5.2",
    "mamba_full_memory_ratio": "0.5.6", "mamba_radix_cache_strategy": "0.5.14",
}  # fmt: skip
"""Setting -> the first release read whose command line has a flag for it; the others are in all of them."""

ALLOW_LONG = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
"""What lets a context be longer than the model's."""
_REFUSES_LONG_SINCE = "0.5.2"
"""Before, that variable counts as set (``srt/configs/model_config.py`` of 0.4.9)."""

_CACHE_TYPES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "fp8_e5m2": (("0", "", "fp8_e5m2"),),
    "fp8_e4m3": (("0", "", "fp8_e4m3"),),
    "bf16": (("0.5.6", "", "bf16"),),
    "nvfp4": (("0.5.6", "0.5.17", "fp4_e2m1"), ("0.5.17", "", "nvfp4")),
    "mxfp8": (("0.5.17", "", "mxfp8"),),
}
"""Cache format -> (since, before, how ``--kv-cache-dtype`` spells it)."""


def cache_type(name: str, model: ModelSpec, weights: str, version: str) -> str | None:
    """The value of ``--kv-cache-dtype`` for a format; None: the flag is left out, since the model runs in it.

    Args:
        weights: what ``--dtype`` makes of the weights, where it does; else anything.

    Raises:
        UnsupportedError: this release has no such cache; names the nearest that it has.
    """
    if name == "auto":
        return None
    names = [get_format(part, use="cache", where="--kv-cache-dtype").name for part in name.split(",")]
    if len(set(names)) > 1:
        raise UnsupportedError(
            "SGLang stores K and V in one format", where="--kv-cache-dtype", hint=f"type --kv-cache-dtype {names[0]}"
        )
    for since, before, spelled in _CACHE_TYPES.get(names[0], ()):
        if at_least(version, since) and not (before and at_least(version, before)):
            return spelled
    if names[0] in (model.dtype, weights):
        return None
    known = [
        spelled
        for rows in _CACHE_TYPES.values()
        for since, before, spelled in rows
        if at_least(version, since) and not (before and at_least(version, before))
    ]
    plain = get_format(names[0]).block_elements == 1 and get_format(names[0]).block_bytes > 1
    near = "auto" if plain else (nearest(names[0], known) or ["fp8_e4m3"])[0]
    raise UnsupportedError(
        f"SGLang {version} has no cache in {names[0]} (it has {', '.join(known)})",
        where="--kv-cache-dtype",
        hint=f"type --kv-cache-dtype {near}",
    )


def check_length(settings: Settings, limit: int | None, version: str) -> list[str]:
    """A warning of a context longer than the model's.

    Source: ``srt/configs/model_config.py``, ``_derive_context_length``.

    Raises:
        UnsupportedError: this release does not start with it.
    """
    if not limit or settings.max_model_len <= limit or not at_least(version, _REFUSES_LONG_SINCE):
        return []
    if settings.allow_long_max_model_len:
        return [f"max_model_len {settings.max_model_len:,} is above the model's {limit:,} ({ALLOW_LONG}=1)"]
    raise UnsupportedError(
        f"SGLang {version} refuses {settings.max_model_len:,} tokens: the model's maximum is {limit:,}",
        where="--max-model-len",
        hint=f"type --max-model-len {limit}, or put {ALLOW_LONG}=1 before the launch line",
    )
