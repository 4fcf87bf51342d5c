"""Every reader with something to damage: seeds, a way to damage them, and what must hold whatever comes out.

A reader answers or raises a `KvplanError` of printable lines, in at most `MOST_SECONDS` and `MOST_BYTES`. Run it for as
long as you like, one reader or all of them; a failing input is written beside the report::

    python tests/fuzz/readers.py --runs 200000
    python tests/fuzz/readers.py gguf --runs 200000 --seed 7
    python tests/fuzz/readers.py gguf --atheris -runs=200000       # guided by coverage, where atheris is installed
"""

from __future__ import annotations

import argparse
import io
import json
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from kvplan.errors import KvplanError, SpecError

MOST_SECONDS = 2.0
MOST_BYTES = 200 << 20
DATA = Path(__file__).parents[1] / "data"
MODELS = Path(__file__).parents[2] / "models"
WORDS = (
    b"0", b"-1", b"1", b"2147483648", b"18446744073709551615", b"99999999999999999999999", b"1e999", b"NaN", b"null",
    b"true", b'""', b"[]", b"{}", b"[[[[", b"}}}}", b'"', b"'", b"\\", b"\n", b"\t", b"\0", b"\xff", b"\xed\xa0\x80",
    b"$", b"${", b"$(", b"`", b"|", b"&&", b"<<EOF\n", b"#", b": ", b"- ", b"&a ", b"*a", b"<<: ", b"!!python/x ",
    b"../", b"/dev/zero", b"\xe2\x80\xae", b"\x1b[31m", b"--", b"=", b",", b" " * 40, b"(" * 200, b"a" * 300,
)  # fmt: skip
"""What is put in."""


class Reader(NamedTuple):
    """One way in."""

    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes], object]
    """Whatever it returns is thrown away; `KvplanError` is an answer."""


def _configs() -> list[bytes]:
    lines = (DATA / "models.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.dumps(json.loads(line)["config"]).encode() for line in lines]


def _read_config(data: bytes) -> object:
    from kvplan.sources.hf.read import read_config
    from kvplan.sources.strict_json import decode, parse

    found = parse(decode(data, "f"), "f")
    for assume in (None, "llama-like"):
        try:
            model = read_config(found, assume=assume)
        except SpecError as error:
            _check(error)
        else:
            assert model.parameters > 0
            assert model.id.isprintable()
    return None


def _header(tensors: list[tuple[str, str, list[int]]], **how: Any) -> bytes:
    sizes, at, entries = {"BF16": 2, "F32": 4, "F8_E4M3": 1}, 0, {}
    for name, dtype, shape in tensors:
        size = sizes[dtype]
        for n in shape:
            size *= n
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps({"__metadata__": {"format": "pt"}, **entries}, **how).encode()
    return len(raw).to_bytes(8, "little") + raw + at.to_bytes(8, "little")


def _headers() -> list[bytes]:
    tensors = [
        (f"model.layers.{i}.{name}.weight", dtype, [4, 2])
        for i in range(3)
        for name, dtype in (("self_attn.q_proj", "BF16"), ("mlp.experts.1.up_proj", "F8_E4M3"), ("norm", "F32"))
    ]
    return [_header(tensors, separators=(",", ":")), _header(tensors, indent=1), _header([], separators=(",", ":"))]


class _Held:
    def __init__(self, data: bytes) -> None:
        self.data = data[:-8]
        self.size = len(self.data) + int.from_bytes(data[-8:], "little")

    def read(self, start: int, length: int) -> bytes:
        return self.data[start : start + length]


def _read_header(data: bytes) -> object:
    """The quick way and the careful one must agree, in what they refuse too."""
    from kvplan.sources.checkpoint.groups import read_groups
    from kvplan.sources.checkpoint.safetensors import read_header

    def quickly(file: _Held) -> int:
        return read_groups(file, "f", 2).total()

    def carefully(file: _Held) -> int:
        return len(list(read_header(file, "f")))

    outcomes: list[int | str] = []
    for way in (quickly, carefully):
        try:
            outcomes.append(way(_Held(data)))
        except SpecError as error:
            outcomes.append(_check(error))
    assert outcomes[0] == outcomes[1], outcomes
    return None


def _indices() -> list[bytes]:
    places = {f"model.layers.{i}.w": f"model-{i % 3:05}-of-00003.safetensors" for i in range(9)}
    index = {"metadata": {"total_size": 1000}, "weight_map": places}
    return [json.dumps(index, indent=2).encode(), json.dumps(index).encode()]


def _read_index(data: bytes) -> object:
    from kvplan.sources.checkpoint.index import read_index

    assert all("/" not in name for name in read_index(data, "i").shards)
    return None


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _ggufs() -> list[bytes]:
    found = []
    keys = {
        "context_length": 4096, "embedding_length": 256, "block_count": 2, "feed_forward_length": 512,
        "vocab_size": 300,
        "attention.head_count": 8, "attention.head_count_kv": 2, "attention.sliding_window": 64, "expert_count": 4,
        "expert_used_count": 2, "attention.kv_lora_rank": 64, "attention.key_length": 96, "ssm.conv_kernel": 4,
        "ssm.inner_size": 512, "ssm.state_size": 16, "ssm.time_step_rank": 16, "ssm.group_count": 4,
        "full_attention_interval": 2, "wkv.head_size": 64, "shortconv.l_cache": 3,
    }  # fmt: skip
    for name in ("llama", "gemma3", "deepseek2", "mamba2", "qwen3next", "rwkv7", "lfm2", "gpt-oss"):
        pairs = [_text("general.architecture") + struct.pack("<I", 8) + _text(name)]
        pairs += [_text(f"{name}.{key}") + struct.pack("<II", 4, value) for key, value in keys.items()]
        pairs.append(_text(f"{name}.attention.head_count_kv_") + struct.pack("<IIQII", 9, 4, 2, 2, 2))
        pairs.append(
            _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + _text("a") + _text("b") + _text("")
        )
        table = [("token_embd.weight", (256, 300)), ("blk.0.attn_k.weight", (256, 64)), ("blk.1.x", (256, 2))]
        rows = [_text(n) + struct.pack(f"<I{len(s)}QIQ", len(s), *s, 0, 0) for n, s in table]
        head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(pairs)) + b"".join(pairs) + b"".join(rows)
        found.append(head)
    return found


