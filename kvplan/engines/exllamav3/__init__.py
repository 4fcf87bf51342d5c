"""ExLlamaV3: a paged pool of a fixed number of tokens."""
