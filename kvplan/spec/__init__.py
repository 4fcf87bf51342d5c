"""What a model, a storage format and a GPU are: frozen data, integer bytes."""
