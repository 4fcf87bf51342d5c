"""The model behind ``--hub``: a repository's configuration and headers, or one GGUF file of it.

Files come through `kvplan.sources.hub_files`, and are read as those of a folder are.
"""

from __future__ import annotations

import re
from dataclasses import replace

from kvplan.errors import InputError, SpecError, printable
from kvplan.sources.hf_files import CONFIG_NAME, read_files
from kvplan.sources.hub_files import FLAG, Repository
from kvplan.sources.hub_gguf import hint, read_gguf
from kvplan.sources.reading import Reading

_NAME = re.compile(
    r"([\w.-]{1,96}/[\w.-]{1,96})(?:@([\w./-]{1,100}?))?(?::([\w./+-]{1,200})|/([\w./+-]{1,200}\.gguf))?\Z",
    re.ASCII | re.IGNORECASE,
)


def read_hub(name: str, *, assume: str | None = None, weights_told: bool = False) -> Reading:
    """The model of a repository, ``org/name`` or ``org/name@revision``, or of a GGUF file in it.

    Such a file is named by itself or by how it is quantised: ``org/name:Q4_K_M``, ``org/name:model.gguf``.

    Raises:
        InputError: the extra ``hub`` is not installed, the hub cannot be reached, the repository is gated or
            does not exist.
        SpecError: its files cannot be used.
    """
    match = _NAME.match(name)
    if match is None:
        raise InputError(f"{printable(name, 80)!r} is no name of a repository", where=FLAG, hint="type org/name")
    try:
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise InputError(
            "reading the hub needs the package huggingface_hub", where=FLAG, hint="pip install 'kvcache-plan[hub]'"
        ) from None
    disable_progress_bars()
    repo, revision, tag, path = match.groups()
    files = Repository(repo, revision)
    if tag or path:
        return read_gguf(files, tag or path, assume=assume)
    try:
        found = read_files(files, name=repo.partition("/")[2], assume=assume, weights_told=weights_told)
    except SpecError as error:
        if error.message == f"no {CONFIG_NAME}":
            error.hint = hint(files) or error.hint
        raise
    return found._replace(model=replace(found.model, repo=repo))
