"""A model that was read, as a YAML spec for a person to review."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvplan._version import __version__
from kvplan.errors import SpecError, printable
from kvplan.sources.dump import dump_model
from kvplan.spec.model import ModelSpec

if TYPE_CHECKING:
    from kvplan.sources.reading import Reading

_LONGEST = 100
"""Characters of a value in the comment at the top."""


def spec_file(reading: Reading, source: str) -> str:
    """The text of a spec: where it comes from, the fields it used, and the model itself.

    Args:
        source: what was typed.

    Raises:
        SpecError: the spec would not read back as the same model.
    """
    from kvplan.sources.yaml_file import model_from_text

    model = _plain(reading.model)
    head = [f"# Written by kvplan {__version__} from {printable(source)}; review before use."]
    if reading.fields:
        head.append("# Fields of the configuration that it rests on (some come from the class that reads it):")
        head += [f"#   {printable(key, 60)}: {_shown(value)}" for key, value in sorted(reading.fields.items())]
    text = "\n".join(head) + "\n" + dump_model(model)
    if model_from_text(text, "the spec written") != model:
        raise SpecError(
            "cannot be written as a spec that reads back the same", where=printable(source), hint="use it as it is"
        )
    return text


def _plain(model: ModelSpec) -> ModelSpec:
    """A spec without what only the reader of its file knows; the count of the file's parameters stays as published."""
    from dataclasses import fields, replace

    from kvplan.sources.spec_lint import TOLERANCE

    if type(model) is ModelSpec:
        return model
    plain = ModelSpec(**{field.name: getattr(model, field.name) for field in fields(ModelSpec)})
    counted = model.parameters  # of the tensor table, where the file has one
    if plain.published_parameters or counted == plain.parameters or counted <= 0:
        return plain
    differs = abs(plain.parameters - counted) > TOLERANCE * counted
    note = f"the file's tensors hold {counted:,}; its layers are as llama.cpp runs them" if differs else None
    return replace(plain, published_parameters=counted, parameters_note=note)


def _shown(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False, default=str), _LONGEST)
