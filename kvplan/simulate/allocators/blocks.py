"""Single blocks with reference counts: sequences that fork share blocks until one of them writes.

This is paging as vLLM has it, block by block (PagedAttention paper, arXiv 2309.06180, sections 4.3 and 4.4): parallel
samples share their prompt, beams also what their ancestors wrote; whoever appends to a block that somebody else reads
copies it first. Full blocks may carry a key; those that nobody holds then wait in order of their last use and are
found again or evicted. `kvplan.simulate.allocators.paged` counts the same in bulk, which tests hold against this.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np


class OutOfBlocks(Exception):
    """There is no block left; nothing has changed."""


class Table:
    """The blocks of one sequence, in order."""

    __slots__ = ("blocks", "tokens")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.tokens = 0


class BlockPool:
    """`capacity` blocks of `size` tokens."""

    def __init__(self, capacity: int, size: int) -> None:
        self.capacity, self.size = capacity, size
        self.references = [0] * capacity
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(capacity))
        """Blocks without references, the next one to be handed out first."""
        self.keys: dict[int, Hashable] = {}
        """block -> key of what it holds."""
        self.cached: dict[Hashable, int] = {}
        self.evictions = 0
        self.copies = 0

    def _get(self) -> int:
        if not self.free:
            raise OutOfBlocks
        block, _ = self.free.popitem(last=False)
        key = self.keys.pop(block, None)
        if key is not None:
            del self.cached[key]
            self.evictions += 1
        self.references[block] = 1
        return block

    def find(self, keys: Sequence[Hashable], limit: int) -> int:
        """How many leading blocks of a prompt are there, at most `limit`."""
        count = 0
        while count < min(limit, len(keys)) and keys[count] in self.cached:
            count += 1
        return count

    def start(self, keys: Sequence[Hashable], count: int) -> Table:
        """A sequence that begins with `count` blocks that are there."""
        table = Table()
        for key in keys[:count]:
            block = self.cached[key]
            if not self.references[block]:
                del self.free[block]
            self.references[block] += 1
            table.blocks.append(block)
        table.tokens = count * self.size
        return table

    def append(self, table: Table, tokens: int = 1) -> None:
        """Write `tokens` more tokens.

        Raises:
            OutOfBlocks: too few are left; tokens that had room are written.
        """
        for _ in range(tokens):
            if table.tokens % self.size == 0:
                table.blocks.append(self._get())
            elif self.references[table.blocks[-1]] > 1:
                fresh = self._get()
                self.references[table.blocks[-1]] -= 1
                table.blocks[-1] = fresh
                self.copies += 1
            table.tokens += 1

    def name(self, table: Table, index: int, key: Hashable) -> bool:
        """Give a full block a key under which it can be found; False: somebody's block has the key, or it has one.

        A block with the key that nobody holds is handed out next instead.
        """
        block = table.blocks[index]
        if block in self.keys or (index + 1) * self.size > table.tokens:
            return False
        other = self.cached.get(key)
        if other is not None:
            if self.references[other]:
                return False
            del self.keys[other]
            self.free.move_to_end(other, last=False)
        self.keys[block], self.cached[key] = key, block
        return True

    def fork(self, table: Table) -> Table:
        """A second sequence with the same tokens; nothing is copied yet."""
        twin = Table()
        twin.blocks, twin.tokens = list(table.blocks), table.tokens
        for block in twin.blocks:
            self.references[block] += 1
        return twin

    def release(self, table: Table) -> None:
        """Give a sequence up, deepest block first: blocks with keys wait, others are handed out next."""
        for block in reversed(table.blocks):
            self.references[block] -= 1
            if self.references[block] < 0:
                raise AssertionError(f"block {block} was freed twice")
            if not self.references[block]:
                self.free[block] = None
                if block not in self.keys:
                    self.free.move_to_end(block, last=False)
        table.blocks, table.tokens = [], 0

    @property
    def used(self) -> int:
        """Blocks that a sequence holds."""
        return self.capacity - len(self.free)


class BeamBlocks(NamedTuple):
    """What sharing is worth to a beam search."""

    shared: int
    """Most blocks that the beams hold together."""
    apart: int
    """Most blocks that they would hold without sharing."""
    copies: int
    """Blocks that were copied because a sibling read them."""

    @property
    def saved(self) -> float:
        """Share of the blocks that sharing saves."""
        return 1 - self.shared / self.apart


def beam_search(prompt: int, output: int, width: int, size: int, *, seed: int = 0, stays: float = 0.5) -> BeamBlocks:
    """The blocks of one beam search.

    Args:
        width: beams.
        size: tokens of a block.
        stays: chance that a beam goes on as its own only child; else it is replaced by a child of a random beam.
    """
    rng = np.random.default_rng(seed)
    each = -(-(prompt + output) // size)
    pool = BlockPool((each + 1) * width * 2, size)
    first = Table()
    pool.append(first, prompt)
    beams = [first, *(pool.fork(first) for _ in range(width - 1))]
    most = pool.used
    for _ in range(output):
        kept = rng.random(width) < stays
        parents = np.where(kept, np.arange(width), rng.integers(0, width, width)).tolist()
        children = [pool.fork(beams[parent]) for parent in parents]
        for beam in beams:
            pool.release(beam)
        beams = children
        for beam in beams:
            pool.append(beam)
        most = max(most, pool.used)
    return BeamBlocks(most, each * width, pool.copies)
