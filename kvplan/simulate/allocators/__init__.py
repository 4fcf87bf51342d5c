"""Who owns which memory.

* `contiguous`: one run of token slots per request, reserved when it is admitted (max, pow2, oracle);
* `paged`: blocks as they are needed (`shape`: by all kinds of groups), with or without `prefix`, the cache of shared
  prefixes;
* `blocks`: single blocks with reference counts and copy on write, for sequences that fork.
"""
