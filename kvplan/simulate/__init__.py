"""A request trace through paged memory: what paging, shared prefixes and continuous batching are worth.

* `trace`, `traces`, `synthetic`: requests, from files or from distributions; `describe` says what is in them;
* `allocators`: contiguous reservations, paged blocks with or without a prefix cache, pools of hybrid models;
* `timing`: seconds of a step, by the planner's own formulas; `scheduler`, `static`: who runs when;
* `run`: a deployment, a trace and options, put together; `search` bisects the pool, `vary` spreads many runs.

NumPy is imported here; nothing on the way of a plan imports this package.
"""
