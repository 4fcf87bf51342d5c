"""Reading GGUF: the binary header, and the model that its metadata describe."""
