"""A prefix cache in runs: what it holds of a segment is a beginning, and what leaves is an end.

vLLM keeps a table of single blocks under chained hashes, a reference count in each, and a queue of those that
nobody holds; a request frees its blocks deepest first (vLLM 0.33.0 ``vllm/v1/core/block_pool.py`` and
``single_type_kv_cache_manager.py``, ``free``). Whoever holds a block holds all before it, and holds none of them
less long. So of a segment's blocks always a beginning is there, of that a beginning is held, and the rest became
idle from its end. Three numbers a segment stand for any number of blocks, and give the same hits and evictions.

Sizes are in *spans*: the tokens of which shared prefixes are multiples, one block where there is one group.

Windows and states keep what they need to go on only where a request is likely to: where a prompt ended, and where one
was seen to leave the others. Such a place is a *mark* in a segment. Its blocks are the request's while it runs and
idle afterwards, and when one of them leaves, the mark is gone (``reachable_block_mask`` of the same file, with the
default ``prefix_cache_retention_interval`` of 0).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class Idle:
    """Spans of one segment that became idle together; or, with a depth, the blocks of the mark there."""

    __slots__ = ("count", "depth", "node")

    def __init__(self, node: Node, count: int, depth: int = 0) -> None:
        self.node = node
        self.count = count
        self.depth = depth


class Node:
    """What is there of one segment."""

    __slots__ = ("held", "holders", "idle", "key", "marks", "present")

    def __init__(self, key: int) -> None:
        self.key = key
        self.present = 0
        """Spans from the segment's beginning that are in the cache."""
        self.held = 0
        """Spans of them that a request holds: the most that any holder has."""
        self.holders: dict[int, int] = {}
        """spans -> how many requests hold just so many."""
        self.idle: list[Idle] = []
        """What nobody holds, from the end (idle longest) to the beginning."""
        self.marks: dict[int, Idle | None] = {}
        """depth of a mark -> its idle blocks; None: a request has them."""


