"""What people type for a flag that is called otherwise here: words of engines, papers and other calculators.

Only an error message reads this; nothing is accepted under two names.
"""

from __future__ import annotations

from collections.abc import Container

OTHERS = {
    "--max-model-len": "context context-len context-length context-size context-window ctx ctx-len max-context "
    "max-len max-length max-seq-len max-sequence-length n-ctx seq-len seqlen sequence-length",
    "--weights": "dtype precision quant quantization torch-dtype weight-dtype weight-format weights-dtype wbits",
    "--kv-cache-dtype": "cache-dtype cache-type kv kv-cache kv-cache-type kv-dtype kv-precision kv-quant kv-type",
    "--concurrency": "batch bs concurrent concurrent-requests concurrent-users max-concurrency num-requests requests "
    "users",
    "--prompt-tokens": "input input-len input-length input-tokens isl prompt prompt-len prompt-length",
    "--output-tokens": "gen-len max-new-tokens max-tokens osl output-len output-length",
    "--shared-prefix-tokens": "prefix prefix-len shared-prefix system-prompt-tokens",
    "--request-rate": "arrival-rate qps rate rps",
    "--gpu-memory": "gpu-mem mem memory vram",
    "--gpu-memory-utilization": "gpu-util gpu-utilization memory-utilization",
    "--gpu": "accelerator card device gpu-name gpu-type hardware",
    "--tensor-parallel-size": "tensor-parallel tp tp-size gpu-count n-gpus ngpus num-gpus",
    "--pipeline-parallel-size": "pipeline-parallel pp pp-size",
    "--data-parallel-size": "data-parallel dp dp-size",
    "--enable-expert-parallel": "ep ep-size expert-parallel expert-parallel-size",
    "--engine": "backend framework runtime",
}
"""flag -> the other words, without dashes."""


def flag_for(typed: str, known: Container[str]) -> str | None:
    """The flag of a command that `typed` means; None: no word for any flag that it has."""
    word = typed.lstrip("-").lower()
    return next((flag for flag, words in OTHERS.items() if word in words.split() and flag in known), None)
