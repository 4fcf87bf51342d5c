"""Other sizing tools on the same question: the cache of one request of 32,768 tokens in 16 bits.

    python benchmarks/peers.py              # installs each tool into a venv of its own, runs all, prints the table
    python benchmarks/peers.py --write      # the same, and writes it into docs/peers.md with today's date
    python benchmarks/peers.py --venvs DIR  # keeps the venvs there for the next time

Every tool gets the same `config.json`: the published ones as kept in ``tests/data/models.jsonl``. Tools that read the
Hugging Face hub get them from a server on this machine. Only cache figures are compared: the weight files served are
empty. The right figure is computed below from the shapes alone, without kvplan.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import http.server
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvplan import plan  # noqa: E402

PAGE = ROOT / "docs" / "peers.md"
START, END = "<!-- written by benchmarks/peers.py -->", "<!-- end of the generated part -->"
TOKENS = 32_768
GIB = 2**30

RIGHT: dict[str, tuple[int, str]] = {
    "llama-3.1-8b": (TOKENS * 32 * 2 * 8 * 128 * 2, "grouped heads"),
    "qwen3-32b": (TOKENS * 64 * 2 * 8 * 128 * 2, "head size not hidden / heads"),
    "falcon-7b": (TOKENS * 32 * 2 * 1 * 64 * 2, "one KV head, by a flag of its own"),
    "deepseek-v3": (TOKENS * 61 * (512 + 64) * 2, "latent rows"),
    "gemma-3-27b": ((TOKENS * 10 + 1024 * 52) * 2 * 16 * 128 * 2, "52 of 62 layers have a window of 1,024"),
    "gpt-oss-120b": ((TOKENS * 18 + 128 * 18) * 2 * 8 * 64 * 2, "18 of 36 layers have a window of 128"),
    "qwen3-next-80b-a3b": (TOKENS * 12 * 2 * 2 * 256 * 2, "12 of 48 layers attend; without states"),
    "gemma-3n-e4b": ((TOKENS * 4 + 512 * 16) * 2 * 2 * 256 * 2, "15 of 35 layers reuse a cache, 16 have a window"),
}
"""Model -> (bytes of the request, what is special)."""
UNWINDOWED: dict[str, int] = {
    "gemma-3-27b": TOKENS * 62 * 2 * 16 * 128 * 2,
    "gpt-oss-120b": TOKENS * 36 * 2 * 8 * 64 * 2,
    "gemma-3n-e4b": TOKENS * 20 * 2 * 2 * 256 * 2,
}
"""The same where an engine keeps every token in windowed layers too: no mistake, another policy."""
STATES: dict[str, tuple[int, ...]] = {
    "qwen3-next-80b-a3b": tuple(36 * (32 * 128 * 128 * width + 8192 * 3 * 2) for width in (2, 4)),
}
"""Bytes of its recurrent and convolution states, in 16 and in 32 bits, which some tools count with the cache."""


class Peer(NamedTuple):
    """A tool, the version that was run, its command and where its answer stands."""

    package: str
    version: str
    command: tuple[str, ...]
    answer: Callable[[str], float]
    """Its printed text -> bytes; raises where it gives none."""


def key(*path: str, scale: float = 1) -> Callable[[str], float]:
    """A number in the JSON that a tool prints, found by its keys."""

    def answer(text: str) -> float:
        node: Any = json.loads(text[text.index("{") :])
        for name in path:
            node = node[name]
        return float(node) * scale

    return answer


def size(pattern: str) -> Callable[[str], float]:
    """A size in the text that a tool prints: number and unit are the pattern's groups."""

    def answer(text: str) -> float:
        found = re.search(pattern, text)
        if found is None:
            raise ValueError("no such line")
        unit = found[2] if found.re.groups > 1 else "GiB"
        return float(found[1]) * {"M": 2**20, "G": GIB, "T": 2**40}[unit[0]]

    return answer


def table_cell(text: str) -> float:
    """The fourth column of hf-vram-calc's row."""
    row = next(line for line in text.splitlines() if "BF16" in line and line.count("│") > 5)
    return float(row.split("│")[4]) * GIB


