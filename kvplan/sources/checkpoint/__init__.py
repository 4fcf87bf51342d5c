"""What a model's folder holds, on disk or on the hub: JSON files and the headers of safetensors, never their data."""
