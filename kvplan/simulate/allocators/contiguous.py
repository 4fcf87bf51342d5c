"""Contiguous reservations, as systems before paging made them: one run of token slots a request, all at once.

Source: the PagedAttention paper (arXiv 2309.06180), section 6.1: Orca, rebuilt with a buddy allocator, reserves the
maximum length (*max*), at most twice the output (*pow2*) or just what the request will need (*oracle*).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.simulate.request import Request

RESERVATIONS = ("max", "pow2", "oracle")


class Buddy:
    """Runs of slots whose sizes are powers of two; a free run joins its buddy.

    Args:
        slots: cut into the largest aligned powers of two first.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.free: dict[int, set[int]] = {1 << k: set() for k in range(max(1, slots).bit_length())}
        self.used: dict[int, int] = {}
        start = 0
        for k in reversed(range(slots.bit_length())):
            if slots >> k & 1:
                self.free[1 << k].add(start)
                start += 1 << k

    def get(self, size: int) -> tuple[int, int] | None:
        """(first slot, slots) of a run of at least `size`; None: there is none."""
        want = 1 << (size - 1).bit_length()
        have = want
        while have in self.free and not self.free[have]:
            have *= 2
        if have not in self.free:
            return None
        start = min(self.free[have])
        self.free[have].remove(start)
        while have > want:
            have //= 2
            self.free[have].add(start + have)
        self.used[start] = want
        return start, want

    def put(self, start: int) -> None:
        """Give a run back."""
        size = self.used.pop(start)
        while True:
            buddy = start ^ size
            if buddy not in self.free[size] or size * 2 not in self.free:
                break
            self.free[size].remove(buddy)
            start, size = min(start, buddy), size * 2
        self.free[size].add(start)

    def largest(self) -> int:
        """Slots of the longest free run."""
        return max((size for size, starts in self.free.items() if starts), default=0)


class ContiguousMemory:
    """Token slots of one replica, reserved whole.

    Args:
        capacity: token slots.
        reservation: an entry of `RESERVATIONS`.
        longest: tokens of the longest request that the engine takes.
    """

    paged = False
    evicted_blocks = 0

    def __init__(self, capacity: int, reservation: str, longest: int) -> None:
        self.capacity = capacity
        self.reservation = reservation
        self.longest = longest
        self.buddy = Buddy(capacity)
        self.used = 0
        """Slots of runs that are handed out, rounding included."""
        self.tokens = 0
        self.final = 0
        """Slots that will be filled before their requests end."""
        self.reserved = 0
        """Slots that were asked for."""

    def slots(self, request: Request) -> int:
        """Slots that one sequence asks for."""
        if self.reservation == "max":
            return max(self.longest, request.final_tokens)
        if self.reservation == "pow2":
            twice = request.prompt + (1 << (request.output - 1).bit_length())
            return min(twice, max(self.longest, request.final_tokens))
        return request.final_tokens

    @property
    def available(self) -> int:
        return self.capacity - self.used

    def fits_alone(self, request: Request) -> bool:
        """Whether an empty pool holds the request."""
        fresh = Buddy(self.capacity)
        return all(fresh.get(self.slots(request)) for _ in range(request.samples))

    def admit(self, request: Request, budget: int) -> int | None:
        """Reserve for a request; None: no run is long enough, however much is free in all."""
        runs: list[int] = []
        taken = 0
        size = self.slots(request)
        for _ in range(request.samples):
            run = self.buddy.get(size)
            if run is None:
                for start in runs:
                    self.buddy.put(start)
                return None
            runs.append(run[0])
            taken += run[1]
        request.place = (runs, taken)
        self.used += taken
        self.reserved += size * request.samples
        self.final += request.final_tokens * request.samples
        request.computed = 0
        return 0

    def extend(self, request: Request, end: int) -> bool:
        self.tokens += (end - request.computed) * request.samples
        return True

    def settle(self, request: Request) -> None:
        return

    def restore(self, request: Request, tokens: int) -> bool:
        raise AssertionError("a reservation is never taken back")

    def join(self, request: Request, step: int, length: int) -> int:
        return 0

    def leave(self, request: Request, step: int) -> None:
        return

    def fill(self, request: Request, step: int) -> int:
        return 0

    def steps(self, step: int, most: int) -> int:
        return most

    def grow(self, step: int, steps: int, sequences: int) -> None:
        self.tokens += steps * sequences

    def mean_growth(self, step: int, steps: int) -> tuple[float, float] | None:
        return None

    def release(self, request: Request, tokens: int, *, keep: bool = True) -> None:
        """Give the runs of a request back."""
        assert request.place is not None  # it was admitted
        runs, taken = request.place
        for start in runs:
            self.buddy.put(start)
        self.used -= taken
        self.reserved -= self.slots(request) * request.samples
        self.final -= request.final_tokens * request.samples
        self.tokens -= tokens * request.samples
        request.place = None

    def level(self) -> tuple[float, float, float, float]:
        """Slots (in runs that are handed out and were asked for, filled, reserved and filled later, idle)."""
        return self.reserved, self.tokens, self.final - self.tokens, 0
