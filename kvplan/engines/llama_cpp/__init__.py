"""llama.cpp: caches in cells, laid out whole at start; `llama-server`'s defaults."""
