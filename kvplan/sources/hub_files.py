"""Files of a repository of the Hugging Face hub: whole small ones, and the first bytes of large ones.

The only module that reaches the network, and only ``--hub`` (``hub=True`` in the library) imports it. Small
files go through the cache of ``huggingface_hub``; of a safetensors file only its header is asked for, by a
range request, and kept beside it under the commit it belongs to, so that a second look needs no network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import InputError, SpecError, printable
from kvplan.sources.bounded import read_bytes
from kvplan.sources.checkpoint.safetensors import MAX_HEADER_BYTES

if TYPE_CHECKING:
    from kvplan.sources.checkpoint.safetensors import Source

FIRST_BYTES = 256 << 10
"""Asked for at once: most headers are shorter."""
CONNECTIONS = 8
FLAG = "--hub"
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18})\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


class Repository:
    """`kvplan.sources.checkpoint.local.Files` of one repository, at one commit."""

    def __init__(self, repo: str, revision: str | None) -> None:
        self.repo = repo
        self.revision = revision
        self.asked = revision or "main"
        self.offline = False
        """The hub could not be asked; what was downloaded before is all there is."""

    def label(self, name: str) -> str:
        at = f"@{self.revision[:12]}" if self.revision else ""
        return f"hub:{self.repo}{at}/{printable(name)}"

    def read(self, name: str, limit: int) -> bytes | None:
        from huggingface_hub import hf_hub_download

        path = self._cached(name) if self._is_pinned() else None
        if path is None:
            about = self._about(name)
            if about is None:
                return None
            if about.path is None:
                if about.size is not None and about.size > limit:
                    said = f"is {about.size:,} bytes; at most {limit:,} are read"
                    raise SpecError(said, where=self.label(name), hint="is it the right repository?")
                path = self._asked(hf_hub_download, self.repo, name, revision=self.revision, library_name="kvplan")
            else:
                path = about.path
        return read_bytes(path, printable(str(path)), limit=limit, what=name)

    def missing(self, names: list[str]) -> list[str]:
        """Only a single file is asked after; what an index names is there, or its header says that it is not."""
        if len(names) > 1 or self._cached(names[0]) or self._kept(names[0]):
            return []
        return names if self._about(names[0]) is None else []

    def unindexed(self) -> list[str]:
        return []  # a repository is not listed

    def headers(self, names: list[str]) -> Iterator[tuple[str, Source]]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            waiting = [(name, pool.submit(self._header, name)) for name in names]
            try:
                for name, future in waiting:
                    yield name, future.result()
            finally:
                for _, future in waiting:
                    future.cancel()

    def _is_pinned(self) -> bool:
        return self.revision is not None and _COMMIT.match(self.revision) is not None

    def _cached(self, name: str) -> str | None:
        """The path of a file that ``huggingface_hub`` has downloaded before."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo, name, revision=self.revision)
        return found if isinstance(found, str) else None

    def _about(self, name: str) -> _About | None:
        """Size and commit of a file; None: the repository has none of that name.

        Without a network, the copy that was downloaded before counts.
        """
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        if self.offline:
            path = self._cached(name)
            return None if path is None else _About(None, path)
        url = hf_hub_url(self.repo, name, revision=self.revision)
        try:
            found = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT, library_name="kvplan")
        except Exception as error:
            if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
                return None
            no_answer = _is_no_answer(error)
            path = self._cached(name) or (self._remembered(name) if no_answer else None)
            if path is None or not no_answer:
                raise _explained(error, self.repo, self.revision) from None
            commit = os.path.basename(os.path.dirname(path))
            self.revision = commit if _COMMIT.match(commit) else self.revision
            self.offline = True
            return _About(None, path)
        if not self._is_pinned() and _COMMIT.match(found.commit_hash or ""):
            _write(self._ref(), str(found.commit_hash).encode())
        self.revision = found.commit_hash or self.revision
        return _About(found.size, None)

    def _ref(self) -> str:
        """Where the commit is kept that a branch stood for when it was last asked after.

        ``huggingface_hub`` keeps none for files that are downloaded by their commit.
        """
        return os.path.join(_cache(), "hub", self.repo.replace("/", "--"), "refs", self.asked.replace("/", "--"))

    def _remembered(self, name: str) -> str | None:
        """The path of a file downloaded at the commit that the branch stood for; None: there is none."""
        try:
            with open(self._ref(), encoding="ascii") as file:
                commit = file.read(41)
        except (OSError, ValueError):
            return None
        if self._is_pinned() or not _COMMIT.match(commit):
            return None
        before, self.revision = self.revision, commit
        path = self._cached(name)
        if path is None:
            self.revision = before
        return path

    def _asked(self, ask: Any, *words: Any, **settings: Any) -> Any:
        """What `ask` returns, its errors as kvplan's."""
        try:
            return ask(*words, **settings)
        except Exception as error:
            raise _explained(error, self.repo, self.revision) from None

    def _header(self, name: str) -> Source:
        """The first bytes of a safetensors file, up to the end of its header."""
        path = self._cached(name)
        if path is not None:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                first = file.read(8)
                return First(size, first + file.read(min(int.from_bytes(first, "little"), MAX_HEADER_BYTES)))
        kept = self._kept(name)
        if kept is not None:
            return kept
        found = self._asked(self._fetched, name)
        self.keep(name, found)
        return First(*found)

    def first(self, name: str) -> First | None:
        """What is known of a file without asking: its header, kept before, or that of a copy; None: nothing."""
        return self._kept(name)

    def find(self, name: str) -> bool:
        """Whether the repository has a file of that name; from here on the commit is known."""
        return self._about(name) is not None

    def names(self) -> list[str]:
        """The files of the repository, in order."""
        from huggingface_hub import HfApi

        self._about("config.json")  # says at once what is wrong; a listing would be tried over and over
        api = HfApi(library_name="kvplan")
        listed = self._asked(
            lambda: [entry.path for entry in api.list_repo_tree(self.repo, revision=self.revision, recursive=True)]
        )
        return sorted(name for name in listed if isinstance(name, str))

    def part(self, name: str, start: int, length: int) -> tuple[int, bytes]:
        """(size of a file, at most `length` bytes of it from `start`)."""
        found: tuple[int, bytes] = self._asked(self._range, name, start, length)
        return found

    def _fetched(self, name: str) -> tuple[int, bytes]:
        """(size of the file, its first bytes), by one range request or two."""
        size, data = self._range(name, 0, FIRST_BYTES)
        wanted = 8 + int.from_bytes(data[:8], "little")
        if len(data) < wanted <= min(size, 8 + MAX_HEADER_BYTES):
            size, data = self._range(name, 0, wanted)
        return size, data[:wanted]

    def _range(self, name: str, start: int, length: int) -> tuple[int, bytes]:
        """(size of the file, at most `length` bytes of it); never more, whatever the server sends."""
        from huggingface_hub import constants, get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        headers = {
            **build_hf_headers(library_name="kvplan"),
            "Range": f"bytes={start}-{start + length - 1}",
            "Accept-Encoding": "identity",
        }
        url = hf_hub_url(self.repo, name, revision=self.revision)
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            hf_raise_for_status(response)
            found = _RANGE.match(response.headers.get("Content-Range", ""))
            size = int(found.group(2)) if found else int(response.headers.get("Content-Length", 0))
            before = 0 if found else start  # a server that ignores ranges begins at the beginning
            data = bytearray()
            for part in response.iter_bytes():
                data += part
                if len(data) >= before + length:
                    break
        return size, bytes(data[before : before + length])

    def _place(self, name: str) -> str | None:
        """Where the header of a file is kept; None without a commit that pins it."""
        name = name.replace("/", "--")
        if not self._is_pinned() or os.path.basename(name) != name:
            return None
        return os.path.join(_cache(), "hub", self.repo.replace("/", "--"), str(self.revision), f"{name}.header")

    def _kept(self, name: str) -> First | None:
        place = self._place(name)
        if place is None or not os.path.isfile(place):
            return None
        data = read_bytes(place, printable(place), limit=MAX_HEADER_BYTES + 16, what="header")
        return First(int.from_bytes(data[:8], "little"), data[8:]) if len(data) > 16 else None

    def keep(self, name: str, found: tuple[int, bytes]) -> None:
        """Write a header where `_kept` finds it; a cache that cannot be written is no error."""
        place = self._place(name)
        if place is not None:
            _write(place, found[0].to_bytes(8, "little") + found[1])


