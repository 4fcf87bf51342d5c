"""vLLM: paging, defaults and memory budget, by version."""
