"""``--hub`` against a server on this machine that speaks the hub's API, asked by the real ``huggingface_hub``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest

from kvplan.sources import find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "acme/Rocket-GGUF"
ROOT = Path(__file__).parents[2]


class Served(NamedTuple):
    """A repository that is served, and what was asked of it."""

    folder: Path
    url: str
    asked: list[tuple[str, str, int]]
    """(method, file or API, bytes sent)."""


class Handler(BaseHTTPRequestHandler):
    folder: Path
    asked: list[tuple[str, str, int]]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if path.startswith(f"/api/models/{REPO}/tree/"):
            files = sorted(p for p in self.folder.rglob("*") if p.is_file())
            names = [
                {"type": "file", "path": p.relative_to(self.folder).as_posix(), "size": 1, "oid": "0" * 40}
                for p in files
            ]
            return self._answer(200, "tree", json.dumps(names).encode(), {"Content-Type": "application/json"})
        match = re.fullmatch(rf"/{REPO}/resolve/[^/]+/(.+)", path)
        if match is None:
            return self._answer(401, path, b"", {"X-Error-Code": "RepoNotFound"})
        file = self.folder / match.group(1)
        if not file.is_file():
            return self._answer(404, match.group(1), b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        size, headers = file.stat().st_size, {"ETag": f'"{file.name}"', "X-Repo-Commit": COMMIT}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(wanted.group(1)), min(int(wanted.group(2)) + 1, size)) if wanted else (0, size)
        if self.command == "HEAD":
            return self._answer(200, match.group(1), b"", {**headers, "Content-Length": str(size)})
        with file.open("rb") as opened:
            opened.seek(start)
            data = opened.read(end - start)
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return self._answer(206 if wanted else 200, match.group(1), data, headers)

    def _answer(self, status: int, what: str, data: bytes, headers: dict[str, str]) -> None:
        self.asked.append((self.command, what, len(data)))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "served"
    folder.mkdir()
    handler = type("Own", (Handler,), {"folder": folder, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Served(folder, f"http://127.0.0.1:{server.server_port}", handler.asked)  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def write_gguf(path: Path, *, tokens: int = 300, data: int = 8 << 20) -> None:
    """A small model with a vocabulary of `tokens`, and a hole in place of its data."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Rocket")
    writer.add_block_count(2)
    writer.add_context_length(4096)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(512)
    writer.add_head_count(8)
    writer.add_head_count_kv(2)
    writer.add_token_list([f"token number {i}" for i in range(tokens)])
    import numpy as np

    writer.add_tensor_info("token_embd.weight", (tokens, 256), np.dtype("float16"), tokens * 512)
    for i in range(2):
        writer.add_tensor_info(f"blk.{i}.attn_k.weight", (64, 256), np.dtype("float16"), 64 * 512)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.seek(0, 2)
        file.truncate(file.tell() + tokens * 512 + 2 * 64 * 512 + data)


