"""When sequences that decode take their next block: counted by residue, so that many steps are one addition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.simulate.allocators.shape import Shape, Window
    from kvplan.simulate.request import Request


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

    def held(self, step: int, steps: int) -> int:
        """Blocks times steps that those which are due in the `steps` steps after `step` are held in these."""
        if not self.members:
            return 0
        at, size, total = self.at, self.size, 0
        for away in range(1, min(steps, size) + 1):
            count = at[(step + away) % size]
            if count:
                left = steps - away + 1
                times = (left - 1) // size + 1
                total += count * (times * left - size * times * (times - 1) // 2)
        return total


class Rings:
    """The rings of all groups of a pool. A window that is full takes as many blocks as it gives back: it is in none."""

    def __init__(self, shape: Shape) -> None:
        self.whole = [Ring(size) for size in shape.whole]
        self.windows = [(Ring(w.block), w) for w in shape.windows]

    def join(self, request: Request, step: int, length: int) -> int:
        """The request has `length` tokens after `step` and decodes from then on.

        Returns:
            the step after which its windows are full, or 0: they are, or there are none.
        """
        for ring in self.whole:
            ring.change(step, length, request.samples)
        last = 0
        for ring, window in self.windows:
            at = _full(window, step, length - request.stand)
            if at > step:
                ring.change(step, length, request.samples)
                last = max(last, at)
        return last

    def leave(self, request: Request, step: int) -> None:
        """The request no longer decodes; `step` is the last step that was done."""
        base, length = request.base_step, request.base_length
        for ring in self.whole:
            ring.change(base, length, -request.samples)
        for ring, window in self.windows:
            if _full(window, base, length - request.stand) > max(base, step):
                ring.change(base, length, -request.samples)

    def fill(self, request: Request, step: int) -> int:
        """Windows that are full after `step` leave their rings.

        Returns:
            the next step at which that happens, or 0.
        """
        later = 0
        base, length = request.base_step, request.base_length
        for ring, window in self.windows:
            at = _full(window, base, length - request.stand)
            if at == step > base:
                ring.change(base, length, -request.samples)
            elif at > step and (not later or at < later):
                later = at
        return later

    def taken(self, step: int, steps: int) -> tuple[int, int]:
        """Blocks that are due in the `steps` steps after `step`: (of groups that keep all tokens, of windows)."""
        windows = sum(ring.taken(step, steps) for ring, _ in self.windows) if self.windows else 0
        return sum(ring.taken(step, steps) for ring in self.whole), windows

    def growth(self, step: int, steps: int) -> int:
        """All of `taken`."""
        whole, windows = self.taken(step, steps)
        return whole + windows

    def held(self, step: int, steps: int) -> tuple[int, int]:
        """`Ring.held` of groups that keep all tokens, and of windows."""
        windows = sum(ring.held(step, steps) for ring, _ in self.windows)
        return sum(ring.held(step, steps) for ring in self.whole), windows

    def at_most(self, steps: int) -> int:
        """Blocks that no `steps` steps exceed, whatever the residues."""
        rings = (*self.whole, *(ring for ring, _ in self.windows))
        return sum((steps // ring.size + 1) * ring.members for ring in rings)


def _full(window: Window, step: int, length: int) -> int:
    """The step after which a window is full that holds `length` tokens after `step`."""
    return step + (window.most - 1) * window.block + 1 - length
