"""``--hub``: the readers over a repository, without a network: what is asked for, kept, and said when it fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from kvplan.errors import InputError, KvplanError, SpecError
from kvplan.sources import find_model
from kvplan.sources.hub_files import CONNECTIONS, FIRST_BYTES

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Folder = Callable[..., Path]


class Response:
    """What a server answers, given out in pieces of which the reader may take as many as it likes."""

    def __init__(self, status: int, data: Iterator[bytes], headers: dict[str, str]) -> None:
        self.status_code = status
        self.headers = headers
        self.data = data

    def iter_bytes(self) -> Iterator[bytes]:
        return self.data


class Hub:
    """A hub with one repository, whose files are those of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        self.sent = 0
        self.ranges = True
        self.failure: Exception | None = None

    def about(self, url: str, **settings: Any) -> Any:
        assert settings["timeout"] > 0
        path = self._path(url)
        self.asked.append(("HEAD", path.name))
        if self.failure:
            raise self.failure
        if not path.exists():
            raise error(errors.RemoteEntryNotFoundError, 404)
        return SimpleNamespace(size=path.stat().st_size, commit_hash=COMMIT)

    def download(self, repo: str, name: str, *, revision: str | None, **_: Any) -> str:
        assert repo == "acme/Rocket-7B"
        assert revision == COMMIT
        self.asked.append(("GET", name))
        return str(self.folder / name)

    @contextmanager
    def stream(self, method: str, url: str, *, headers: dict[str, str], timeout: float) -> Iterator[Response]:
        assert timeout > 0
        path, wanted = self._path(url), re.fullmatch(r"bytes=0-([0-9]+)", headers["Range"])
        assert wanted is not None
        assert f"/{COMMIT}/" in url
        self.asked.append((method, path.name))
        if self.failure:
            raise self.failure
        size = path.stat().st_size
        length = min(size, int(wanted.group(1)) + 1) if self.ranges else size
        said = {"Content-Range": f"bytes 0-{length - 1}/{size}"} if self.ranges else {"Content-Length": str(size)}
        yield Response(206 if self.ranges else 200, self._pieces(path, length), said)

    def _pieces(self, path: Path, length: int) -> Iterator[bytes]:
        with path.open("rb") as file:
            while length > 0:
                piece = file.read(min(65_536, length))
                self.sent += len(piece)
                length -= len(piece)
                yield piece

    def _path(self, url: str) -> Path:
        assert url.startswith("https://huggingface.co/acme/Rocket-7B/resolve/")
        return self.folder / url.rpartition("/")[2]


def error(kind: type[Exception], status: int) -> Exception:
    request = SimpleNamespace(method="GET", url="https://huggingface.co")
    response = SimpleNamespace(status_code=status, headers={}, request=request)
    return kind("no", response=response)  # type: ignore[call-arg]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, llama_folder: Folder) -> Hub:
    fake = Hub(llama_folder("served", shards=3))
    monkeypatch.setenv("KVPLAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", fake.about)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, name, **_: fake.cache.get(name))
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: fake)
    monkeypatch.setattr(huggingface_hub.utils, "hf_raise_for_status", lambda response: None)
    monkeypatch.setattr(huggingface_hub.utils, "build_hf_headers", lambda **_: {"authorization": "x"})
    return fake


def test_gives_what_the_folder_gives(hub: Hub) -> None:
    model, local = find_model("acme/Rocket-7B", hub=True), find_model(str(hub.folder))
    assert model.id == "rocket-7b"
    assert model.repo == "acme/Rocket-7B"
    assert model.checkpoint == local.checkpoint
    assert model.blocks == local.blocks
    assert "hub:acme/Rocket-7B" in model.source
    assert COMMIT[:12] in model.source


def test_asks_for_headers_alone_and_only_once(hub: Hub) -> None:
    find_model("acme/Rocket-7B", hub=True)
    shards = [name for method, name in hub.asked if method == "GET" and name.endswith(".safetensors")]
    assert sorted(shards) == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    hub.asked.clear()
    again = find_model("acme/Rocket-7B", hub=True)
    assert not any(name.endswith(".safetensors") for _, name in hub.asked)
    assert again.checkpoint is not None
    assert again.checkpoint.stored


