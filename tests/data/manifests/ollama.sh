#!/bin/sh
export OLLAMA_CONTEXT_LENGTH=16384
export OLLAMA_NUM_PARALLEL=2
export OLLAMA_FLASH_ATTENTION=1
export OLLAMA_KV_CACHE_TYPE=q8_0
ollama serve &
until ollama list >/dev/null 2>&1; do sleep 1; done
ollama pull llama3.1:8b
ollama run llama3.1:8b "hello there" --keepalive 24h
