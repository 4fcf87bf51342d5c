"""Hugging Face transformers: the caches of ``generate()``."""
