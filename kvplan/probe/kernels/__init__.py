"""Decode attention over a paged cache by block table, and the read kernel: Triton where it is there, torch else.

`store` allocates and fills pages in the kernels' own layout, `reference` holds torch operators and the float64
truth, `choose` picks the fastest correct path by measurement. Modules whose names begin with ``triton_`` import
Triton and are loaded on use.
"""
