"""TensorRT-LLM: a share of what is free after a trial run, one pool per attention window."""
