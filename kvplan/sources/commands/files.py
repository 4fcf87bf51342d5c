"""Files with a command in them: read within bounds, and told apart by what they say."""

from __future__ import annotations

import os
import re

from kvplan.errors import InputError, printable
from kvplan.sources import bounded
from kvplan.sources.commands import raw

MAX_BYTES = 1_000_000
SUFFIXES = (".sh", ".bash", ".zsh", ".service", ".container", ".dockerfile", ".containerfile", ".envrc")
"""Ends of file names that hold commands, whatever is in them."""
NAMES = re.compile(r"(?:dockerfile|containerfile)(?:[.\-_].*)?\Z", re.IGNORECASE)
YAML = (".yaml", ".yml")
_OTHER = (*YAML, ".json", ".gguf", ".safetensors")
_SPEC = re.compile(r"^(?:schema\s*:\s*['\"]?kvplan\.|(?:blocks|layers|hidden_size|vocab_size)\s*:)", re.MULTILINE)
_MANIFEST = re.compile(r"^(?:apiVersion|services|applications|modelArtifacts)\s*:", re.MULTILINE)
ENGINE = re.compile(r"vllm|sglang|trtllm|tensorrt-llm|llama-server|llama\.cpp|ollama", re.IGNORECASE)


def read_text(path: str) -> str:
    """The text of a regular file of bounded size.

    Raises:
        InputError: it cannot be read, is too large, or is no text.
    """
    name = printable(path)
    data = bounded.read_bytes(path, name, limit=MAX_BYTES, what="script or manifest", error=InputError)
    text = bounded.decode(data, name, hint="name a script or manifest", error=InputError)
    return raw.clean(text.replace("\r\n", "\n"))


def split_name(text: str) -> tuple[str, str]:
    """(path, what is picked in it) of ``PATH#NAME``; a file of that whole name goes first."""
    path, mark, name = text.rpartition("#")
    return (path, name) if mark and path and not os.path.exists(text) else (text, "")


def holds_command(text: str) -> bool:
    """Whether `text`, possibly with ``#NAME``, names a file that starts something (rather than a model's own file)."""
    path, picked = split_name(text)
    lower = path.lower()
    if lower.endswith(SUFFIXES) or NAMES.match(os.path.basename(path)):
        return True
    if lower.endswith(YAML):
        return bool(picked) or (os.path.isfile(path) and not _is_spec(path))
    if lower.endswith(_OTHER):
        return False
    return ("/" in path or bool(picked)) and os.path.isfile(path)


def _is_spec(path: str) -> bool:
    """Whether a YAML file describes a model; one that cannot be read is left to the reader of those."""
    try:
        text = read_text(path)
    except InputError:
        return True
    if _MANIFEST.search(text):
        return False
    return _SPEC.search(text) is not None or ENGINE.search(text) is None
