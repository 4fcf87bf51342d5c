"""The inverse of a plan: which GPUs, layouts and formats carry a workload, and what they cost.

* `ask`: what is asked for; `candidates`: what is tried;
* `rates`: what many GPUs reach, as arrays; `screen`: one engine, layout and pair of formats on all GPUs at once,
  by the very functions that plan one;
* `misses`: why GPUs fail; `rank`: orders and fronts; `search`: all of it, the winners planned one by one.
"""