@pytest.fixture
def kvplan(served: Served, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs kvplan in a process of its own, with this server as the hub."""

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HF_")},
            "HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path / "hf"), "KVPLAN_CACHE": str(tmp_path / "kvplan"),
            "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **more,
        }  # fmt: skip
        command = [sys.executable, "-m", "kvplan", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)

    return run


def planned(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_file_by_its_quantisation_and_by_its_name(served: Served, kvplan: Any) -> None:
    path = served.folder / "Rocket-Q4_K_M.gguf"
    write_gguf(path, tokens=90_000)
    write_gguf(served.folder / "Rocket-Q8_0.gguf")
    (served.folder / "mmproj-Q4_K_M.gguf").write_bytes(b"GGUF")
    local = find_model(str(path))
    by_tag = planned(kvplan("models", "show", f"{REPO}:q4_k_m", "--hub", "--json"))["models"][0]
    sent = sum(n for method, name, n in served.asked if method == "GET" and name == path.name)
    assert by_tag["parameters"] == local.parameters
    assert (2 << 20) < sent < (6 << 20) < path.stat().st_size  # the header takes a second request, the data none
    served.asked.clear()
    by_name = planned(kvplan("models", "show", f"{REPO}:{path.name}", "--hub", "--json"))["models"][0]
    assert by_name == by_tag
    assert ("GET", path.name) not in [(method, name) for method, name, _ in served.asked]  # kept from before
    plan = planned(kvplan("plan", f"llama-server -hf {REPO}:Q8_0 -c 4096", "--hub", "--json"))
    assert plan["kv"]["bytes_per_token"] == 2 * 2 * 2 * 32 * 2


def test_a_split_file_in_a_folder(served: Served, kvplan: Any) -> None:
    whole = served.folder / "BF16" / "Rocket-BF16.gguf"
    whole.parent.mkdir()
    write_gguf(whole)
    first = whole.rename(whole.with_name("Rocket-BF16-00001-of-00001.gguf"))
    found = planned(kvplan("models", "show", f"{REPO}:BF16", "--hub", "--json"))["models"][0]
    assert found["parameters"] == find_model(str(first)).parameters
    assert ("HEAD", f"BF16/{first.name}", 0) in served.asked


@pytest.mark.parametrize(
    ("wanted", "said", "hint"),
    [
        (":Q2_K", "has no GGUF file quantised as Q2_K", "Q4_K_M, Q8_0"),
        (":other.gguf", "has no file other.gguf", f"{REPO}:Q4_K_M"),
        ("", "no config.json", f"type {REPO}:Q4_K_M"),
        (":UD-Q4_K_M", "has no GGUF file", "Q4_K_M"),
    ],
)
def test_what_is_not_there_is_one_line_with_what_is(
    served: Served, kvplan: Any, wanted: str, said: str, hint: str
) -> None:
    for tag in ("Q4_K_M", "Q8_0"):
        write_gguf(served.folder / f"Rocket-{tag}.gguf")
    done = kvplan("plan", f"{REPO}{wanted}", "--hub")
    assert done.returncode == 2
    error, advice = done.stderr.strip().splitlines()
    assert said in error
    assert hint in advice


def test_hostile_headers_and_no_server(served: Served, kvplan: Any) -> None:
    (served.folder / "a-Q4_0.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
    done = kvplan("plan", f"{REPO}:Q4_0", "--hub")
    assert done.returncode == 2
    assert "says it holds" in done.stderr
    done = kvplan("plan", f"{REPO}:Q4_0", "--hub", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 2
    assert "the hub cannot be reached" in done.stderr
    done = kvplan("plan", "acme/none:Q4_0", "--hub")
    assert "no repository acme/none" in done.stderr


def test_a_checkpoint_through_the_real_client(served: Served, kvplan: Any, checkpoints: Any) -> None:
    config = checkpoints.LLAMA | {"vocab_size": 50_000}
    checkpoints.write(served.folder, config, checkpoints.llama_tensors(config), shards=3)
    local = find_model(str(served.folder))
    found = planned(kvplan("models", "show", REPO, "--hub", "--json"))["models"][0]
    assert found["parameters"] == local.parameters
    whole = sum(p.stat().st_size for p in served.folder.glob("*.safetensors"))
    sent = sum(n for method, name, n in served.asked if name.endswith(".safetensors"))
    assert 0 < sent < whole


# ---- files on another host, as the real hub keeps them ----


@pytest.fixture
def cdn(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, str | None]]]:
    """Large files are redirected to a second server; what it was asked: (file, range, authorization)."""
    asked: list[tuple[str, str, str | None]] = []

    class Far(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            said = self.headers.get("Range", "")
            asked.append((path, said, self.headers.get("Authorization")))
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", said)
            file = served.folder / path.removeprefix("/blobs/")
            if wanted is None or query != "Signature=abc":
                self.send_response(403)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            size, start = file.stat().st_size, int(wanted.group(1))
            with file.open("rb") as opened:
                opened.seek(start)
                data = opened.read(min(int(wanted.group(2)) + 1, size) - start)
            self.send_response(206)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Range", f"bytes {start}-{start + len(data) - 1}/{size}")
            self.end_headers()
            self.wfile.write(data)

    far = ThreadingHTTPServer(("127.0.0.1", 0), Far)
    threading.Thread(target=far.serve_forever, daemon=True).start()
    plainly = Handler.do_GET

    def do_GET(self: Handler) -> None:
        path = unquote(self.path.partition("?")[0])
        match = re.fullmatch(rf"/{REPO}/resolve/[^/]+/(.+\.safetensors)", path)
        if match is None or not (self.folder / match.group(1)).is_file():
            return plainly(self)
        size = (self.folder / match.group(1)).stat().st_size
        return self._answer(302, match.group(1), b"", {
            "Location": f"http://localhost:{far.server_port}/blobs/{match.group(1)}?Signature=abc",
            "X-Linked-Size": str(size), "X-Linked-ETag": '"linked"', "X-Repo-Commit": COMMIT,
        })  # fmt: skip

    monkeypatch.setattr(Handler, "do_GET", do_GET)
    yield asked
    far.shutdown()
    far.server_close()


def test_headers_come_from_the_host_of_the_files_and_no_token_goes_there(
    served: Served, kvplan: Any, checkpoints: Any, cdn: list[tuple[str, str, str | None]]
) -> None:
    config = checkpoints.LLAMA | {"vocab_size": 50_000}
    checkpoints.write(served.folder, config, checkpoints.llama_tensors(config), shards=3)
    local = find_model(str(served.folder))
    found = planned(kvplan("models", "show", REPO, "--hub", "--json", HF_TOKEN="hf_secret"))["models"][0]
    assert found["parameters"] == local.parameters
    assert len(cdn) == 3
    assert all(said.startswith("bytes=0-") for _, said, _ in cdn)
    assert {token for *_, token in cdn} == {None}
    asked = len(cdn)
    again = planned(kvplan("models", "show", REPO, "--hub", "--json"))["models"][0]
    assert again["parameters"] == local.parameters
    assert len(cdn) == asked  # headers are kept per commit
    offline = planned(kvplan("models", "show", REPO, "--hub", "--json", HF_HUB_OFFLINE="1"))["models"][0]
    assert offline["parameters"] == local.parameters


@pytest.mark.parametrize(
    ("status", "code", "said", "hint"),
    [
        (403, "GatedRepo", "is gated", "accept its terms"), (401, "GatedRepo", "is gated", "HF_TOKEN"),
        (401, "RepoNotFound", "no repository", "HF_TOKEN"), (404, "RevisionNotFound", "no revision", "leave it out"),
        (503, "", "answered 503", "try again later"), (429, "", "answered 429", "try again later"),
    ],
)  # fmt: skip
def test_a_hub_that_says_no(
    served: Served, kvplan: Any, monkeypatch: pytest.MonkeyPatch, status: int, code: str, said: str, hint: str
) -> None:
    def refuse(self: Handler) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": "no"} if code else {}
        self._answer(status, self.path, b"", headers)

    monkeypatch.setattr(Handler, "do_GET", refuse)
    done = kvplan("plan", f"{REPO}@v9", "--hub")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert said in done.stderr
    assert hint in done.stderr
    assert done.stdout == ""


def test_a_hub_that_does_not_answer(served: Served, kvplan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()
    monkeypatch.setattr(Handler, "do_GET", lambda self: gone.wait(30) and None)
    try:
        done = kvplan("plan", REPO, "--hub", HF_HUB_ETAG_TIMEOUT="1", HF_HUB_DOWNLOAD_TIMEOUT="1")
    finally:
        gone.set()
    assert done.returncode == 2
    assert "no answer in time" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_offline_without_a_copy(served: Served, kvplan: Any) -> None:
    done = kvplan("plan", REPO, "--hub", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert "HF_HUB_OFFLINE is set" in done.stderr
    assert not served.asked
