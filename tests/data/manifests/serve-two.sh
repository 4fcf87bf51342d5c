#!/bin/sh
# A prefill and a decode instance on one machine.
CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen3-8B --port 8100 --max-model-len 8192 &
CUDA_VISIBLE_DEVICES=1 vllm serve Qwen/Qwen3-8B --port 8200 --max-model-len 16384 &
wait
