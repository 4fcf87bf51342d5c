# syntax=docker/dockerfile:1
ARG VERSION=v0.11.0
FROM vllm/vllm-openai:${VERSION}

ENV HF_HOME=/models \
    VLLM_WORKER_MULTIPROC_METHOD=spawn
RUN <<EOF
apt-get update
CMD is not an instruction here
EOF
EXPOSE 8000
CMD ["--model", "meta-llama/Llama-3.1-70B-Instruct", "--tensor-parallel-size", "4", \
     "--max-model-len", "16384", "--kv-cache-dtype", "fp8", "--enable-auto-tool-choice"]