PEERS = (
    Peer("hf-mem", "0.5.6",
         ("hf-mem", "--model-id", "{repo}", "--experimental", "--max-model-len", "32768", "--kv-cache-dtype",
          "bfloat16", "--json-output"), key("kv_cache")),
    Peer("kvfit", "0.3.0",
         ("kvfit", "{repo}", "--hardware", "h100-80gb", "--gpus", "8", "--context", "32768", "--kv-dtype", "bf16",
          "--json"),
         key("cache", "bytes_per_sequence")),
    Peer("ridgepoint", "0.1.2",
         ("ridgepoint", "fit", "{repo}", "--gpu", "h100-80gb:8", "--ctx", "32768", "--json"),
         key("capacity", "bytes_per_seq")),
    Peer("vramscout", "0.7.0", ("vramscout", "{folder}", "--context", "32768", "--vram-gib", "80", "--json"),
         key("parts_gib", "KV cache", scale=GIB)),
    Peer("vramcalc", "0.1.2", ("vramcalc", "estimate", "{folder}/config.json", "--seq", "32768", "--json"),
         key("estimate", "kv_cache")),
    Peer("hf-vram-calc", "1.0.9",
         ("hf-vram-calc", "--model", "x", "--model_path", "{folder}", "--max_seq_len", "32768", "--dtype", "bf16"),
         table_cell),
    Peer("modelinfo-cli", "1.4.4", ("modelinfo", "{folder}/model.safetensors", "--context", "32768"),
         size(r"KV Cache:\s+([\d.]+) ([MGT])B")),
)  # fmt: skip

REDIRECT = """
import urllib.request
HUB, HERE = "https://huggingface.co", {here!r}
first = urllib.request.Request.__init__
urllib.request.Request.__init__ = lambda self, url, *a, **k: first(self, url.replace(HUB, HERE), *a, **k)
for name in ("httpx", "httpx2"):
    try:
        client = __import__(name)
    except ImportError:
        continue
    for kind in (client.Client, client.AsyncClient):
        def build(self, method, url, *a, _build=kind.build_request, **k):
            return _build(self, method, str(url).replace(HUB, HERE), *a, **k)
        kind.build_request = build
"""
"""A ``sitecustomize`` for the tools that read the hub: they find this machine's server there."""


def configurations() -> dict[str, tuple[str, dict[str, Any]]]:
    """Model -> (hub name, config.json)."""
    rows = map(json.loads, (ROOT / "tests" / "data" / "models.jsonl").read_text(encoding="utf-8").splitlines())
    return {row["id"]: (row["hf_repo"], row["config"]) for row in rows if row["id"] in RIGHT}


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub would: a repository's files, and those files with ranges."""

    def __init__(self, folder: Path, *rest: Any) -> None:
        self.folder = folder
        super().__init__(*rest)

    def log_message(self, *_: object) -> None:
        """Nothing: the tools' answers are what counts."""

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        path = self.path.partition("?")[0].strip("/")
        api = re.match(r"api/models/([^/]+/[^/]+)(/tree/.*)?", path)
        wanted = re.match(r"([^/]+/[^/]+)/(?:resolve|raw)/[^/]+/(.+)", path)
        data = b""
        if api:
            names = [
                {"type": "file", "path": f.name, "rfilename": f.name, "size": f.stat().st_size}
                for f in (self.folder / api[1]).glob("*")
            ]
            data = json.dumps(names if api[2] else {"id": api[1], "sha": "0" * 40, "siblings": names}).encode()
        elif wanted and (self.folder / wanted[1] / wanted[2]).is_file():
            data = (self.folder / wanted[1] / wanted[2]).read_bytes()
        total, part = len(data), re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if part and data:
            data = data[int(part[1]) : int(part[2]) + 1 if part[2] else None]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {part[1]}-{int(part[1]) + len(data) - 1}/{total}")
        else:
            self.send_response(200 if data else 404)
        for name, value in (("Content-Length", str(len(data))), ("ETag", '"0"'), ("X-Repo-Commit", "0" * 40)):
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