def test_a_long_header_takes_a_second_request(hub: Hub, checkpoints: Any) -> None:
    layers = 2 + FIRST_BYTES // 100
    config = checkpoints.LLAMA | {"num_hidden_layers": layers // 8}
    checkpoints.write(hub.folder, config, checkpoints.llama_tensors(config))
    (hub.folder / "model.safetensors.index.json").unlink()
    model = find_model("acme/Rocket-7B", hub=True)
    assert [name for method, name in hub.asked if method == "GET"].count("model.safetensors") == 2
    assert model.checkpoint == find_model(str(hub.folder)).checkpoint


def test_a_server_that_ignores_ranges_sends_no_more_than_wanted(hub: Hub, checkpoints: Any) -> None:
    config = checkpoints.LLAMA | {"vocab_size": 200_000}
    checkpoints.write(hub.folder, config, checkpoints.llama_tensors(config))
    (hub.folder / "model.safetensors.index.json").unlink()
    hub.ranges = False
    model = find_model("acme/Rocket-7B", hub=True)
    assert model.checkpoint == find_model(str(hub.folder)).checkpoint
    assert hub.sent <= FIRST_BYTES + 65_536 < (hub.folder / "model.safetensors").stat().st_size


def test_without_tensors_the_configuration_counts(hub: Hub) -> None:
    for path in hub.folder.glob("model*"):
        path.unlink()
    model = find_model("acme/Rocket-7B", hub=True)
    assert model.checkpoint is None
    assert model.num_layers == 2


def test_a_large_configuration_is_not_downloaded(hub: Hub) -> None:
    with (hub.folder / "config.json").open("r+b") as file:
        file.truncate(100 << 20)
    with pytest.raises(SpecError, match="at most"):
        find_model("acme/Rocket-7B", hub=True)
    assert ("GET", "config.json") not in hub.asked


def test_offline_the_copy_that_was_downloaded_counts(hub: Hub, tmp_path: Path) -> None:
    find_model("acme/Rocket-7B", hub=True)
    snapshot = tmp_path / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors.index.json"):
        (snapshot / name).write_bytes((hub.folder / name).read_bytes())
        hub.cache[name] = str(snapshot / name)
    hub.failure = errors.OfflineModeIsEnabled("offline")
    model = find_model("acme/Rocket-7B", hub=True)
    assert model.checkpoint is not None
    assert model.checkpoint.stored  # from the headers kept beside it


FAILURES: list[tuple[Exception, str, str]] = [
    (errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE", "config.json"),
    (error(errors.GatedRepoError, 403), "gated", "hf auth login"),
    (error(errors.RepositoryNotFoundError, 401), "no repository acme/Rocket-7B", "HF_TOKEN"),
    (error(errors.RevisionNotFoundError, 404), "no revision", "leave it out"),
    (error(errors.HfHubHTTPError, 503), "answered 503", "later"),
    (TimeoutError("slow"), "no answer in time", "connect"),
    (ConnectionError("refused"), "no connection", "connect"),
    (errors.HFValidationError("bad"), "no name of a repository", "org/name"),
]


@pytest.mark.parametrize(("failure", "said", "hint"), FAILURES, ids=[type(f[0]).__name__ for f in FAILURES])
def test_failures_are_one_line(hub: Hub, failure: Exception, said: str, hint: str) -> None:
    hub.failure = failure
    with pytest.raises(KvplanError) as caught:
        find_model("acme/Rocket-7B@v2", hub=True)
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")
    assert str(caught.value).isprintable()


def test_a_failure_in_the_middle_of_the_headers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def broken(*_: Any, **__: Any) -> Iterator[Response]:
        raise ConnectionError("reset")
        yield

    monkeypatch.setattr(hub, "stream", broken)
    with pytest.raises(InputError, match="no connection"):
        find_model("acme/Rocket-7B", hub=True)


@pytest.mark.parametrize("name", ["a/b/c", "acme/", "/x/y@", "acme/ro ket", "acme/x@", "acme/..%2f"])
def test_names_that_are_none(name: str, hub: Hub) -> None:
    with pytest.raises(KvplanError):
        find_model(name, hub=True)
    assert hub.asked == []


def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="huggingface_hub") as caught:
        find_model("acme/Rocket-7B", hub=True)
    assert "kvcache-plan[hub]" in (caught.value.hint or "")


def test_a_catalog_id_is_not_asked_for(hub: Hub) -> None:
    assert find_model("llama-3.1-8b", hub=True).num_layers == 32
    assert hub.asked == []


def test_few_connections() -> None:
    assert 1 <= CONNECTIONS <= 16
