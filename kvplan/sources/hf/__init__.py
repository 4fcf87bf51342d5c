"""Hugging Face ``config.json``: the only place that knows its key names."""
