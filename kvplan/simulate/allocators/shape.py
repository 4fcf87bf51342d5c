"""What a sequence takes of a pool of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvplan.simulate.request import Request


class Window(NamedTuple):
    """A group that keeps the last tokens only."""

    block: int
    tokens: int
    """Of the window."""
    most: int
    """Blocks that a decoding sequence holds at most: the window may begin and end inside a block."""
    reserve: int
    """Blocks that a long prompt holds at most while it is computed: the engine wants them free before it admits it."""

    @property
    def needed(self) -> int:
        """Blocks before the next token that it attends to."""
        return -(-(self.tokens - 1) // self.block)


class Shape(NamedTuple):
    """What a sequence takes of the pool."""

    whole: tuple[int, ...]
    """Tokens of a block, for every group that keeps all tokens."""
    windows: tuple[Window, ...] = ()
    fixed: int = 0
    """Blocks of states, whatever the length."""
    span: int = 0
    """Tokens of which shared prefixes are multiples; 0: nothing is shared."""
    marked: bool = False
    """Windows and states keep what a prompt is gone on with only where one ended or parted from others."""
    mark_fixed: int = 0
    """Blocks of states that are kept there."""
    reserve_prompt: bool = True
    """A request is admitted only where its whole prompt fits, not just the first chunk."""

    @property
    def span_blocks(self) -> int:
        """Blocks that one span of shared prefix takes."""
        return sum(self.span // size for size in self.whole)

    def whole_blocks(self, tokens: int) -> int:
        """Blocks of the groups that keep all of `tokens` tokens."""
        if len(self.whole) == 1:
            return -(-tokens // self.whole[0])
        return sum(-(-tokens // size) for size in self.whole)

    def other_blocks(self, tokens: int, stand: int = 0) -> int:
        """Blocks of windows and states of a live sequence.

        Args:
            stand: tokens, a whole number of spans, up to which its windows read the blocks of a mark.
        """
        if not self.windows:
            return self.fixed
        return self.fixed + sum(min(-(-(tokens - stand) // w.block), w.most) for w in self.windows)

    def blocks(self, tokens: int) -> int:
        """Blocks of a decoding sequence of `tokens` tokens."""
        return self.whole_blocks(tokens) + self.other_blocks(tokens)

    def mark_blocks(self, tokens: int, before: int = 0) -> int:
        """Blocks that windows and states keep to go on after `tokens` tokens of a prompt.

        Args:
            before: tokens, up to which another mark keeps them.
        """
        return self.mark_fixed + self.mark_windows(tokens, before)

    def mark_windows(self, tokens: int, before: int = 0) -> int:
        """Those of `mark_blocks` that windows keep."""
        return sum(min((tokens - before) // w.block, w.needed) for w in self.windows)

    @property
    def reach(self) -> int:
        """Spans from a prompt's beginning up to which windows keep all of it; 0: states keep single places only."""
        if not self.marked or self.mark_fixed or not self.windows:
            return 0
        return min(w.needed * w.block for w in self.windows) // self.span

    def chunk_blocks(self, start: int, end: int, stand: int = 0) -> int:
        """Blocks of windows that a chunk from `start` to `end` holds above those it keeps afterwards."""
        more = 0
        for w in self.windows:
            during = -(-end // w.block) - max(stand, start - w.tokens + 1) // w.block
            more += max(0, min(during, w.reserve) - min(-(-(end - stand) // w.block), w.most))
        return more

    def wanted(self, tokens: int, hit: int = 0) -> int:
        """Blocks that must be free before a prompt of `tokens` tokens is admitted.

        Args:
            hit: tokens that its windows find in the cache; what these keep of them is counted by the caller.
        """
        kept = sum(max(0, min(-(-tokens // w.block), w.reserve) - hit // w.block) for w in self.windows)
        return self.whole_blocks(tokens) + kept + self.fixed


def spans_of(
    chain: list[tuple[int, int]], prompt: int, tail: int, index: int, span: int
) -> tuple[list[tuple[int, int]], int]:
    """((key, whole spans) of a prompt, key of what follows it).

    A span belongs to the segment of its last token. What no segment covers is the request's own, and so is its
    output unless `tail` says whose it is.
    """
    own = -1 - index
    found: list[tuple[int, int]] = []
    end = 0
    for key, tokens in chain:
        first, end = end // span, end + tokens
        count = end // span - first
        if count:
            found.append((key, count))
    rest = prompt // span - end // span
    if end < prompt:
        if rest:
            found.append((own, rest))
        return found, own
    return found, own if tail < 0 else tail


def lay_out(request: Request, span: int) -> None:
    """Lay out the whole spans of what a request has to compute: its prompt, and output that it had before."""
    plan = list(request.spans)
    more = request.target // span - sum(count for _, count in plan)
    if more > 0:
        if plan and plan[-1][0] == request.tail:
            plan[-1] = request.tail, plan[-1][1] + more
        else:
            plan.append((request.tail, more))
    request.plan, request.cursor = plan, (0, 0)


def cursor_of(plan: list[tuple[int, int]], done: int) -> tuple[int, int]:
    """(entry, spans of it) behind the first `done` spans."""
    for index, (_, count) in enumerate(plan):
        if done < count:
            return index, done
        done -= count
    return len(plan) - 1, plan[-1][1] if plan else 0
