"""The planner's figures, measured on this machine: the only room that imports torch, Triton and NVML.

A section is a module with ``measure(session: Session) -> list[Row]``. It takes what it needs from the `Session`
(device, layout of the cache, limits), leaves what a calibration wants in ``session.figures``, frees what it
allocated and never holds more than ``session.limits.max_bytes``. `run` calls the sections one by one.

===================  ================================================================================
`receipt`, `schema`  a row (predicted beside measured) and its verdict; the JSON Schema of a receipt
`session`            what a section gets: device, layout, limits, progress, figures for a calibration
`run`                a whole run: sections, limits, refusals, the receipt
`extras`, `nvml`     torch and NVML, imported on use; what the driver says of the cards
`device`, `facts`    the device as NVML, torch and the catalog see it; section ``device``
`auto`, `inventory`  ``--gpu auto`` and ``gpus detect``
`layout`             what each layer of the planned model holds, as tensors
`allocator`          PyTorch's caching allocator as arithmetic
`memory`, `fill`     sections: bytes of every kind and format; the whole card
`blocks`             section: block tables, sharing, copy on write
`correctness`        section: with a cache and without; `mixers`, `mixer_kinds`: its layers, `quantise`: its formats
`timing`, `fit`      times in CUDA graphs; lines through them
`bandwidth`, `attention`, `step`, `prefill`   sections: how fast; `kernels` and `stack` are what they run
`ram`                section: steps in float32 on a CPU, bound by its memory
`distributed`        section: several GPUs; `tensor_parallel` is the step that it runs
`calibrate`          the calibration file, and drift against one
===================  ================================================================================
"""
