"""The Python calls that build a cache as it was planned, for engines that are libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan.engines.base import Settings

_QUANTIZED = {
    "cache_backend": "backend", "cache_nbits": "nbits", "cache_group_size": "q_group_size",
    "cache_residual_length": "residual_length",
}  # fmt: skip
"""Setting -> argument of transformers' ``QuantizedCache`` (5.24.0 ``cache_utils.py``)."""


def call(settings: Settings, name: str) -> str:
    """One Python expression; `name` is the model's."""
    return _transformers(settings) if settings.engine == "transformers" else _exllamav3(settings)


def _transformers(settings: Settings) -> str:
    extra: dict[str, Any] = settings.extra
    kind = extra.get("cache_implementation", "dynamic")
    inside = ["**inputs", f"max_new_tokens={settings.output_tokens}"]
    if kind == "quantized":
        config = {
            argument: extra[setting] for setting, argument in _QUANTIZED.items() if extra.get(setting) is not None
        }
        inside += ['cache_implementation="quantized"', f"cache_config={config!r}".replace("'", '"')]
    elif kind == "static":
        cells = extra.get("max_cache_len", settings.max_model_len)
        inside.append(f"past_key_values=StaticCache(config=model.config, max_cache_len={cells})")
    elif kind == "dynamic_noconfig":
        inside.append("past_key_values=DynamicCache()")
    return f"model.generate({', '.join(inside)})"


def _exllamav3(settings: Settings) -> str:
    """``Cache`` of exllamav3 1.6.5 ``cache/cache.py``; layers over several GPUs are dealt by ``model.load``."""
    from kvplan.engines.exllamav3.engine import ExLlamaV3

    tokens = settings.extra.get("cache_tokens") or settings.max_model_len
    inside = ["model", f"max_num_tokens={tokens}"]
    if "max_num_seqs" not in settings.defaults:
        inside.append(f"max_batch_size={settings.max_num_seqs}")
    bits = ExLlamaV3.cache_bits(settings)
    if bits is not None:
        inside += ["layer_type=CacheLayer_quant", f"k_bits={bits[0]}", f"v_bits={bits[1]}"]
    return f"Cache({', '.join(inside)})"