def _read_gguf(data: bytes) -> object:
    from kvplan.sources.gguf.header import parse_header
    from kvplan.sources.gguf.metadata import of_header

    for assume in (None, "llama-like"):
        try:
            of_header(parse_header(io.BytesIO(data), "f", len(data)), assume=assume)
        except KvplanError as error:
            _check(error)
    return None


def _specs() -> list[bytes]:
    return [path.read_bytes() for path in sorted(MODELS.rglob("*.yaml"))[::9]]


def _read_spec(data: bytes) -> object:
    from kvplan.sources.yaml_file import model_from_text

    return model_from_text(data.decode("utf-8", "replace"), "f")


def _lines() -> list[bytes]:
    return [
        b"VLLM_USE_V1=1 vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 32K --hf-overrides '{\"rope_scaling\": {}}'",
        b"python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --json-model-override-args '{\"a\": 1}'",
        b"llama-server -hf a/Qwen3-8B-GGUF:Q4_K_M -c 4096 --override-kv a.b=int:3 --rope-scaling yarn --rope-scale 4",
        b"OLLAMA_NUM_PARALLEL=2 ollama run deepseek-r1:8b hello; ollama serve",
        b"docker run --gpus '\"device=0,1\"' -e A=${B:-c} vllm/vllm-openai:v0.20.0 --model Qwen/Qwen3-8B",
        b"bash -c 'exec trtllm-serve Qwen/Qwen3-8B --tp_size ${TP:-2}' && for i in 1 2; do env A=b vllm serve x; done",
    ]  # fmt: skip


def _read_line(data: bytes) -> object:
    from kvplan.deployment import find_deployment
    from kvplan.sources.commands import read_command

    text = data.decode("utf-8", "replace")
    if not any(c.isspace() for c in text.strip()):
        return None
    read_command(text)
    return find_deployment(text, {})


def _manifests() -> list[bytes]:
    return [path.read_bytes() for path in sorted((DATA / "manifests").iterdir())]


def _read_manifest(data: bytes) -> object:
    from kvplan.sources.commands import starts_in
    from kvplan.sources.commands.starts import Finder

    text = data.decode("utf-8", "replace")
    for name in ("f.yaml", "f.sh"):
        try:
            starts_in(text, name, Finder("f"), "")
        except KvplanError as error:
            _check(error)
    return None


