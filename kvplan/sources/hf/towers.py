"""The encoders beside a language model, from their own parts of the configuration.

Counted exactly for the families with a rule; others as plain transformers, or not at all, and then a warning says so.
The language model's cache does not depend on any of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from kvplan.engines.model_changes import NESTED
from kvplan.errors import printable
from kvplan.sources.hf.audio import AUDIO, granite_speech, whisper_encoder
from kvplan.sources.hf.encoder_parts import hidden, linear, patches, side, sizes
from kvplan.sources.hf.keys import Config
from kvplan.sources.hf.vision import CONNECTORS, ENCODERS, ROUGH, UNDER_OTHER_NAMES, WHOLE, plain_vit
from kvplan.spec.model import ENCODERS_APART, Tower

_SIZE = re.compile(r"size$|layers$|depth$|dim$|width$|tiles$|embeddings$|^num_")
_VISION = ("vision_config", "visual", "vit_config")
_AUDIO = ("audio_config", "audio_encoder_config", "speech_config")
_ENCODER = re.compile(
    r"vision|visual|vit_|image|img|video|audio|speech|sound|acoustic|encoder|tower|projector|former_config|perceiver"
    r"|resampler|codec|vocoder|diffusion|embd_layer|vq|_lora$"
)
"""How the names of objects look that may stand for weights beside the language model's."""
_NO_WEIGHTS = re.compile(
    r"^(quantization|(\w+_)?compression|generation|sparsity|rope|tokenizer|(\w+_)?(pre)?processor)_config$"
)
_SPOKEN = ("talker_config", "token2wav_config", "code2wav_config")
"""What makes a model speak; engines for text load the part that thinks alone."""

_JOINED = (("granite_speech", "projector_config"), ("idefics2", "perceiver_config"), ("blip-2", "qformer_config"))
"""How families begin whose projections have an object of their own, which the encoder's rule counts."""

_T = TypeVar("_T")