class PrefixCache:
    """Spans of shared prefixes: who holds them, and in which order the idle ones leave.

    Args:
        span_blocks: blocks of one span, of the groups that keep all tokens.
    """

    def __init__(self, span_blocks: int) -> None:
        self.span_blocks = span_blocks
        self.nodes: dict[int, Node] = {}
        self.queue: OrderedDict[Idle, None] = OrderedDict()
        """Idle runs, the longest idle first."""
        self.idle_spans = 0
        self.idle_marks = 0
        """Blocks."""
        self.held_spans = 0
        self.evicted_blocks = 0

    @property
    def idle_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self.idle_spans * self.span_blocks + self.idle_marks

    def find(self, plan: Iterable[tuple[int, int]], limit: int) -> tuple[int, int]:
        """(spans of a prompt that are there from its beginning, how many of them are idle).

        Args:
            plan: (key, spans) of the prompt.
            limit: the most spans that may be found.
        """
        found = idle = 0
        nodes = self.nodes
        for key, count in plan:
            node = nodes.get(key)
            if node is None or not limit:
                break
            take = min(node.present, count, limit)
            found, limit = found + take, limit - take
            if take > node.held:
                idle += take - node.held
            if take < count:
                break
        return found, idle

    def marked(self, plan: Iterable[tuple[int, int]], found: int) -> int:
        """The deepest mark among the first `found` spans of a prompt, which are there; 0: none."""
        best = before = 0
        for key, count in plan:
            take = min(count, found - before)
            marks = self.nodes[key].marks if take else ()
            depth = max((m for m in marks if m <= take), default=0)
            best = before + depth if depth else best
            before += count
            if before >= found:
                break
        return best

    def mark(self, plan: Iterable[tuple[int, int]], at: int, idle: int | None) -> int:
        """Mark a prompt after its first `at` spans.

        Args:
            idle: blocks of the mark that nobody holds from now on; 0: a request has them; None: there are none.

        Returns:
            how many more blocks are idle than before.
        """
        node = None
        for key, count in plan:
            if at <= count:
                node = self.nodes.get(key)
                break
            at -= count
        if node is None or not 0 < at <= node.present:
            return 0
        before = self._unmark(node, at)
        if idle is None:
            return -before
        node.marks[at] = None
        if idle:
            run = node.marks[at] = Idle(node, idle, at)
            self.queue[run] = None
            self.idle_marks += idle
        return idle - before

    def _unmark(self, node: Node, depth: int) -> int:
        """Drop a mark; returns its idle blocks."""
        run = node.marks.pop(depth, None)
        if run is None:
            return 0
        del self.queue[run]
        self.idle_marks -= run.count
        return run.count

    def take(self, plan: Iterable[tuple[int, int]], count: int) -> list[list[int]]:
        """Hold the first `count` spans of a prompt, which are there.

        Returns:
            [key, spans] of each segment that is held now.
        """
        holds: list[list[int]] = []
        for key, spans in plan:
            if count <= 0:
                break
            depth = min(spans, count)
            if depth:
                self._hold(self.nodes[key], depth)
                holds.append([key, depth])
                count -= depth
        return holds

    def _hold(self, node: Node, depth: int) -> None:
        node.holders[depth] = node.holders.get(depth, 0) + 1
        need = depth - node.held
        if need <= 0:
            return
        node.held = depth
        self.idle_spans -= need
        self.held_spans += need
        while need:  # those next to the held ones, which became idle last
            run = node.idle[-1]
            part = min(run.count, need)
            run.count -= part
            need -= part
            if not run.count:
                node.idle.pop()
                del self.queue[run]

    def insert(self, key: int, at: int, count: int) -> bool:
        """Add `count` new spans behind the first `at` of a segment, all of which the caller holds; he holds these too.

        Returns:
            False: somebody has put spans there already; the caller keeps his own apart.
        """
        node = self.nodes.get(key)
        if node is None:
            if at:
                return False
            node = self.nodes[key] = Node(key)
        if node.present != at:
            return False
        if at:
            self._forget(node, at)
        node.holders[at + count] = node.holders.get(at + count, 0) + 1
        node.present = node.held = at + count
        self.held_spans += count
        return True

    @staticmethod
    def _forget(node: Node, depth: int) -> None:
        left = node.holders[depth] - 1
        if left:
            node.holders[depth] = left
        else:
            del node.holders[depth]

    def release(self, holds: Iterable[list[int]]) -> int:
        """Let go of segments, deepest first.

        Args:
            holds: as `take` and `insert` made them, in the order of the prompt reversed.

        Returns:
            spans that nobody holds any more.
        """
        freed = 0
        for key, depth in holds:
            node = self.nodes[key]
            self._forget(node, depth)
            left = max(node.holders, default=0)
            count = node.held - left
            if count > 0:
                node.held = left
                run = Idle(node, count)
                node.idle.append(run)
                self.queue[run] = None
                freed += count
        self.idle_spans += freed
        self.held_spans -= freed
        return freed

    def evict(self, blocks: int) -> int:
        """Drop idle spans and marks of `blocks` blocks, the longest idle first, of each run the deepest first.

        Returns:
            blocks that are free now: whole spans and marks.
        """
        freed = 0
        while freed < blocks:
            run = next(iter(self.queue))
            node = run.node
            if run.depth:
                freed += self._unmark(node, run.depth)
                continue
            part = min(run.count, -(-(blocks - freed) // self.span_blocks))
            run.count -= part
            node.present -= part
            self.idle_spans -= part
            freed += part * self.span_blocks
            for depth in [d for d in node.marks if d > node.present]:
                freed += self._unmark(node, depth)
            if not run.count:
                del self.queue[run]
                node.idle.remove(run)
                if not node.present:
                    del self.nodes[node.key]
        self.evicted_blocks += freed
        return freed
