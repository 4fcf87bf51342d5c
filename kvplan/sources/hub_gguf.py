"""GGUF files of a repository of the hub: which one is meant, and its header by range requests."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from kvplan.errors import InputError, printable
from kvplan.sources.gguf.header import MAX_HEADER_BYTES, GgufHeader, parse_header, read_parts
from kvplan.sources.gguf.metadata import of_header
from kvplan.sources.hub_files import FLAG, First, Repository
from kvplan.sources.reading import Reading

FIRST_BYTES = 1 << 20
MOST_BYTES = 8 << 20
"""Asked for at once; what is asked for doubles up to this, as most headers are one to fifteen MiB."""
_PART = re.compile(r"-([0-9]{5})-of-[0-9]{5}\Z")
_APART = re.compile(r"(^|[/_.-])(mmproj|imatrix)", re.IGNORECASE)
"""Projectors and the like, which are no language models."""
_QUANTISED = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q[1-8]\w*|TQ[12]_0|BF16|F16|F32|MXFP4\w*|NVFP4\w*))\Z", re.IGNORECASE
)


def read_gguf(files: Repository, wanted: str, *, assume: str | None = None) -> Reading:
    """The model of a GGUF file.

    Args:
        wanted: the file's name, or how it is quantised (``Q4_K_M``).

    Raises:
        InputError: there is no such file, or several.
        SpecError: it cannot be used.
    """
    name = wanted if wanted.lower().endswith(".gguf") else _chosen(files, wanted)
    if files.first(name) is None and not files.find(name):
        raise InputError(f"{files.repo} has no file {printable(name, 80)}", where=FLAG, hint=hint(files))
    header = read_parts(name, lambda part, first: _header(files, part, first))
    model = of_header(header._replace(path=files.label(name)), assume=assume)
    return Reading(replace(model, repo=files.repo), {})


def _header(files: Repository, name: str, first: bool) -> GgufHeader:
    file = _Remote(files, name)
    found = parse_header(file, files.label(name), file.size, first)
    if not file.kept:
        files.keep(name, (file.size, bytes(file.data[: found.header_bytes])))
    return found


class _Remote:
    """A file of the hub, fetched from its beginning as far as it is read."""

    def __init__(self, files: Repository, name: str) -> None:
        self.files, self.name, self.at = files, name, 0
        known: First | None = files.first(name)
        self.kept = known is not None
        self.size, data = (known.size, known.data) if known is not None else files.part(name, 0, FIRST_BYTES)
        self.data = bytearray(data)

    def read(self, size: int, /) -> bytes:
        end = min(self.at + size, self.size)
        while not self.kept and len(self.data) < end and len(self.data) <= MAX_HEADER_BYTES:
            step = max(FIRST_BYTES, min(len(self.data), MOST_BYTES))
            _, part = self.files.part(self.name, len(self.data), step)
            if not part:
                break
            self.data += part
        found = bytes(self.data[self.at : end])
        self.at += len(found)
        return found

    def seek(self, offset: int, /) -> int:
        self.at = offset
        return offset


def _chosen(files: Repository, tag: str) -> str:
    """The file that is quantised so: the first part of a split one.

    Raises:
        InputError: there is none, or more than one.
    """
    stems = _stems(files)
    end = re.compile(rf"(?:^|[-._/]){re.escape(tag)}\Z", re.IGNORECASE)
    found = sorted((stem for stem in stems if end.search(stem)), key=lambda stem: (len(os.path.basename(stem)), stem))
    if not found:
        raise InputError(
            f"{files.repo} has no GGUF file quantised as {printable(tag, 40)}",
            where=FLAG,
            hint=_listed(files, stems),
        )
    same = [stem for stem in found if len(os.path.basename(stem)) == len(os.path.basename(found[0]))]
    if len(same) > 1:
        names = ", ".join(printable(stems[stem], 80) for stem in same[:6])
        hint = f"name one: {files.repo}:{stems[same[0]]}"
        raise InputError(f"{files.repo} has {len(same)} files quantised as {tag}: {names}", where=FLAG, hint=hint)
    return stems[found[0]]


def _stems(files: Repository) -> dict[str, str]:
    """Name without ``.gguf`` and part -> name of its (first) file."""
    found: dict[str, str] = {}
    for name in files.names():
        if name.lower().endswith(".gguf") and not _APART.search(name):
            found.setdefault(_PART.sub("", name[:-5]), name)
    return found


def hint(files: Repository) -> str:
    """What to type for a GGUF file of the repository; empty where it has none, or cannot be listed."""
    try:
        stems = _stems(files)
    except InputError:
        return ""
    return _listed(files, stems) if stems else ""


def _listed(files: Repository, stems: dict[str, str]) -> str:
    if not stems:
        return "it has no GGUF files at all"
    tags = [match.group(1) if (match := _QUANTISED.search(stem)) else name for stem, name in stems.items()]
    shown = list(dict.fromkeys(tags))
    more = f" and {len(shown) - 12} more" if len(shown) > 12 else ""
    return f"type {files.repo}:{shown[0]}; its GGUF files: {', '.join(printable(tag, 60) for tag in shown[:12])}{more}"
