FROM nvcr.io/nvidia/tensorrt-llm/release:1.3.0
ENV TRTLLM_ENABLE_PDL=1
ENTRYPOINT ["trtllm-serve"]
CMD ["Qwen/Qwen3-32B", "--backend", "pytorch", "--tp_size", "2", "--max_batch_size", "64", \
     "--max_num_tokens", "8192", "--max_seq_len", "32768", "--kv_cache_free_gpu_memory_fraction", "0.8"]
