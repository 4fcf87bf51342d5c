"""How fast a deployment runs: what a step reads and computes, over what the device does a second.

* `work`: bytes and FLOPs of a decode step and of a prefill, from the structure alone;
* `rates`: what device, engine and formats reach, as stated constants or from a calibration file;
* `decode`, `prefill`: the two put together; `figures` makes them part of a plan.

Token counts and batches are ints or NumPy arrays throughout, so that a sweep uses the same functions.
"""
