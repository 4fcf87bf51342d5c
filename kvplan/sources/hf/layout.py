"""From one description per layer to named blocks: which layers are alike, and what to call them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kvplan.errors import printable
from kvplan.sources.hf.keys import Config, Layers
from kvplan.spec.model import Block

MAX_LAYERS = 4096

LAYER_KINDS = {
    "full_attention": "global", "attention": "global", "global_attention": "global", "global": "global",
    "sliding_attention": "local", "local_attention": "local", "local": "local", "sliding_window": "local",
    "chunked_attention": "chunked",
}  # fmt: skip
"""Entries of ``layer_types`` that mean softmax attention."""


LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")


def layer_count(cfg: Config, keys: tuple[str, ...] = LAYER_KEYS) -> int:
    """Number of layers, under whichever of `keys` the file has it.

    Raises:
        SpecError: no such key, or more layers than any model has.
    """
    count = cfg.maybe_int(*keys)
    if count is None:
        listed = cfg.maybe_list("layers_block_type")
        count = len(listed) if listed is not None else cfg.need_int("num_hidden_layers")
    if not 0 < count <= MAX_LAYERS:
        raise cfg.error(f"{count} layers", hint=f"a model has between 1 and {MAX_LAYERS} layers")
    return count


class Layer(NamedTuple):
    """One layer and the words that tell it from the others (``local``, ``moe``)."""

    block: Block
    mixer: str = ""
    ffn: str = ""


def stack(layers: Iterable[Layer], **rest: Any) -> Layers:
    """Equal layers become one block, named by the words in which they differ.

    Args:
        layers: every layer, in order.
        rest: further fields of `Layers`.
    """
    found = list(layers)
    say_mixer = len({layer.mixer for layer in found}) > 1
    say_ffn = len({layer.ffn for layer in found}) > 1
    names: dict[str, Block] = {}
    order = []
    for layer in found:
        words = [layer.mixer] * say_mixer + [layer.ffn] * say_ffn
        base = "_".join(w for w in words if w) or "layer"
        name, n = base, 1
        while name in names and names[name] != layer.block:
            n += 1
            name = f"{base}_{n}"
        names[name] = layer.block
        order.append(name)
    return Layers(blocks=names, layers=tuple(order), **rest)


def window_size(cfg: Config) -> int | None:
    """The window that is in force: the size, unless the file says that it is not used."""
    size = cfg.maybe_int("sliding_window", "sliding_window_size", "attention_window_size", "window_size")
    cfg.ignore(("max_window_layers",))
    if cfg.get("use_sliding_window") is not None and not cfg.flag("use_sliding_window"):
        return None
    if size is not None and size <= 0:
        raise cfg.error(f"sliding_window must be above 0, not {size}", hint="leave it out for full attention")
    return size


def layer_windows(cfg: Config, rule: Callable[[int], bool] | None = None) -> list[int | None]:
    """The window of every layer; None where it attends to everything.

    Which layers slide is said by, in this order: ``layer_types``, a pattern (an interval or a string
    of L and G), the family's own `rule`, ``max_window_layers``, and else every layer does. A window
    longer than the context is one all the same (`kvplan.sources.hf.attention.softmax_attention`).

    Args:
        rule: layer index (from 0) -> whether it slides, for families whose files need not say.
    """
    count, size = layer_count(cfg), window_size(cfg)
    kinds = cfg.maybe_list("layer_types")
    patterned = cfg.get("sliding_window_pattern", "_sliding_window_pattern")
    if kinds is not None:
        local = [_is_local(cfg, kind) for kind in main_part(cfg, kinds, count)]
        if any(local) and size is None:
            raise cfg.error("layer_types has sliding layers and there is no sliding_window")
    elif size is None:
        return [None] * count
    elif patterned is not None:
        local = _from_pattern(cfg, patterned, count)
    elif rule is not None:
        local = [rule(i) for i in range(count)]
    elif cfg.get("use_sliding_window") is not None and cfg.maybe_int("max_window_layers") is not None:
        first = cfg.maybe_int("max_window_layers") or 0
        local = [i >= first for i in range(count)]
    else:
        local = [True] * count
    return [size if is_local else None for is_local in local]


DRAFT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
"""How files say their number of multi-token-prediction layers."""


def main_part(cfg: Config, kinds: list[Any], count: int, key: str = "layer_types") -> list[Any]:
    """The main model's part of the per-layer list `key`; entries of the draft layers that the file has may follow.

    Raises:
        SpecError: the list is shorter, or longer than layers and draft layers together.
    """
    drafted = max((cfg.maybe_int(k) or 0 for k in DRAFT_KEYS), default=0)
    if not count <= len(kinds) <= count + max(drafted, 0):
        also = f" and {drafted} draft layers" if drafted > 0 else ""
        raise cfg.error(f"{key} has {len(kinds)} entries for {count} layers{also}")
    return kinds[:count]


def indexer_layers(cfg: Config, count: int) -> list[bool]:
    """Which layers store index keys of their own; the others take the choice of the layer before them.

    ``indexer_types`` says so (``full`` or ``shared``), else the letters of ``index_topk_pattern`` (F or S), else one
    layer in ``index_topk_freq`` after the first ``index_skip_topk_offset``. Sources: transformers 5.24.0
    ``models/glm_moe_dsa/configuration_glm_moe_dsa.py``; vLLM 0.33.0 ``model_executor/models/deepseek_v2.py``.
    """
    key, kinds = "indexer_types", cfg.maybe_list("indexer_types")
    pattern, every = cfg.get("index_topk_pattern"), cfg.maybe_int("index_topk_freq")
    offset = cfg.maybe_int("index_skip_topk_offset")
    if kinds is None and pattern is not None:
        key = "index_topk_pattern"
        if not isinstance(pattern, str | list):
            raise cfg.error(f"{key} should be a string of F and S, not {printable(repr(pattern), 60)}")
        kinds = list(pattern)
    if kinds is None:
        step, offset = max(1 if every is None else every, 1), 2 if offset is None else offset
        return [max(i - offset + 1, 0) % step == 0 for i in range(count)]
    codes = {"full": True, "shared": False} | ({"F": True, "S": False} if key != "indexer_types" else {})
    odd = next((k for k in kinds if not isinstance(k, str) or k not in codes), None)
    if odd is not None:
        raise cfg.error(f"{key} has {printable(repr(odd), 40)}, which is neither full nor shared")
    return [codes[k] for k in main_part(cfg, kinds, count, key)]


def _is_local(cfg: Config, kind: Any) -> bool:
    if not isinstance(kind, str) or kind not in LAYER_KINDS:
        raise cfg.error(f"layer_types has {kind!r}, which is not understood", hint=f"known: {', '.join(LAYER_KINDS)}")
    return LAYER_KINDS[kind] != "global"


ASSUME_HINT = "--assume llama-like reads it as plain attention in every layer"


def _from_pattern(cfg: Config, pattern: Any, count: int) -> list[bool]:
    """``6``: five local layers, then a full one; ``LLLG``: the same in letters (the last layer is full)."""
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise cfg.error(f"sliding_window_pattern {pattern[:20]!r} is not understood", hint="a number, or L and G")
        return [pattern[i % len(pattern)] == "L" and i != count - 1 for i in range(count)]
    every = cfg.as_int(pattern, "sliding_window_pattern")
    if every <= 0:
        raise cfg.error(f"sliding_window_pattern must be above 0, not {every}")
    return [(i + 1) % every != 0 for i in range(count)]


def layer_overrides(cfg: Config, count: int, known: dict[str, str]) -> list[dict[str, int]]:
    """What ``per_layer_config`` changes in each layer: names of mixer fields -> whole numbers.

    Args:
        count: layers of the model.
        known: key in the file -> field of the mixer.

    Raises:
        SpecError: a layer that does not exist, or a key that is not in `known`.
    """
    found: list[dict[str, int]] = [{} for _ in range(count)]
    for number, changes in (cfg.maybe_dict("per_layer_config") or {}).items():
        if not number.isascii() or not number.isdigit() or int(number) >= count or not isinstance(changes, dict):
            raise cfg.error(f"per_layer_config has an entry {printable(repr(number), 40)} for {count} layers")
        for key, value in changes.items():
            if key not in known:
                raise cfg.error(f"per_layer_config changes {printable(repr(key), 40)}, which is not understood")
            found[int(number)][known[key]] = cfg.as_int(value, key)
    return found
