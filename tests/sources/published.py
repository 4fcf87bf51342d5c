"""The published configurations that the models of the catalog come from."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "models.jsonl"
FACTS: dict[str, dict[str, Any]] = {
    fact["id"]: fact for fact in map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
}
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
"""A configuration with nothing to it."""


def config(model: str, **changes: Any) -> dict[str, Any]:
    """A published configuration with keys changed; None takes a key out."""
    data: dict[str, Any] = deepcopy(FACTS[model]["config"])
    text = data.get("text_config", data)
    for key, value in changes.items():
        if value is None:
            text.pop(key, None)
        else:
            text[key] = value
    return data