def _cache() -> str:
    """The folder in which kvplan keeps what it has read of the hub."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("KVPLAN_CACHE") or os.path.join(home, "kvplan")


def _write(place: str, data: bytes) -> None:
    """Write a file whole; a cache that cannot be written is no error."""
    with suppress(OSError):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        new = f"{place}.{os.getpid()}.new"
        with open(new, "wb") as file:
            file.write(data)
        os.replace(new, place)


class First:
    """The beginning of a file of `size` bytes."""

    def __init__(self, size: int, data: bytes) -> None:
        self.size = size
        self.data = data

    def read(self, start: int, length: int) -> bytes:
        return self.data[start : start + length]


class _About(NamedTuple):
    """What the hub says of a file."""

    size: int | None
    path: str | None
    """Of the copy that stands in for it when there is no network."""


def _is_no_answer(error: Exception) -> bool:
    """Whether the hub could not be asked (as opposed to: it said no)."""
    from huggingface_hub.errors import HfHubHTTPError

    return not isinstance(error, HfHubHTTPError | ValueError)


def _explained(error: Exception, repo: str, revision: str | None) -> InputError | SpecError:
    """What a failure of ``huggingface_hub`` means, in one line."""
    from huggingface_hub import errors

    if isinstance(error, InputError | SpecError):
        return error
    alone = "download its config.json and name that, or connect and try again"
    if isinstance(error, errors.GatedRepoError):
        hint = "accept its terms on its page, then `hf auth login` or HF_TOKEN"
        return InputError(f"{repo} is gated", where=FLAG, hint=hint)
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = "check the name; for a private one, `hf auth login` or HF_TOKEN"
        return InputError(f"the hub has no repository {repo}, or it is private", where=FLAG, hint=hint)
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{repo} has no revision {printable(str(revision), 60)!r}", where=FLAG, hint="leave it out")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return InputError(f"HF_HUB_OFFLINE is set and {repo} is not in the cache", where=FLAG, hint=alone)
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return SpecError("a file that its index names is not there", where=f"hub:{repo}", hint="is it complete?")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.HfHubHTTPError) and status is not None:
        return InputError(f"the hub answered {status} for {repo}", where=FLAG, hint="try again later")
    if isinstance(error, ValueError):
        return InputError(f"{printable(repo, 80)!r} is no name of a repository", where=FLAG, hint="type org/name")
    reason = "no answer in time" if "timeout" in type(error).__name__.lower() else "no connection"
    return InputError(f"the hub cannot be reached ({reason})", where=FLAG, hint=alone)
