"""What a sequence takes of a pool of blocks, and when it takes the next one."""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """A group that keeps the last tokens only."""

    block: int
    tokens: int
    """Of the window."""
    most: int
    """Blocks that a decoding sequence holds at most: the window may begin and end inside a block."""
    reserve: int
    """Blocks that a long prompt holds at most while it is computed: the engine wants them free before it admits it."""


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

    def other_blocks(self, tokens: int) -> int:
        """Blocks of windows and states."""
        if not tokens:
            return 0
        if not self.windows:
            return self.fixed
        return self.fixed + sum(min(-(-tokens // w.block), w.most) for w in self.windows)

    def blocks(self, tokens: int) -> int:
        """Blocks of a decoding sequence of `tokens` tokens."""
        return self.whole_blocks(tokens) + self.other_blocks(tokens)

    def mark_blocks(self, tokens: int) -> int:
        """Blocks that windows and states keep to go on after `tokens` tokens of a prompt."""
        return self.mark_fixed + sum(min(tokens // w.block, -(-(w.tokens - 1) // w.block)) for w in self.windows)

    def chunk_blocks(self, start: int, end: int) -> int:
        """Blocks of windows that a chunk from `start` to `end` holds above those it keeps afterwards."""
        more = 0
        for w in self.windows:
            during = -(-end // w.block) - max(0, start - w.tokens + 1) // w.block
            more += max(0, min(during, w.reserve) - min(-(-end // w.block), w.most))
        return more

    def wanted(self, tokens: int) -> int:
        """Blocks that must be free before a prompt of `tokens` tokens is admitted, nothing shared."""
        kept = sum(min(-(-tokens // w.block), w.reserve) for w in self.windows)
        return self.whole_blocks(tokens) + kept + self.fixed


class Ring:
    """How many sequences take a block of `size` tokens at which step, by the step's residue."""

    __slots__ = ("at", "members", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.at = [0] * size
        self.members = 0

    def change(self, step: int, length: int, count: int) -> None:
        """`count` sequences more (or fewer) that have `length` tokens after `step`."""
        self.at[(step + 1 - length) % self.size] += count
        self.members += count

    def taken(self, step: int, steps: int) -> int:
        """Blocks that are due in the `steps` steps after `step`."""
        rounds, rest = divmod(steps, self.size)
        at, size = self.at, self.size
        first = (step + 1) % size
        if rest == 1:
            return rounds * self.members + at[first]
        last = first + rest
        part = sum(at[first:last]) if last <= size else sum(at[first:]) + sum(at[: last - size])
        return rounds * self.members + part


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