def write_models(folder: Path) -> None:
    """The repositories that are served: a configuration, and a weight file with one small tensor."""
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [16, 16], "data_offsets": [0, 512]}})
    for repo, config in configurations().values():
        (folder / repo).mkdir(parents=True)
        (folder / repo / "config.json").write_text(json.dumps(config), encoding="utf-8")
        weights = struct.pack("<Q", len(header)) + header.encode() + bytes(512)
        (folder / repo / "model.safetensors").write_bytes(weights)


def installed(peer: Peer, venvs: Path) -> Path:
    """The bin folder of the tool's venv, made where it is not there."""
    place = venvs / peer.package
    if not (place / "bin" / peer.command[0]).exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(place / "bin" / "pip"), "install", "--quiet", f"{peer.package}=={peer.version}"]
        subprocess.run(pip, check=True)
    return place / "bin"


def ask(peer: Peer, bin_folder: Path, repo: str, folder: Path, environment: Mapping[str, str]) -> float | str:
    """The bytes that a tool answers, or what it does instead."""
    words = [word.format(repo=repo, folder=folder / repo) for word in peer.command]
    try:
        done = subprocess.run(
            [str(bin_folder / words[0]), *words[1:]], capture_output=True, text=True, timeout=300, env=environment
        )
        return "refuses" if done.returncode > 1 or '"error"' in done.stdout else peer.answer(done.stdout) or "no figure"
    except (ValueError, KeyError, TypeError, StopIteration, IndexError, subprocess.TimeoutExpired):
        if os.environ.get("PEERS_DEBUG"):
            print(peer.package, repo, done.stdout[-1500:], done.stderr[-800:], file=sys.stderr)
        return "no figure"


def cell(model: str, found: float | str) -> str:
    if isinstance(found, str):
        return found
    text, ratio = f"{found / GIB:.3f}", found / RIGHT[model][0]
    if model in STATES and any(abs(found - RIGHT[model][0] - state) < 0.001 * GIB for state in STATES[model]):
        return f"{text} (states in it)"
    if abs(ratio - 1) < 0.002:
        return text
    if model in UNWINDOWED and abs(found / UNWINDOWED[model] - 1) < 0.002:
        return f"{text} (full)"
    return f"{text} ({ratio:.3f}x)" if 0.9 < ratio < 1.1 else f"{text} ({ratio:.2g}x)"


def table(venvs: Path) -> str:
    lines = ["| model | right, GiB | kvplan | " + " | ".join(f"{p.package} {p.version}" for p in PEERS) + " |"]
    lines.append("| --- " * (len(PEERS) + 3) + "|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_models(folder / "hub")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, folder / "hub"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(REDIRECT.format(here=here), encoding="utf-8")
        environment = {
            **os.environ, "PYTHONPATH": str(folder / "site"), "HF_ENDPOINT": here, "HOME": temporary, "COLUMNS": "160",
        }  # fmt: skip
        for model, (repo, _) in configurations().items():
            cells = [cell(model, ask(p, installed(p, venvs), repo, folder / "hub", environment)) for p in PEERS]
            own = plan(model, engine="generic", max_model_len=TOKENS).kv
            mine = cell(model, own.bytes_per_sequence - own.fixed_bytes_per_sequence)
            lines.append(f"| {model} | {RIGHT[model][0] / GIB:.3f} | {mine} | " + " | ".join(cells) + " |")
            print(lines[-1], file=sys.stderr, flush=True)
        server.shutdown()
    special = "\n".join(f"- {model}: {why}." for model, (_, why) in RIGHT.items())
    return f"Run on {datetime.date.today()}.\n\n" + "\n".join(lines) + f"\n\n{special}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venvs", type=Path, metavar="DIR", help="where the tools' environments are kept")
    parser.add_argument("--write", action="store_true", help="write the table into docs/peers.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        text = table(arguments.venvs or Path(temporary))
    print(text)
    if arguments.write:
        old = PAGE.read_text(encoding="utf-8")
        head, tail = old.split(START)[0], old.split(END)[1]
        PAGE.write_text(f"{head}{START}\n{text}{END}{tail}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
