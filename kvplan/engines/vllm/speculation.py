"""``--speculative-config``: which draft layers cache besides the model's, and how far they read ahead.

Source: vLLM 0.33.0 ``vllm/config/speculative.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.engines.base import Speculation
from kvplan.errors import InputError, UnsupportedError, printable

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.engines.vllm.versions import Rules, Version
    from kvplan.spec.model import ModelSpec

WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "custom_class")
"""Methods whose drafts cache nothing on the GPU."""
WITH_MODEL = ("eagle", "eagle3", "draft_model", "dflash", "dspark")
"""Methods that load another checkpoint, whose layers cache."""
OWN_ENDS = "draft_model"
"""The one of them that loads an embedding and a head of its own; the others take the model's if those are as wide.
Source: ``vllm/v1/spec_decode/draft_model.py`` and ``llm_base_proposer.py``, ``_maybe_share_embeddings``."""
OWN_LAYERS = {"Qwen3NextForCausalLM": 1}
"""Architectures that have draft layers though their configuration does not count them: how many.
Source: ``vllm/model_executor/models/qwen3_next_mtp.py``, ``Qwen3NextMultiTokenPredictor``."""
SHARED_CACHE = ("gemma4_mtp",)
"""Draft layers that read the model's own cache."""
GONE: dict[str, Version] = {"medusa": (0, 33, 0), "mlp_speculator": (0, 33, 0)}
"""Methods -> the release that removed them."""
CAME: dict[str, Version] = {"draft_model": (0, 15, 0)}
"""Methods -> the release that brought them to the V1 engine (0.14.0 ``vllm/engine/arg_utils.py`` refuses them)."""
_FLAG = "--speculative-config"


def parse(value: Any) -> Speculation | None:
    """The setting as a `Speculation`; None where it is off.

    Args:
        value: JSON text, a dict with the same keys, or None.

    Raises:
        InputError: not JSON, or without what the method needs.
    """
    if value is None:
        return None
    config = _object(value)
    model, method = config.get("model"), config.get("method")
    if method is None:
        method = "ngram" if model in ("ngram", "[ngram]") else "draft_model" if model is not None else None
    if method is None:
        raise InputError("neither a method nor a model", where=_FLAG, hint='for example \'{"method": "mtp"}\'')
    method = str(method)
    tokens = config.get("num_speculative_tokens")
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 < tokens <= 1 << 16):
        raise InputError(f"num_speculative_tokens must be a whole number above 0, not {tokens!r}", where=_FLAG)
    if method in WITHOUT_CACHE or method in SHARED_CACHE:
        return Speculation(method, _needed(tokens, method), None, False)
    if method == "mtp" or method.endswith("_mtp"):
        return Speculation("mtp", tokens, None, True)
    if method not in WITH_MODEL:
        known = ", ".join(("mtp", *WITH_MODEL, *WITHOUT_CACHE))
        raise InputError(f"method {printable(method, 40)!r} is not known", where=_FLAG, hint=f"known: {known}")
    if model is None:
        raise InputError(f"method {method} needs the draft's model", where=_FLAG, hint='add "model": NAME or a path')
    return Speculation(method, _needed(tokens, method), model, True, shares_ends=method != OWN_ENDS)


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        import json  # only where there is something to read

        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InputError("not JSON", where=_FLAG, hint='for example \'{"method": "mtp"}\'') from None
    if not isinstance(value, dict):
        raise InputError("not a JSON object", where=_FLAG, hint='for example \'{"method": "mtp"}\'')
    return value


def _needed(tokens: int | None, method: str) -> int:
    if tokens is None:
        raise InputError(
            f"method {method} needs num_speculative_tokens", where=_FLAG, hint='add "num_speculative_tokens": 3'
        )
    return tokens


def own_draft_layers(model: ModelSpec) -> tuple[str, ...]:
    """Blocks of the model's own draft layers, which multi-token prediction runs.

    Raises:
        UnsupportedError: it has none.
    """
    if model.draft_layers:
        return model.draft_layers
    count = OWN_LAYERS.get(model.architecture, 0)
    whole = [n for n in model.layers if any(s.window is None for m in model.blocks[n].mixers for s in m.streams())]
    if not count or not whole:
        raise UnsupportedError(
            f"{model.id} has no draft layers of its own", where=_FLAG, hint="name a method with a model"
        )
    return (whole[-1],) * count


def tokens_ahead(speculation: Speculation | None, draft_layers: int) -> int:
    """Draft tokens per step; multi-token prediction drafts one per layer unless told otherwise."""
    if speculation is None:
        return 0
    return speculation.tokens or max(1, draft_layers)


def retained_tokens(speculation: Speculation | None, draft_layers: int) -> int:
    """Tokens that a window keeps below itself: several draft modules re-read the last ones.

    Source: ``use_multi_module_mtp`` and ``num_prefill_lookahead_tokens``.
    """
    if speculation is None or speculation.method != "mtp":
        return 0
    ahead = tokens_ahead(speculation, draft_layers)
    return ahead - 1 if min(draft_layers, ahead) > 1 else 0


def reads_ahead(speculation: Speculation | None) -> bool:
    """Whether the draft is of the EAGLE family, multi-token prediction included: chunked attention holds all then."""
    return speculation is not None and speculation.method in ("mtp", "eagle", "eagle3", "dflash")


def of(settings: Settings) -> Speculation | None:
    """The speculation of a deployment."""
    return parse(settings.extra.get("speculative_config"))


def check_method(settings: Settings, rules: Rules) -> None:
    """Refuse a method that this release no longer has, or does not have yet, or not in pipeline stages.

    Source for stages: vLLM 0.11.0 to 0.29.0 ``vllm/config/speculative.py``, ``create_draft_parallel_config``.

    Raises:
        UnsupportedError: such a method.
    """
    spoken = of(settings)
    came = CAME.get(spoken.method) if spoken is not None else None
    if spoken is not None and came is not None and (0, 11, 0) <= rules.version < came:
        raise UnsupportedError(
            f"vLLM {rules.name} has no drafts by {spoken.method}, which came with {'.'.join(map(str, came))}",
            where=_FLAG, hint="name another method, such as ngram or eagle3",
        )  # fmt: skip
    staged = settings.pipeline_parallel_size > 1 and not rules.has("drafts_in_one_stage")
    if spoken is not None and spoken.method in ("eagle", "eagle3") and staged:
        raise UnsupportedError(
            f"vLLM {rules.name} cuts drafts by {spoken.method} into pipeline stages, for which they lack SupportsPP",
            where=_FLAG, hint="leave the stages out, or name another method, such as ngram",
        )  # fmt: skip
    gone = GONE.get(spoken.method) if spoken is not None else None
    if spoken is not None and gone is not None and rules.version >= gone:
        raise UnsupportedError(
            f"vLLM {rules.name} has no drafts by {spoken.method}, which went with {'.'.join(map(str, gone))}",
            where=_FLAG, hint="name another method, such as ngram or eagle3",
        )  # fmt: skip


def asks(settings: Settings, key: str) -> bool:
    """Whether the configuration of the drafts turns `key` on."""
    value = settings.extra.get("speculative_config")
    return value is not None and bool(_object(value).get(key))
