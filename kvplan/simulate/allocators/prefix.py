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
default ``prefix_cache_retention_interval`` of 0). Where windows keep all blocks before a mark, one can go on from any
place before it (``SlidingWindowManager.find_longest_cache_hit``: blocks from the beginning are a hit, however few).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator


class Idle:
    """Spans of one segment that became idle together; or the blocks of a mark in it."""

    __slots__ = ("count", "mark", "node")

    def __init__(self, node: Node, count: int, mark: Mark | None = None) -> None:
        self.node = node
        self.count = count
        self.mark = mark


class Mark:
    """A place in a segment from which windows and states can go on."""

    __slots__ = ("at", "depth", "idle", "met", "node", "owners", "path", "sharers")

    def __init__(self, node: Node, depth: int, at: int) -> None:
        self.node = node
        self.depth = depth
        """Spans of the segment before it."""
        self.at = at
        """Spans of the prompt before it."""
        self.idle: Idle | None = None
        """Its blocks, where nobody has them."""
        self.met = False
        """A request went on from here: others are likely to, while it still reads the blocks before."""
        self.owners = 0
        """Live requests that count its blocks among their own."""
        self.sharers = 0
        """Live requests that read one more copy of its blocks, which counts once."""
        self.path: list[tuple[Node, int]] = []
        """(segment, spans of it) from the prompt's beginning, where every block up to here is kept."""


class Node:
    """What is there of one segment."""

    __slots__ = ("covers", "held", "holders", "idle", "key", "marks", "present")

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
        self.marks: dict[int, Mark] = {}
        """By depth."""
        self.covers: dict[int, int] = {}
        """spans -> how many marks, here or further on, keep all of windows from the prompt's beginning up to there."""


class PrefixCache:
    """Spans of shared prefixes: who holds them, and in which order the idle ones leave.

    Args:
        span_blocks: blocks of one span, of the groups that keep all tokens.
        reach: spans from a prompt's beginning that windows keep wholly before a mark.
    """

    def __init__(self, span_blocks: int, reach: int = 0) -> None:
        self.span_blocks = span_blocks
        self.reach = reach
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
        """How many of the first `found` spans of a prompt, which are there, windows and states can go on from."""
        best = before = 0
        for key, count in plan:
            take = min(count, found - before)
            if not take:
                break
            node = self.nodes[key]
            depth = max((m for m in node.marks if m <= take), default=0)
            if node.covers:
                depth = max(depth, min(take, max(node.covers)))
            best = before + depth if depth else best
            before += count
            if before >= found:
                break
        return best

    def mark(self, plan: Iterable[tuple[int, int]], at: int, *, make: bool = True) -> Mark | None:
        """The mark after a prompt's first `at` spans, made where there is none; None: there is none, nor they."""
        path: list[tuple[Node, int]] = []
        left = at
        for key, count in plan:
            node = self.nodes.get(key)
            if node is None or not left:
                return None
            path.append((node, min(left, count)))
            if left <= count:
                break
            left -= count
        if not path or not 0 < left <= path[-1][0].present:
            return None
        node = path[-1][0]
        mark = node.marks.get(left)
        if mark is None and make:
            mark = node.marks[left] = Mark(node, left, at)
            if at <= self.reach:
                mark.path = path
                for each, depth in path:
                    each.covers[depth] = each.covers.get(depth, 0) + 1
        return mark

    def before(self, plan: list[tuple[int, int]], at: int, most: int) -> Iterator[Mark]:
        """Marks of a prompt before its first `at` spans, the deepest first, fewer than `most` spans away."""
        end = sum(count for _, count in plan)
        for key, count in reversed(plan):
            first, end = end - count, end - count
            if first >= at:
                continue
            node = self.nodes.get(key)
            inside = [] if node is None or not node.marks else sorted(node.marks.items(), reverse=True)
            for depth, mark in inside:
                if depth <= count and at - most < first + depth < at:
                    yield mark
            if first <= at - most:
                return

    def wake(self, mark: Mark) -> int:
        """A mark's blocks, where idle, are somebody's from now on; returns them."""
        run, mark.idle = mark.idle, None
        if run is None:
            return 0
        del self.queue[run]
        self.idle_marks -= run.count
        return run.count

    def rest(self, mark: Mark, blocks: int) -> None:
        """Nobody has a mark's `blocks` from now on."""
        run = mark.idle = Idle(mark.node, blocks, mark)
        self.queue[run] = None
        self.idle_marks += blocks

    def there(self, mark: Mark) -> bool:
        """Whether a mark has not left the cache."""
        return mark.node.marks.get(mark.depth) is mark

    def drop(self, mark: Mark) -> int:
        """A mark is gone; returns its idle blocks."""
        del mark.node.marks[mark.depth]
        for node, depth in mark.path:
            if node.covers[depth] > 1:
                node.covers[depth] -= 1
            else:
                del node.covers[depth]
        return self.wake(mark)

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

    def insert(self, key: int, at: int, count: int, *, twins: bool = False) -> tuple[int, int, int]:
        """Hold up to `count` spans behind the first `at` of a segment, all of which the caller holds.

        Args:
            twins: he may hold spans that others hold too; his own blocks of these are kept apart.

        Returns:
            (spans that he holds now, how many of them are his own blocks, how many of these took the place of idle
            ones, which are free now); (0, 0, 0): others hold them.
        """
        node = self.nodes.get(key)
        if node is None:
            if at:
                return 0, 0, 0
            node = self.nodes[key] = Node(key)
        if node.present < at:
            return 0, 0, 0
        if node.present > at:
            if node.held > at and not twins:
                return 0, 0, 0
            count = min(count, node.present - at)
            before = self.held_spans
            self._hold(node, at + count)
            own = replaced = self.held_spans - before
        else:
            node.holders[at + count] = node.holders.get(at + count, 0) + 1
            node.present = node.held = at + count
            self.held_spans += count
            own, replaced = count, 0
        if at:
            self._forget(node, at)
        return count, own, replaced

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
            if run.mark is not None:
                freed += self.drop(run.mark)
                continue
            part = min(run.count, -(-(blocks - freed) // self.span_blocks))
            run.count -= part
            node.present -= part
            self.idle_spans -= part
            freed += part * self.span_blocks
            for mark in [m for m in node.marks.values() if m.depth > node.present]:
                freed += self.drop(mark)
            if not run.count:
                del self.queue[run]
                node.idle.remove(run)
                if not node.present:
                    del self.nodes[node.key]
        self.evicted_blocks += freed
        return freed
