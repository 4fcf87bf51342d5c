"""Which roles of a model a list of module names covers: the exceptions that quantised checkpoints spell out.

Names come in full (``model.layers.3.mlp.down_proj``), as parts (``self_attn``), with wildcards, or as regular
expressions. What counts is whether they cover a role in every layer that has it, in some, or in none. Hostile
expressions cost no time: the work of matching is added up beforehand, and what would cost too much is left out.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kvplan.sources.hf.keys import Layers
from kvplan.spec.ffn import MoeFfn

Families = tuple[tuple[str, ...], ...]
"""Ways to name the matrices of one role of a layer; the first whose every name is covered covers the role."""

_STEMS = ("self_attn", "attn", "attention", "self_attention")
_SOFTMAX: Families = (
    *((f"{s}.q_proj", f"{s}.k_proj", f"{s}.v_proj", f"{s}.o_proj") for s in _STEMS),
    *((f"{s}.qkv_proj", f"{s}.o_proj") for s in _STEMS),
    ("attn.c_attn", "attn.c_proj"), ("attention.wqkv", "attention.wo"),
    ("self_attention.query_key_value", "self_attention.dense"), ("attention.query_key_value", "attention.dense"),
)  # fmt: skip
_LATENT: Families = tuple(
    tuple(f"self_attn.{name}" for name in (*queries, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"))
    for queries in (("q_a_proj", "q_b_proj"), ("q_proj",))
)
_RECURRENT: Families = (
    ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba", "linear_attn.out_proj"),
    (*(f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "a", "b")), "linear_attn.out_proj"),
    ("mixer.in_proj", "mixer.out_proj"), ("mamba.in_proj", "mamba.out_proj"), ("conv.in_proj", "conv.out_proj"),
    *_SOFTMAX,
)  # fmt: skip


def _gated(stem: str) -> Families:
    return (
        (f"{stem}.gate_proj", f"{stem}.up_proj", f"{stem}.down_proj"), (f"{stem}.gate_up_proj", f"{stem}.down_proj"),
        (f"{stem}.w1", f"{stem}.w2", f"{stem}.w3"),
    )  # fmt: skip


_DENSE: Families = (*_gated("mlp"), *_gated("feed_forward"))
_PLAIN: Families = (
    ("mlp.up_proj", "mlp.down_proj"), ("mlp.fc1", "mlp.fc2"), ("mlp.c_fc", "mlp.c_proj"), ("fc1", "fc2"),
    ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), ("mixer.up_proj", "mixer.down_proj"),
)  # fmt: skip
_BLOCKS = ("mlp", "block_sparse_moe", "feed_forward", "mixer", "moe")
_ROUTED: Families = tuple(family for b in _BLOCKS for e in (".0", "") for family in _gated(f"{b}.experts{e}"))
_BESIDE: Families = tuple(
    family for b in ("", *(f"{block}." for block in _BLOCKS if block != "mlp")) for e in (".0", "")
    for family in _gated(f"{b}experts{e}")
)  # fmt: skip
"""Experts in a layer whose ``mlp`` is a dense FFN that runs beside them."""
_SHARED: Families = tuple(
    family
    for b in _BLOCKS
    for word in ("shared_expert", "shared_experts", "shared_mlp")
    for family in _gated(f"{b}.{word}")
)
_EVERY = {"attention": _SOFTMAX, "dense_ffn": _DENSE, "routed_experts": _ROUTED, "shared_experts": _SHARED}
"""For a role that a model has nowhere."""
_TOPS = ("", "model.", "language_model.", "language_model.model.", "model.language_model.")
_OUTSIDE = {"head": tuple(f"{t}lm_head" for t in _TOPS), "embedding": tuple(f"{t}embed_tokens" for t in _TOPS)}
_PREFIXES = ("model.layers.", "language_model.model.layers.", "model.language_model.layers.", "transformer.h.")
_IN_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.([0-9]{1,6})\.(.+)")
_EXPERT = re.compile(r"(?<=experts\.)[0-9]{1,6}(?=\.|$)")
_ANY_NUMBER = re.compile(r"\[0-9\][+*]?|\\d[+*]?|\[\^\.\][+*]")
_REPEATS = re.compile(r"(?<!\\)[*+{]")
_NESTED = re.compile(r"\)[*+{]|[*+}][*+{]")
_LAYER = 12
"""The layer by which a pattern that names none is judged."""
_MOST_WORK = 10**7
_NAME = 60


class Shape(NamedTuple):
    """What a model has in each layer."""

    layers: tuple[dict[str, Families], ...]
    """Of each layer: role -> how its matrices may be called."""
    experts: int


class Coverage(NamedTuple):
    """What some names cover."""

    whole: frozenset[str]
    """Roles in every layer that has them."""
    partly: dict[str, tuple[int, int]]
    """Other roles of which something is covered -> (layers of which something is, layers that have them)."""
    example: str
    unread: int
    """Patterns that would cost too much, or are no expressions."""


def shape(found: Layers) -> Shape:
    """The roles of each layer, with the names their matrices go by."""
    by_block: dict[str, dict[str, Families]] = {}
    experts = 0
    for name, block in found.blocks.items():
        roles: dict[str, Families] = {}
        kinds = {mixer.kind for mixer in block.mixers}
        if kinds:
            softmax = {"full", "sliding", "chunked", "shared", "cross"}
            roles["attention"] = _LATENT if "mla" in kinds else _SOFTMAX if kinds <= softmax else _RECURRENT
        beside = {isinstance(ffn, MoeFfn) for ffn in block.ffns} == {True, False}
        for ffn in block.ffns:
            if isinstance(ffn, MoeFfn):
                experts = max(experts, ffn.experts)
                roles["routed_experts"] = _BESIDE if beside else _ROUTED
                if ffn.shared_intermediate_size:
                    roles["shared_experts"] = _SHARED
            else:
                roles["dense_ffn"] = _DENSE if getattr(ffn, "gated", True) else (*_PLAIN, *_DENSE)
        by_block[name] = roles
    return Shape(tuple(by_block[name] for name in found.layers), experts)


def coverage(entries: Iterable[str], model: Shape) -> Coverage:
    """What `entries` cover of a model."""
    listed: dict[int, Counter[str]] = {}
    common: list[Callable[[str], bool]] = []
    by_layer: list[Callable[[str], bool]] = []
    unread, work, example = 0, 0, ""
    for entry in dict.fromkeys(entries):
        example = example if example or entry.endswith(("lm_head", "embed_tokens")) else entry
        found = None if entry.startswith("re:") or set(entry) & set("*?[") else _IN_LAYER.search(entry)
        if found:
            inside = _EXPERT.sub("0", found.group(2).removesuffix(".weight"))
            listed.setdefault(int(found.group(1)), Counter())[inside] += 1
            continue
        test, fixed, cost = _test(entry)
        work += cost * (1 if fixed else len(model.layers)) * 40
        if test is None or work > _MOST_WORK:
            unread += 1
        else:
            (common if fixed else by_layer).append(test)
    return _judge(model, listed, common, by_layer)._replace(unread=unread, example=example)


def _test(entry: str) -> tuple[Callable[[str], bool] | None, bool, int]:
    """(whether a name is meant, whether that is the same in all layers, what it costs); None: not to be judged."""
    if entry.startswith("re:"):
        text = entry[3:]
        repeats = len(_REPEATS.findall(text.replace(".*.*", ".*")))
        if len(text) > 400 or repeats > 4 or _NESTED.search(text.replace(".*.*", ".*")):
            return None, True, 0
        try:
            pattern = re.compile(text.replace(".*.*", ".*"))
        except (re.error, RecursionError, OverflowError):
            return None, True, 0
        fixed = not re.search(r"[0-9]", _ANY_NUMBER.sub("", re.sub(r"[a-z]_?[0-9]|[0-9][a-z]", "", text)))
        return (lambda name: pattern.match(name) is not None), fixed, _NAME ** max(1, repeats) // 6 + 1
    fixed = not re.search(r"\.[0-9]", entry)
    if entry.endswith("*") and not set(start := entry.rstrip("*")) & set("*?["):
        return (lambda name: name.startswith(start)), fixed, _NAME // 10
    if set(entry) & set("*?["):
        if len(entry) > 400 or entry.count("*") > 8:
            return None, True, 0
        pattern = re.compile(fnmatch.translate(entry))
        return (lambda name: pattern.match(name) is not None), fixed, _NAME * 8
    if "." in entry:
        inner = f".{entry}."
        return (lambda name: inner in f".{name}."), fixed, _NAME
    return (lambda name: entry in name), True, _NAME


def _judge(
    model: Shape,
    listed: dict[int, Counter[str]],
    common: Sequence[Callable[[str], bool]],
    by_layer: Sequence[Callable[[str], bool]],
) -> Coverage:
    always: dict[str, bool] = {}

    def covered(name: str, layer: int, inside: Counter[str]) -> bool:
        if name not in always:
            always[name] = any(_any_prefix(test, _LAYER, name) for test in common)
        if always[name] or any(_any_prefix(test, layer, name) for test in by_layer):
            return True
        at = len(name)
        while at > 0:  # the module itself, or one that holds it
            part = name[:at]
            if inside[part] >= (max(model.experts, 1) if ".experts.0" in part else 1):
                return True
            at = part.rfind(".")
        return False

    have, some, all_of = Counter[str](), Counter[str](), Counter[str]()
    for layer, roles in enumerate(model.layers):
        inside = listed.get(layer, Counter())
        for role, families in roles.items():
            have[role] += 1
            if not (inside or common or by_layer):
                continue
            hits = [[covered(name, layer, inside) for name in family] for family in families]
            all_of[role] += any(map(all, hits))
            some[role] += any(map(any, hits)) or any(
                ".experts.0" in part and role == "routed_experts" for part in inside
            )
    whole = {role for role in have if all_of[role] == have[role]}
    whole |= {
        role
        for role, families in _EVERY.items()
        if role not in have and any(all(covered(name, _LAYER, Counter()) for name in f) for f in families)
    }
    whole |= {role for role, names in _OUTSIDE.items() if any(test(name) for test in common for name in names)}
    partly = {role: (some[role], have[role]) for role in have if role not in whole and some[role]}
    return Coverage(frozenset(whole), partly, "", 0)


def _any_prefix(test: Callable[[str], bool], layer: int, name: str) -> bool:
    return any(test(f"{prefix}{layer}.{name}") for prefix in _PREFIXES)
