"""Words for a command line: files of every kind the verbs read, and values for every flag they have, likely ones first.

What a flag is given is found by its name, then by the placeholder its help shows, so that a new flag is
covered by the day it is there; some of the values are then damaged, swapped or replaced by hostile ones.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

from readers import DATA, READERS, damaged

from kvplan.cli.main import main

ROOT = DATA.parents[1]

COUNTS = ("1", "2", "4", "8", "3", "64", "256", "0", "-1", "1000", "7", "99999999", "1e3", "2.5", "1k", "\u0661")
TOKENS = ("4096", "32K", "32k", "1024", "16", "1M", "-1", "0", "1", "131072", "1.5K", "10,000", "1e6", "2^20", "8 K")
SHARES = ("0.9", "0.5", "1", "0", "90%", "1.5", "1e-9", "0.999999", "nan", "inf", "-0.1", "5%")
REALS = ("1", "0.5", "3", "0", "1e-300", "1e300", "-1", "nan", "inf", "300/min", "500ms", "30 ms", "2s", "0x10")
SIZES = ("80GiB", "80GB", "80G", "1B", "16GiB", "0.5TiB", "0", "1e30GiB", "-1GiB", "192 GiB", "3.35TB/s", "900GB/s")
FORMATS = ("auto", "fp8", "bf16", "fp8_e4m3", "q8_0", "q4_0", "nvfp4", "int4", "gptq", "awq", "mxfp4", "f32", "turbo")
BITS = ("4", "8", "2", "3", "0", "16", "4,3", "8,8", "1.5")
NAMES = (
    "auto", "default", "dynamic", "static", "quantized", "quanto", "hqq", "align", "all", "FLASH_ATTN", "flashinfer",
    "triton", "FLASHMLA", "mooncake", "azure", "csv", "sharegpt", "vllm-bench", "vllm", "sglang", "recompute", "swap",
    "paged", "contiguous", "ideal", "random", "round-robin", "least-tokens", "nvidia", "amd", "apple", "llama", "bash",
    "zsh", "capacity", "verdict.fits", "decode.seconds_per_step", "memory,allocator", "cpu", "cuda", "cuda:0", "mps",
)  # fmt: skip
MODELS = (
    "llama-3.1-8b", "qwen3-32b", "deepseek-v3", "gemma-3-27b", "gpt-oss-20b", "qwen3-next-80b-a3b", "mamba2-2.7b",
    "meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-7b", "spec.yaml", "config.json", "model.gguf", ".", "deploy.yaml",
    "deploy.yaml#vllm", "serve.sh", "vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 32K", "llama-server -m a.gguf -c 9",
    "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2", "ollama run qwen3:8b", "C:\\models\\x",
)  # fmt: skip
GPUS = (
    "H100-80GB-SXM", "h200", "l40s", "mi300x", "rtx 4090", "NVIDIA A100-SXM4-80GB", "m3-ultra", "gpu.yaml", "auto",
    "h1000", "b200,h100-sxm", "T4",
)  # fmt: skip
ENGINES = (
    "vllm", "vllm@0.20.0", "sglang", "tensorrt-llm", "llama.cpp", "ollama", "transformers", "mlx", "exllamav3",
    "generic", "vllm@0.9", "vllm@99", "vlm", "vllm,sglang", "mlx@", "@1",
)  # fmt: skip
VARIES = (
    "tp=1,2,4", "max-model-len=1K..16K*2", "concurrency=1..9:4", "gpu=l40s,h100-sxm", "kv-cache-dtype=auto,fp8",
    "attention=mha,gqa:2,mqa", "engine=vllm,sglang", "tp=", "=1", "concurrency=1..1e9", "block-size=1..3", "json=1",
    "max_num_seqs=1,2", "gpu-memory-utilization=0.1..0.9:0.2", "tp=4..1", "concurrency=1..100*1", "allocator=paged",
)  # fmt: skip
SYNTHETICS = (
    "requests=20,prompt=lognormal:512,output=128,rate=2,system=100,turns=3,seed=0", "requests=5", "requests=1e18",
    "prompt=uniform:1:9,requests=9", "rate=0", "requests=9,output=0", "seed=x", "requests=3,prompt=empirical:trace.csv",
)  # fmt: skip
FILES = (
    "spec.yaml", "gpu.yaml", "config.json", "model.gguf", "deploy.yaml", "serve.sh", "vllm.log", "trace.jsonl",
    "trace.csv", "rules.yaml", "result.json", "receipt.json", "missing.json", ".", "-", "a\\b.yaml",
)  # fmt: skip
"""Files of the folder a command line runs in; the first twelve are there."""
OUTPUTS = ("out.json", "out.md", "out.html", "out.svg", "out.csv", "out.txt", "none/out", ".", "-", "", "/dev/null")
"""Where a verb may write: nowhere but in that folder."""
SPECULATIVE = (
    '{"method": "mtp", "num_speculative_tokens": 1}', '{"model": "spec.yaml", "num_speculative_tokens": 3}', "{}",
    '{"method": "ngram", "num_speculative_tokens": 4}', '{"method": "eagle3", "model": "llama-3.2-1b"}', "[]", '{"a":',
)  # fmt: skip

BY_PLACEHOLDER: dict[str, tuple[str, ...]] = {
    "A": FILES, "B": FILES, "ADDRESS": ("local", "auto", "127.0.0.1:1"), "BITS": BITS, "BYTES": (*SIZES, "1000000000"),
    "FIGURE<=VALUE": ("ttft.p99<=2", "hit_rate>=30%", "x<=1", "ttft.p99", "<=", "ttft.p50<=nan"), "FILE": FILES,
    "FORMAT": FORMATS, "FORMAT=FILE": ("junit=out.xml", "sarif=out.json", "x=y", "=", "github=none/out"),
    "ID=USD_PER_HOUR": ("h200=3.5", "l40s=0", "x=1", "h200=", "l40s=-1", "h200=nan"), "JSON": SPECULATIVE,
    "K[,V]": BITS, "MIB": (*COUNTS, "100000"), "MODE": NAMES, "MODEL": MODELS, "MODEL...": MODELS, "N": COUNTS,
    "N,...": ("1,2,3", "0", "10000,50000", ",", "1,x"), "NAME": NAMES, "NAME=VALUES": VARIES,
    "NAME[@VERSION]": ENGINES, "PATH...": FILES, "R": REALS, "RATE": SIZES, "RATIO": (*SHARES, "2"), "S": REALS,
    "SECONDS": REALS, "SECTION,...": ("memory", "fit,step", "x", ","), "SHARE": SHARES,
    "SHARES": ("3,1", "1", "0,0", "1,,", "-1,2", "nan,1"), "SHELL": ("bash", "zsh", "fish", "powershell", "sh"),
    "SIZE": SIZES, "SOURCE": (*FILES, *MODELS), "SPEC": SYNTHETICS, "TOKENS": TOKENS,
    "TOKENS or DISTRIBUTION": (*TOKENS, "lognormal:512", "uniform:1:100", "x:1"), "TYPE": FORMATS,
    "USE": ("cache", "weights", "x"), "WHAT=NAME,...": ("arrival=t,prompt=p", "prompt=", "x=y", "output=o,output=o"),
    "WHEN": ("auto", "always", "never", "x"), "X": REALS, "[NAME]": (*GPUS, *ENGINES, "q8_0"), "[TEXT]": MODELS,
    "llama-like": ("llama-like", "x"), "on|off|auto": ("on", "off", "auto", "1", "x"),
}  # fmt: skip
BY_NAME: dict[str, tuple[str, ...]] = {
    "--gpu": GPUS, "--output": OUTPUTS, "--write-baseline": OUTPUTS, "--save": OUTPUTS, "--limit": ("1", "5", "0", "x"),
    "--requests": OUTPUTS, "--gpus": ("1", "2", "4", "8", "0", "3", "99999"), "--max-gpus": ("1", "2", "8", "0"),
    "--workers": ("1", "0", "x"), "--samples": ("1", "3", "0", "x"), "--top": ("1", "3", "0", "x"),
    "--trace": ("trace.jsonl", "trace.csv", "missing.json", "vllm.log", "."), "--model": ("spec", "x", *MODELS[:3]),
    "--max-memory": ("100MB", "0", "1GiB", "x"), "--calibration": ("receipt.json", "missing.json", "result.json"),
    "--from-log": ("vllm.log", "spec.yaml", "missing.json"), "--check": ("receipt.json", "missing.json", "rules.yaml"),
}  # fmt: skip
HOSTILE = (
    "", " ", "0", "-", "--", "-1", "1e999", "nan", "NaN", "infinity", "9" * 30, "9" * 5000, "0x1F", "1_0", "\ufeff1",
    "null", "true", "[]", "{}", "[" * 500, '{"a":' * 200, "\0", "\x1b[31m", "\u202e", "\udcff", "😀" * 50, "a" * 3000,
    "/dev/zero", "../..", "%s%n", "{}{0}", "$(id)", "`id`", "'", '"', "\\", ";", "|", "&", "\n", "\t", "=", "#",
    "a#b#c", "@", ":", ",", "C:\\models\\x.gguf", "\\\\host\\share", "file:///etc/passwd", "http://127.0.0.1:1/x", "~",
    "NUL", "vllm serve", "vllm serve '", "llama-server -m", "ollama run", "1/0", "\uff12", "½", "1,2,,3", "1e400GiB",
    "-0", "+5", " 5 ", "5\n",
)  # fmt: skip


def value(chance: random.Random, name: str, placeholder: str | None) -> str:
    """Something to give to the flag or argument of that name."""
    pool = BY_NAME.get(name) or BY_PLACEHOLDER.get(placeholder or "", COUNTS)
    kind = chance.random()
    safe = pool is OUTPUTS or placeholder == "FORMAT=FILE"  # whatever is written stays in the folder
    if kind < 0.6:
        return pool[int(len(pool) * chance.random() ** 3)]
    if kind < 0.86 or safe:
        return chance.choice(pool)
    if kind < 0.92:
        return chance.choice(HOSTILE)
    if kind < 0.94:
        return chance.choice(BY_PLACEHOLDER[chance.choice(tuple(BY_PLACEHOLDER))])
    return damaged([text.encode("utf-8", "replace") for text in pool], chance).decode("utf-8", "replace")


class Files:
    """What is in the folder of a command line: sound files, and damaged ones in their place."""

    def __init__(self) -> None:
        read = [path.read_bytes() for path in sorted((DATA / "logs").glob("*.log"))]
        rules = [path.read_bytes() for path in sorted((ROOT / "examples").glob("*/kvplan*.yaml"))]
        receipts = [path.read_bytes() for path in sorted((ROOT / "docs" / "validation").glob("*.json"))]
        self.seeds: dict[str, list[bytes]] = {
            "spec.yaml": READERS["spec"].seeds(),
            "gpu.yaml": [path.read_bytes() for path in sorted((ROOT / "kvplan/data/gpus").rglob("*.yaml"))[::5]],
            "config.json": [data for data in READERS["config"].seeds() if len(data) < 20_000],
            "model.gguf": READERS["gguf"].seeds(),
            "deploy.yaml": [path.read_bytes() for path in sorted((DATA / "manifests").glob("*.yaml"))],
            "serve.sh": [path.read_bytes() for path in sorted((DATA / "manifests").glob("*.sh"))],
            "vllm.log": [data for data in read if len(data) < 60_000],
            "trace.jsonl": [_first_lines(DATA / "traces" / "mooncake_150.jsonl", 12), *_traces()],
            "trace.csv": [_first_lines(DATA / "traces" / "azure_59.csv", 12)],
            "rules.yaml": [*_rules(), *rules],
            "result.json": _results(),
            "receipt.json": [*receipts[:1], b'{"schema": "kvplan.calibration/1"}', b'{"schema":"kvplan.validation/1"}'],
        }

    def lay_out(self, folder: Path) -> None:
        """One sound file of each kind."""
        for name, seeds in self.seeds.items():
            (folder / name).write_bytes(seeds[0])

    def damage(self, folder: Path, name: str, chance: random.Random) -> bytes:
        """Put a damaged file in the place of a sound one; what it holds now."""
        seeds = self.seeds[name]
        data = damaged(seeds, chance) if chance.random() < 0.8 else chance.choice(seeds)
        if chance.random() < 0.05:
            data = chance.choice((b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r\n"), _utf16(data), b"", data * 3))
        (folder / name).write_bytes(data)
        return data


def _utf16(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode("utf-16")


def _first_lines(path: Path, count: int) -> bytes:
    return b"".join(path.read_bytes().splitlines(keepends=True)[:count])


def _traces() -> list[bytes]:
    talk = [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "good day " * 9}]
    bench = {"prompt_len": 10, "output_len": 5, "input_lens": [5, 6], "output_lens": [3, 4], "start_times": [0, 1]}
    rows = [{"timestamp": 27 * i, "input_length": 600, "output_length": 9, "hash_ids": [1, 2 + i]} for i in range(4)]
    return [
        json.dumps([{"id": "a", "conversations": talk}]).encode(),
        json.dumps(bench).encode(),
        "".join(json.dumps(row) + "\n" for row in rows).encode(),
    ]


def _rules() -> list[bytes]:
    head = "schema: kvplan.rules/1\n"
    plain = (
        f"{head}rules:\n  - verdict.fits == true\n  - {{rule: capacity.kv_tokens >= 100K, level: warn}}\n"
        "deployments:\n  a: {model: llama-3.1-8b, gpu: h100-sxm, tensor-parallel-size: 2}\n"
    )
    own = f"{head}rules: [verdict.fits == true]\ndeployments:\n  b: {{model: spec.yaml, gpu: gpu.yaml}}\n"
    read = f"{head}rules: [memory.unused_bytes >= 4 %]\ndeployments:\n  c: {{from: deploy.yaml, gpu: l40s}}\n"
    return [plain.encode(), own.encode(), read.encode()]


def _results() -> list[bytes]:
    """What ``kvplan check`` wrote, and what is no result."""
    with TemporaryDirectory() as folder:
        for name in ("rules.yaml", "result.json"):
            (Path(folder) / name).write_bytes(_rules()[0])
        target = Path(folder) / "result.json"
        assert main(["check", f"{folder}/rules.yaml", "-q", "-o", str(target)]) in (0, 1)
        return [target.read_bytes(), b'{"schema": "kvplan.plan/1"}', b"{}"]
