"""Every verb of an installed kvplan, where nothing but its own requirements is installed.

    python .ci/bare.py ROOT

run with the interpreter of that environment, outside the checkout ROOT, whose test data it reads. What needs an extra
says which one and ends with 2; everything else answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

EXTRAS = {
    "probe": ("validate llama-3.1-8b", "gpus detect", "plan llama-3.1-8b --gpu auto"),
    "hub": ("plan a/b --hub", "models import a/b --hub"),
    "parquet": ("sweep llama-3.1-8b --vary tp=1,2 -o x.parquet",),
    "ray": ("simulate llama-3.1-8b --gpu h200 --synthetic requests=3 --vary allocator=paged,max --ray local",),
}
"""An extra -> command lines that need it."""


def answers(root: Path) -> list[list[str]]:
    """Command lines that need no extra."""
    data = root / "tests" / "data"
    log, trace = data / "logs" / "vllm-0.31.0-llama-3.1-8b.log", data / "traces" / "azure_59.csv"
    lines = f"""
        plan llama-3.1-8b --gpu h200
        plan {data}/sample-model.yaml --gpu {data}/sample-gpu.yaml
        plan {data}/manifests/deployment.yaml
        plan llama-3.1-8b --gpu h200 --engine all -o plan.html
        plan llama-3.1-8b --gpu h200 --format svg
        explain gemma-3-27b
        sweep llama-3.1-8b --gpu h200 --vary tp=1,2 --vary concurrency=1..9:4 --format csv
        fit llama-3.1-8b --gpu l40s --max-gpus 1
        compare llama-3.1-8b qwen3-8b
        models list
        models show llama-3.1-8b
        models import {data}/sample-model.yaml
        models lint {data}/sample-model.yaml
        models schema
        gpus list
        gpus show h200
        gpus lint {data}/sample-gpu.yaml
        engines
        engines vllm
        formats
        log {log} --gpu a100-sxm4-80gb
        simulate llama-3.1-8b --gpu h200 --trace {trace}
        simulate llama-3.1-8b --gpu h200 --synthetic requests=9 --vary allocator=paged,max
        trace describe {trace}
        check {root}/examples/vllm-kubernetes/kvplan.yaml -o a.json
        diff a.json a.json
        completion bash
        --version
    """
    return [line.split() for line in lines.strip().splitlines()]


def main(root: str) -> int:
    """Run them all in a folder of their own."""
    kvplan = [str(Path(sys.executable).with_name("kvplan"))]
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    wrong, seen = [], set()
    with TemporaryDirectory() as folder:

        def run(words: list[str]) -> subprocess.CompletedProcess[str]:
            seen.add(words[0])
            return subprocess.run(
                [*kvplan, *words], cwd=folder, env=variables, capture_output=True, text=True, check=False
            )

        for words in answers(Path(root)):
            done = run(words)
            if done.returncode or not (done.stdout or "-o" in words):
                wrong.append(f"{' '.join(words)}: status {done.returncode}: {done.stderr}")
        for extra, lines in EXTRAS.items():
            for line in lines:
                done = run(line.split())
                if done.returncode != 2 or f"kvcache-plan[{extra}]" not in done.stderr:
                    wrong.append(f"{line}: status {done.returncode}, and not told to install [{extra}]: {done.stderr}")
    from kvplan.cli.app import VERBS

    wrong += [f"{verb}: not tried" for verb in set(VERBS) - seen]
    print("\n".join(wrong) or json.dumps({"python": sys.version.split()[0], "verbs": len(VERBS), "wrong": 0}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
