"""Files with a command in them: read within bounds, and told apart by what they say."""

from __future__ import annotations

import os
import re
import stat

from kvplan.errors import InputError, printable
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
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise InputError("is not a regular file", where=name, hint="name a script or a manifest")
            data = b""
            while len(data) <= MAX_BYTES and (part := os.read(handle, MAX_BYTES + 1 - len(data))):
                data += part
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "is not a file name").lower()
        raise InputError(f"cannot be read: {reason}", where=name, hint="check the path and its permissions") from None
    if len(data) > MAX_BYTES:
        size = f"{status.st_size:,}" if status.st_size > MAX_BYTES else f"over {MAX_BYTES:,}"
        raise InputError(
            f"is {size} bytes; a file with a command has at most {MAX_BYTES:,}",
            where=name,
            hint="is it the right file?",
        )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError("is UTF-16 text", where=name, hint="save it as UTF-8")
    if b"\0" in data:
        raise InputError("is a binary file", where=name, hint="name a script or a manifest")
    try:
        return raw.clean(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8 text", where=f"{name}:{line}", hint="save it as UTF-8") from None


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