class Encoders(NamedTuple):
    """What was found beside the language model."""

    towers: tuple[Tower, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


class _Found(NamedTuple):
    name: str
    parameters: int
    exact: bool


def read_towers(levels: Sequence[Config], width: int) -> Encoders:
    """The vision and audio encoders of every level of a file, their projections into `width` included.

    Args:
        levels: from the whole file to the text part.
        width: hidden size of the language model.

    Raises:
        SpecError: a size of an encoder is below 0 or no number.
    """
    kinds = [""]
    for level in levels:
        kinds.append(str(level.get("model_type") or kinds[-1]))
    del kinds[0]
    fixed = _fixed(levels, kinds)
    found = [fixed.found] if fixed else []
    counted = set(fixed.parts if fixed else ())
    for level, kind in zip(levels, kinds, strict=True):
        for read, keys in ((_vision, _VISION), (_audio, _AUDIO), (_speech, ("encoder_config",))):
            part = None if fixed else _part(level, *keys)
            one = read(part, level, kind, width) if part is not None else None
            if one is not None and one.parameters:
                found.append(one)
                counted.update(keys)
    if "whisper" in kinds:
        found.append(_Found("encoder", whisper_encoder(levels[0]), True))
    if "fuyu" in kinds:  # patches go straight into the language model
        found.append(_Found("vision", patches(levels[0], width), True))
    counted.update(part for family, part in _JOINED if any(kind.startswith(family) for kind in kinds))
    left = _uncounted(levels, counted)
    adapters = [key for key in left if key.endswith("_lora")]
    return Encoders(
        tuple(Tower(name=one.name, parameters=one.parameters) for one in found),
        tuple(_warnings([one.name for one in found if not one.exact], left, adapters)),
        tuple(_notes(levels)),
    )


def _vision(part: Config, level: Config, kind: str, width: int) -> _Found | None:
    """A vision encoder; None: its part gives no sizes. Exact where encoder and projections are those of one rule."""
    own = str(part.get("model_type") or kind)
    known = all(sizes(part)[:2])
    whole, encoder = _by_prefix(WHOLE, own, kind), _by_prefix(ENCODERS, own)
    if whole is not None and (encoder is None or whole in UNDER_OTHER_NAMES):
        return _Found("vision", whole(part, level, width), known and whole is _by_prefix(WHOLE, kind))
    if not known:
        return None
    connector = CONNECTORS.get(kind)
    if encoder is not None:
        joined = connector(part, level, width) if connector else linear(sizes(part)[0], width)
        return _Found("vision", encoder(part) + joined, connector is not None)
    rough = _by_prefix(ROUGH, own, kind) or plain_vit
    return _Found("vision", rough(part, level, width), False)


def _audio(part: Config, level: Config, kind: str, width: int) -> _Found | None:
    """An audio encoder; None: its part does not say enough to count it."""
    rule = _by_prefix(AUDIO, str(part.get("model_type") or kind), kind)
    if rule is not None:
        return _Found("audio", rule(part, level, width), True)
    if not all(any(key in part for key in keys) for keys in _WHISPER):
        return None
    return _Found("audio", whisper_encoder(part) + linear(hidden(part), width), False)


_WHISPER = (
    ("d_model", "hidden_size"), ("encoder_layers", "num_hidden_layers"), ("encoder_ffn_dim", "intermediate_size"),
)  # fmt: skip


def _speech(part: Config, level: Config, kind: str, width: int) -> _Found | None:
    return _Found("audio", granite_speech(part, level, width), True) if kind.startswith("granite_speech") else None


def _by_prefix(table: Iterable[tuple[str, _T]], *kinds: str) -> _T | None:
    """The entry whose key begins the first of `kinds` for which there is one."""
    rows = tuple(table)
    return next((rule for kind in kinds for prefix, rule in rows if kind.startswith(prefix)), None)


def _part(level: Config, *keys: str) -> Config | None:
    """The encoder's part of a level.

    Raises:
        SpecError: one of its sizes is below 0 (indices, such as the layer that is read, and endless chunks may be).
    """
    part = level.child(*keys)
    for key, value in part.data.items() if part is not None else ():
        if _SIZE.search(key) and key != "chunk_size" and isinstance(value, int | float) and value < 0:
            raise level.error(f"{keys[0]}.{printable(key, 60)} must not be negative, not {printable(repr(value), 40)}")
    return part


def _uncounted(levels: Sequence[Config], counted: set[str]) -> list[str]:
    """Objects of a file that look like weights and that no rule has counted.

    Around a text part every ``*_config`` may be one; in it (or in a flat file) only what is called like an encoder.
    """
    known, left = {*counted, *_SPOKEN, *NESTED}, []
    for level, inner in zip(levels, (*levels[1:], None), strict=True):
        for key, value in level.data.items():
            if not isinstance(value, dict) or not value or key in known or _NO_WEIGHTS.search(key):
                continue
            suspect = _ENCODER.search(key) or (inner is not None and key.endswith("_config"))
            if suspect and (inner is not None or key not in level.used):
                left.append(key)
    return left


def _warnings(rough: list[str], left: list[str], adapters: list[str]) -> Iterable[str]:
    tell = "a folder with the safetensors files gives them"
    if rough:
        names = " and ".join(dict.fromkeys(rough))
        yield f"{ENCODERS_APART}the weights of the {names} part are an estimate; {tell} exactly"
    other = [key for key in left if key not in adapters]
    if adapters:
        yield f"{_listed(adapters)}: adapters beside the weights, which engines load on request, are not counted"
    if other:
        names = _listed(other)
        yield f"{ENCODERS_APART}the weights of {names} are not counted; {tell}"


def _listed(keys: list[str]) -> str:
    return ", ".join(printable(key, 40) for key in dict.fromkeys(keys[:8]))


def _notes(levels: Sequence[Config]) -> Iterable[str]:
    spoken = [key for key in _SPOKEN if any(isinstance(level.data.get(key), dict) for level in levels)]
    if spoken:
        yield f"{', '.join(spoken)}: not counted, as vLLM loads the thinker alone"


def image_tokens(outer: Config) -> int | None:
    """Positions that one image of the largest size hands to cross-attention layers; None: no vision part.

    Source: transformers 5.24.0 ``models/mllama/modeling_mllama.py``: every tile gives its patches and a class token.
    """
    vision = _part(outer, "vision_config")
    if vision is None:
        return None
    size, patch = side(vision, "image_size"), side(vision, "patch_size")
    if not size or not patch:
        return None
    return ((size // patch) ** 2 + 1) * (vision.maybe_int("max_num_tiles") or 1)


class _Fixed(NamedTuple):
    found: _Found
    parts: tuple[str, ...]
    """Objects of the file that stand for it."""
    always: bool = False
    """Whether it is there even where none of them is."""


def _fixed(levels: Sequence[Config], kinds: list[str]) -> _Fixed | None:
    """Encoders that the family has in one size, where the file speaks of them."""
    one = next((_FIXED[kind] for kind in kinds if kind in _FIXED), None)
    spoken = one is not None and any(key in level for level in levels for key in one.parts)
    return one if one is not None and (one.always or spoken) else None


_PHI4 = _Fixed(
    _Found("vision and audio", 907_982_272, True),
    (*_VISION, *_AUDIO, "embd_layer", "audio_processor", "img_processor"),
)
_FIXED = {
    "gemma3n": _Fixed(_Found("vision and audio", 983_281_504, True), (*_VISION, *_AUDIO), always=True),
    "phi4mm": _PHI4, "phi4_multimodal": _PHI4,
}  # fmt: skip
"""``model_type`` -> encoders whose layers no configuration spells out.

Gemma 3n's is by how much the published totals of both sizes exceed their text part. Phi-4-multimodal's, of one size,
is transformers 5.24.0 ``models/phi4_multimodal/modeling_phi4_multimodal.py`` at the defaults of its configuration.
"""
