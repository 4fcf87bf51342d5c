"""MLX-LM: the prompt caches of ``mlx_lm.generate``."""
