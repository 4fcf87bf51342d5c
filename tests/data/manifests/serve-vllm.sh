#!/usr/bin/env bash
# Serves Qwen3-32B on two GPUs.
set -euo pipefail

MODEL="Qwen/Qwen3-32B"
TP=${TP:-2}
export CUDA_VISIBLE_DEVICES=0,1
export VLLM_USE_V1=1

ARGS=(
  --max-model-len 32K          # 32,768 tokens
  --gpu-memory-utilization=0.9
  --served-model-name 'qwen3 32b'
)
if [[ -n "${EAGER:-}" ]]; then
  ARGS+=(--enforce-eager)
fi

echo "starting ${MODEL} on port ${PORT:-8000}"
exec vllm serve "$MODEL" \
  -tp "$TP" "${ARGS[@]}" \
  --no-enable-prefix-caching \
  --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}' \
  --host 0.0.0.0 --port "${PORT:-8000}" --api-key "$API_KEY" 2>&1 | tee server.log
