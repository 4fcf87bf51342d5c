"""How long a plan of a large checkpoint takes: 200 files with the 91,000 tensors of a mixture of 256 experts in FP8.

    python benchmarks/checkpoint.py                          print the figures of this checkout
    python benchmarks/checkpoint.py --python venv/bin/python those of the kvplan that is installed there
    python benchmarks/checkpoint.py --max 0.5                exit 1 where the whole command takes more CPU seconds
    python benchmarks/checkpoint.py --keep FOLDER            leave the checkpoint there

The files are made of DeepSeek-V3's configuration and names; their data are a hole, which takes no room on the disk.
Beside the whole command stand the same plan of the configuration alone and of a preset: what is left is the reading of
headers. The best of some runs counts, in CPU seconds of user and system; memory is the most that was resident.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARDS = 200
HIDDEN, EXPERTS, LAYERS, DENSE, HEADS, VOCAB = 7168, 256, 61, 3, 128, 129280
CONFIG = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "intermediate_size": 18432,
    "vocab_size": VOCAB, "max_position_embeddings": 163840, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536,
    "n_routed_experts": EXPERTS, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
    "first_k_dense_replace": DENSE, "moe_layer_freq": 1,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [128, 128]},
}  # fmt: skip

Entry = tuple[str, str, tuple[int, ...]]


def tensors() -> Iterator[Entry]:
    """(name, dtype, shape) of every tensor, in order."""
    yield "model.embed_tokens.weight", "BF16", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{name}.weight", "BF16", (HIDDEN,)
        yield f"{at}.self_attn.q_a_layernorm.weight", "BF16", (1536,)
        yield f"{at}.self_attn.kv_a_layernorm.weight", "BF16", (512,)
        yield from matrix(f"{at}.self_attn.q_a_proj", 1536, HIDDEN)
        yield from matrix(f"{at}.self_attn.q_b_proj", HEADS * 192, 1536)
        yield from matrix(f"{at}.self_attn.kv_a_proj_with_mqa", 576, HIDDEN)
        yield from matrix(f"{at}.self_attn.kv_b_proj", HEADS * 256, 512)
        yield from matrix(f"{at}.self_attn.o_proj", HIDDEN, HEADS * 128)
        if layer < DENSE:
            yield from gated(f"{at}.mlp", 18432)
            continue
        yield f"{at}.mlp.gate.weight", "BF16", (EXPERTS, HIDDEN)
        yield f"{at}.mlp.gate.e_score_correction_bias", "F32", (EXPERTS,)
        yield from gated(f"{at}.mlp.shared_experts", 2048)
        for expert in range(EXPERTS):
            yield from gated(f"{at}.mlp.experts.{expert}", 2048)
    yield "model.norm.weight", "BF16", (HIDDEN,)
    yield "lm_head.weight", "BF16", (VOCAB, HIDDEN)


def matrix(name: str, rows: int, columns: int) -> Iterator[Entry]:
    yield f"{name}.weight", "F8_E4M3", (rows, columns)
    yield f"{name}.weight_scale_inv", "F32", (-(-rows // 128), -(-columns // 128))


def gated(name: str, inner: int) -> Iterator[Entry]:
    for part in ("gate_proj", "up_proj"):
        yield from matrix(f"{name}.{part}", inner, HIDDEN)
    yield from matrix(f"{name}.down_proj", HIDDEN, inner)


def write(folder: Path) -> int:
    """Write the checkpoint; the number of its tensors."""
    width = {"BF16": 2, "F8_E4M3": 1, "F32": 4}
    entries = [(name, dtype, shape, width[dtype]) for name, dtype, shape in tensors()]
    each = -(-len(entries) // SHARDS)
    index, total = {}, 0
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(SHARDS):
        shard = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, dtype, shape, size in entries[number * each : (number + 1) * each]:
            for length in shape:
                size *= length
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            index[name] = shard
            end += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with (folder / shard).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        total += end
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
    )
    return len(entries)


def run(words: list[str], runs: int) -> tuple[list[float], float]:
    """(CPU seconds of every run, the most MiB that one of them held).

    Raises:
        SystemExit: a run ended with another status than 0 (fits) or 1 (does not fit).
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PYTHONPATH"] = str(ROOT) if words[0] == sys.executable else ""
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    found, most = [], 0.0
    for _ in range(runs):
        child = os.posix_spawn(words[0], words, env, file_actions=quiet)
        _, status, usage = os.wait4(child, 0)
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            raise SystemExit(f"failed: {' '.join(words)}")
        found.append(usage.ru_utime + usage.ru_stime)
        most = max(most, usage.ru_maxrss / 1024)
    return found, most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable, help="the interpreter whose kvplan is measured")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--max", type=float, help="CPU seconds that the whole command may take")
    parser.add_argument("--keep", type=Path, help="folder for the checkpoint, which stays")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp()) / "deepseek"
    count = write(folder)
    kvplan = [args.python, "-m", "kvplan", "plan"]
    rest = ["--gpu", "h100-sxm", "--json"]
    whole = 0.0
    print(f"{SHARDS} files, {count:,} tensors             best    median   memory")
    try:
        for title, model in (
            ("its folder", str(folder)), ("its config.json", str(folder / "config.json")), ("a preset", "deepseek-v3"),
        ):  # fmt: skip
            run([*kvplan, model, *rest], 1)
            seconds, memory = run([*kvplan, model, *rest], args.runs)
            whole = min(seconds) if title == "its folder" else whole
            print(f"plan of {title:28}{min(seconds):8.3f} s{statistics.median(seconds):8.3f} s {memory:6.0f} MiB")
    finally:
        if args.keep is None:
            shutil.rmtree(folder.parent)
    return int(args.max is not None and whole > args.max)


if __name__ == "__main__":
    sys.exit(main())