READERS: dict[str, Reader] = {
    "config": Reader(_configs, _read_config),
    "safetensors": Reader(_headers, _read_header),
    "index": Reader(_indices, _read_index),
    "gguf": Reader(_ggufs, _read_gguf),
    "spec": Reader(_specs, _read_spec),
    "line": Reader(_lines, _read_line),
    "manifest": Reader(_manifests, _read_manifest),
}


def damaged(seeds: list[bytes], chance: random.Random) -> bytes:
    """A seed with a few bytes changed, cut out, put in, doubled, or taken from another one."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5, 8))):
        if not data:
            break
        at, kind = chance.randrange(len(data)), chance.randrange(8)
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            del data[at : at + chance.choice((1, 1, 2, 4, 8, 30, 200))]
        elif kind == 2:
            data[at:at] = chance.choice(WORDS)
        elif kind == 3:
            word = chance.choice(WORDS)
            data[at : at + len(word)] = word
        elif kind == 4:
            data[at:at] = data[at : at + chance.choice((2, 8, 40, 300))] * chance.choice((1, 2, 20))
        elif kind == 5:
            other = chance.choice(seeds)
            start = chance.randrange(len(other) + 1)
            data[at : at + chance.choice((0, 20))] = other[start : start + chance.choice((4, 40, 400))]
        elif kind == 6:
            data[at : at + 8] = struct.pack(
                "<Q", chance.choice((0, 1, 2, 7, 1 << 16, 1 << 32, (1 << 63) + 5, (1 << 64) - 1))
            )
        else:
            del data[at if chance.random() < 0.3 else len(data) :]
    return bytes(data[:500_000])


def _check(error: KvplanError) -> str:
    assert str(error).isprintable(), repr(str(error))
    assert error.hint is None or error.hint.isprintable(), repr(error.hint)
    return str(error)


def attempt(reader: Reader, data: bytes) -> str:
    """Why an input is a failure; empty: it is none."""
    started = time.process_time()
    try:
        reader.read(data)
    except KvplanError as error:
        try:
            _check(error)
        except AssertionError as said:
            return f"unprintable: {said}"
    except RecursionError:
        return "RecursionError"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    seconds = time.process_time() - started
    return f"took {seconds:.1f} s" if seconds > MOST_SECONDS else ""


def failures(name: str, runs: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """(why, input) of the failures among so many damaged inputs."""
    reader, chance = READERS[name], random.Random(f"{name} {seed}")
    seeds = reader.seeds()
    for data in seeds:
        attempt(reader, data)  # loads what it needs
    before = _peak_bytes()
    for _ in range(runs):
        data = damaged(seeds, chance)
        why = attempt(reader, data)
        if why:
            yield why, data
        if _peak_bytes() - before > MOST_BYTES:
            yield f"{_peak_bytes() - before:,} bytes more than before", data
            before = _peak_bytes()


def _peak_bytes() -> int:
    """The most memory that this process has held; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(arguments: list[str]) -> int:
    """Damage and read; exit status 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", nargs="*", help=f"one of {', '.join(READERS)}; default: all")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true", help="guided by coverage; further words go to libFuzzer")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"))
    found, rest = parser.parse_known_args(arguments)
    if found.atheris:
        return guided(found.reader[0], rest)
    seen: set[str] = set()
    for name in found.reader or READERS:
        started, count = time.perf_counter(), 0
        for why, data in failures(name, found.runs, found.seed):
            count += 1
            if why not in seen and len(seen) < 50:
                seen.add(why)
                found.out.mkdir(exist_ok=True)
                path = found.out / f"{name}-{found.seed}-{len(seen)}"
                path.write_bytes(data)
                print(f"{path}: {why}")
        print(f"{name}: {found.runs:,} inputs, {count:,} failures, {time.perf_counter() - started:.0f} s", flush=True)
    return 1 if seen else 0


def guided(name: str, words: list[str]) -> int:
    """The same under atheris, which does not return."""
    atheris: Any = import_module("atheris")

    with atheris.instrument_imports(include=["kvplan"]):
        reader = READERS[name]
        for data in reader.seeds():
            attempt(reader, data)

    def once(data: bytes) -> None:
        why = attempt(reader, data)
        if why:
            raise RuntimeError(why)

    corpus = Path("fuzz-corpus") / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(reader.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    atheris.Setup([sys.argv[0], str(corpus), *words], once)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
