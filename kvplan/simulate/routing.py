"""Which replica a request goes to.

`prefix-aware` follows SGLang's router (sgl-project/sglang, ``sgl-router``, cache-aware policy): where loads are far
apart the least loaded one; else the one that has most of the prompt, if that is more than a share of it; else the
least loaded one. It looks into the caches themselves, where the router keeps an approximation.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.simulate.request import Request
from kvplan.simulate.scheduler import Replica

POLICIES = ("round-robin", "least-loaded", "prefix-aware")
CACHE_SHARE = 0.3
APART_REQUESTS, APART_TIMES = 64, 1.5
"""Loads are far apart where the largest is so many requests and so many times above the smallest."""


class Router:
    """Chooses among replicas.

    Args:
        policy: an entry of `POLICIES`.
    """

    def __init__(self, replicas: Sequence[Replica], policy: str) -> None:
        self.replicas, self.policy = replicas, policy
        self.next = 0

    def choose(self, request: Request) -> Replica:
        """The replica for a request that arrives now; the replicas it looks at are brought up to that time."""
        replicas = self.replicas
        if self.policy == "round-robin" or len(replicas) == 1:
            found = replicas[self.next % len(replicas)]
            self.next += 1
            found.run(request.arrival)
            return found
        for replica in replicas:
            replica.run(request.arrival)
        if self.policy == "least-loaded":
            return min(replicas, key=lambda r: (r.load_tokens, r.number))
        loads = [len(r.running) + len(r.waiting) for r in replicas]
        if max(loads) - min(loads) > APART_REQUESTS and max(loads) > APART_TIMES * min(loads):
            return replicas[loads.index(min(loads))]
        cached = [self._cached(replica, request) for replica in replicas]
        if max(cached) > CACHE_SHARE * request.prompt:
            return replicas[cached.index(max(cached))]
        return min(replicas, key=lambda r: (len(r.running) + len(r.waiting), r.load_tokens, r.number))

    @staticmethod
    def _cached(replica: Replica, request: Request) -> int:
        """Tokens of a prompt that a replica has."""
        return int(replica.memory.lookup(request)) if replica.memory.paged else 0
