"""Paged memory: blocks of one pool, handed out as sequences grow; the groups of hybrid models share the pool.

A sequence of t tokens takes ``ceil(t / block)`` blocks of every group that keeps all tokens, at most a window's
blocks of a windowed group, and a fixed number for states. While a sequence decodes, its next block is due at a step
that is known beforehand: `Rings` count by residue how many sequences take a block in which step, so that many
steps in which nothing else happens are one addition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.simulate.allocators.prefix import Mark, PrefixCache
from kvplan.simulate.allocators.rings import Rings
from kvplan.simulate.allocators.shape import cursor_of, lay_out

if TYPE_CHECKING:
    from kvplan.simulate.allocators.shape import Shape
    from kvplan.simulate.request import Request


_UNKNOWN = (-1, 0)
"""The `Request.cursor` of a sequence that came back from host memory: none of its blocks can be found."""


class PagedMemory:
    """The blocks of one replica.

    Args:
        capacity: blocks that can be handed out.
        shape: what sequences take.
    """

    paged = True

    def __init__(self, capacity: int, shape: Shape) -> None:
        self.capacity = capacity
        self.shape = shape
        self.free = capacity
        """Blocks that hold nothing."""
        self.tokens = 0
        """Distinct tokens that live sequences keep."""
        self.other = 0
        """Blocks of windows and states."""
        self.rings = Rings(shape)
        self.span_blocks = shape.span_blocks if shape.span else 0
        self.cache = PrefixCache(self.span_blocks, shape.reach)
        self.wide = max((w.needed * w.block for w in shape.windows), default=0) // (shape.span or 1)
        """Spans that the widest window goes back."""
        self.per_token = sum(1 / size for size in shape.whole)

    @property
    def available(self) -> int:
        """Blocks that can be had, idle ones of the prefix cache included."""
        return self.free + self.cache.idle_blocks

    @property
    def used(self) -> int:
        """Blocks that live sequences hold."""
        return self.capacity - self.available

    def fits_alone(self, request: Request) -> bool:
        """Whether an empty pool holds the request to its end, and lets it in again just before, were it preempted."""
        shape, length = self.shape, request.final_tokens
        again = shape.wanted(length) + (request.samples - 1) * (len(shape.whole) + shape.other_blocks(length))
        return max(shape.blocks(length) * request.samples, again) <= self.capacity

    def admit(self, request: Request, budget: int) -> int | None:
        """Let a request in with what is cached of it; None: there is no room.

        Args:
            budget: tokens that the step can still compute.

        Returns:
            tokens of the prompt that need not be computed.
        """
        shape, span = self.shape, self.shape.span
        found = idle = 0
        if span:
            lay_out(request, span)
            found, idle = self._find(request)
        hit = found * span
        first = request.target if shape.reserve_prompt else min(request.target, hit + budget)
        need = shape.wanted(first, hit) - (found - idle) * self.span_blocks
        need += (request.samples - 1) * self._copies(request)
        kept = shape.other_blocks(hit) - shape.fixed if hit else 0
        mark = self.cache.mark(request.plan, found, make=False) if kept and shape.marked else None
        shared = mark is not None and request.samples == 1 and (mark.idle is None or mark.met)
        if shared and mark is not None:
            kept = 0 if mark.sharers else shape.mark_windows(hit)
        need += kept
        if need > self.available:
            return None
        if found:
            request.holds = self.cache.take(request.plan, found)
            request.registered = found
            request.cursor = cursor_of(request.plan, found)
            self.tokens += idle * span
            if shared and mark is not None:
                self.free += self.cache.wake(mark)
                mark.sharers += 1
                request.stand, request.stands = hit, mark
            elif shape.marked:
                self._own(request, found)
            if kept and shape.marked:
                if mark is not None:
                    mark.met = True
                for before in self.cache.before(request.plan, found, self.wide):
                    if before.idle is not None:  # the window begins in what it keeps
                        self._own(request, before.at)
        self._get(shape.fixed + kept)
        self.other += shape.fixed + kept
        request.computed = hit
        return hit

    def _own(self, request: Request, at: int) -> None:
        """A request has what windows and states keep after `at` spans of it; it is left to others when it ends."""
        mark = self.cache.mark(request.plan, at)
        if mark is None or mark is request.stands or mark in request.marks:
            return
        mark.owners += 1
        request.marks.append(mark)
        self.free += self.cache.wake(mark)

    def _step_off(self, request: Request) -> None:
        """The windows of a request are behind the mark that it went on from; the last one leaves it to others."""
        mark, request.stands = request.stands, None
        if mark is None:
            return
        mark.sharers -= 1
        if not mark.sharers:
            blocks = self.shape.mark_windows(request.stand)
            self.free += blocks
            self.other -= blocks
            self._leave(mark, request.plan)

    def _leave(self, mark: Mark, plan: list[tuple[int, int]]) -> None:
        """What a mark keeps is idle from now on, unless others have it; where there is no room for it, it is gone.

        Blocks that a mark before it keeps too are idle there, and stay longer.
        """
        cache, shape = self.cache, self.shape
        if mark.owners or mark.sharers or not cache.there(mark):
            return
        before = next(cache.before(plan, mark.at, self.wide), None) if shape.windows else None
        blocks = shape.mark_blocks(mark.at * shape.span, before.at * shape.span if before else 0)
        if blocks > self.available:
            cache.drop(mark)
            return
        self._get(blocks)
        if cache.there(mark):
            cache.rest(mark, blocks)
        else:
            self.free += blocks

    def lookup(self, request: Request) -> int:
        """Tokens of a prompt that are cached and of use, without its last token."""
        span = self.shape.span
        if not span:
            return 0
        found, _ = self.cache.find(request.spans, (request.prompt - 1) // span)
        return span * (self.cache.marked(request.spans, found) if self.shape.marked else found)

    def _find(self, request: Request) -> tuple[int, int]:
        """(spans of what a request computes that are there and of use, how many of them are idle)."""
        cache, plan = self.cache, request.plan
        found, idle = cache.find(plan, (request.target - 1) // self.shape.span)
        request.marks, request.parting = [], 0
        if not self.shape.marked or not found:
            return found, idle
        mark = cache.marked(plan, found)
        if mark < found:
            request.parting = found
        return cache.find(plan, mark) if mark else (0, 0)

    def extend(self, request: Request, end: int) -> bool:
        """Room for the prompt's tokens up to `end`; False: there is none, and nothing has changed."""
        shape, start = self.shape, request.computed
        others = shape.other_blocks(end, request.stand) - shape.other_blocks(start, request.stand)
        more = shape.chunk_blocks(start, end, request.stand)
        whole = shape.whole_blocks(end) - shape.whole_blocks(start)
        last = end == request.target
        copies = (request.samples - 1) * self._copies(request) if last else 0
        need = whole + others + more + copies
        if need > self.available:
            return False
        self._get(need)
        self.other += others + more
        request.extra_blocks = more
        self.tokens += end - start
        if last and request.samples > 1:
            request.forked = True
            self.tokens += (request.samples - 1) * self._copied_tokens(request)
            self.other += (request.samples - 1) * shape.other_blocks(end)
        if shape.span:
            self._register(request, end // shape.span - start // shape.span)
            if last and shape.marked:
                for at in (request.parting, (request.prompt - 1) // shape.span):
                    self._own(request, at)
        return True

    def settle(self, request: Request) -> None:
        """The step of a chunk is done: blocks behind the windows are free again."""
        if request.extra_blocks:
            self.free += request.extra_blocks
            self.other -= request.extra_blocks
            request.extra_blocks = 0

    def _copied_tokens(self, request: Request) -> int:
        """Tokens of a prompt's last, partial blocks, which each further sample copies before it writes."""
        return request.target % max(self.shape.whole, default=1)

    def _copies(self, request: Request) -> int:
        """Blocks of one further sample: copies of partial blocks, and windows and states of its own."""
        partial = sum(1 for size in self.shape.whole if request.target % size)
        return partial + self.shape.other_blocks(request.target)

    def _register(self, request: Request, count: int) -> None:
        """Put `count` more whole spans of a request into the prefix cache."""
        index, at = request.cursor
        plan = request.plan
        while count:
            key, spans = plan[index]
            part = min(count, spans - at)
            holds = request.holds
            held = holds[-1][1] if holds and holds[-1][0] == key else 0
            if part and held == at:
                done, own, replaced = self.cache.insert(key, at, part, twins=self.shape.marked)
                if done:
                    part = done
                    if held:
                        holds[-1][1] = at + done
                    else:
                        holds.append([key, done])
                request.registered += own
                self.free += replaced * self.span_blocks
            at, count = at + part, count - part
            if at == spans and index + 1 < len(plan):
                index, at = index + 1, 0
            elif not part:
                break
        request.cursor = index, at

    def restore(self, request: Request, tokens: int) -> bool:
        """Room for a sequence of `tokens` tokens that comes back from host memory, and for its next token."""
        if self.shape.blocks(tokens + 1) * request.samples > self.available:
            return False
        self._get(self.shape.blocks(tokens) * request.samples)
        self.other += self.shape.other_blocks(tokens) * request.samples
        self.tokens += tokens * request.samples
        request.forked = request.apart = request.samples > 1
        request.holds, request.registered, request.plan, request.cursor = [], 0, [], _UNKNOWN
        return True

    def _get(self, count: int) -> None:
        if count > self.free:
            self.free += self.cache.evict(count - self.free)
        self.free -= count

    def drain(self) -> None:
        """Make all idle spans room: sequences want more blocks than there are."""
        count = self.available
        self._get(count)
        self.free = count

    def join(self, request: Request, step: int, length: int) -> int:
        """The request decodes from the step after `step` on.

        Returns:
            a step after which its windows are full, or beyond what it keeps for others; 0: they are.
        """
        last = self.rings.join(request, step, length)
        if not last:
            self._step_off(request)
        return max(last, self._pass_marks(request, step, step - length))

    def leave(self, request: Request, step: int) -> None:
        """The request no longer decodes; `step` is the last step that was done."""
        self.rings.leave(request, step)

    def fill(self, request: Request, step: int) -> int:
        """Windows that are full after `step` take no more, and those that are beyond a mark leave it.

        Returns:
            the next step at which that happens, or 0.
        """
        later = self.rings.fill(request, step)
        if not later:
            self._step_off(request)
        mark = self._pass_marks(request, step, request.base_step - request.base_length)
        return min(later or mark, mark or later)

    def _pass_marks(self, request: Request, step: int, first: int) -> int:
        """Leave the marks that a request's windows are beyond after `step`; the next step at which that happens, or 0.

        Args:
            first: the step at which it would have had no token.
        """
        later = 0
        if self.shape.windows:
            for mark in sorted(request.marks, key=lambda mark: -mark.at):
                at = first + (mark.at + self.wide) * self.shape.span
                if at <= step:
                    request.marks.remove(mark)
                    mark.owners -= 1
                    self._leave(mark, request.plan)
                elif not later or at < later:
                    later = at
        return later

    def mean_growth(self, step: int, steps: int) -> tuple[float, float] | None:
        """How many blocks more than before the `steps` steps after `step` hold on average; of windows, than midway."""
        whole, windows = self.rings.held(step, steps)
        return (whole + windows) / steps, windows / steps - self.rings.taken(step, steps)[1] / 2

    def steps(self, step: int, most: int) -> int:
        """How many steps after `step`, up to `most`, find blocks for every sequence."""
        room = self.available
        growth = self.rings.growth
        if room >= self.rings.at_most(most) or growth(step, most) <= room:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            if growth(step, middle) <= room:
                low = middle
            else:
                high = middle
        return low

    def grow(self, step: int, steps: int, sequences: int) -> None:
        """`sequences` sequences grow by a token in each of `steps` steps; there is room (`steps`)."""
        whole, windows = self.rings.taken(step, steps)
        self.other += windows
        self._get(whole + windows)
        self.tokens += steps * sequences

    def release(self, request: Request, tokens: int, *, keep: bool = True) -> None:
        """All that a request of `tokens` tokens holds is free; its whole spans stay in the prefix cache.

        Args:
            keep: False: what it holds alone was moved away and is not cached.
        """
        shape = self.shape
        self.settle(request)
        self._step_off(request)
        others = shape.other_blocks(tokens, request.stand)
        request.stand = 0
        blocks, distinct = others + shape.whole_blocks(tokens), tokens
        if request.forked:
            more = request.samples - 1
            common = 0 if request.apart else sum(request.target // size for size in shape.whole)
            blocks += more * (blocks - common)
            others += more * others
            distinct += more * (tokens if request.apart else tokens - request.target + self._copied_tokens(request))
            request.forked = request.apart = False
        self.other -= others
        self.tokens -= distinct
        if not shape.span:
            self.free += blocks
            return
        if keep:
            self._register_output(request, tokens)
        held = request.registered
        idle = self.cache.release(reversed(request.holds)) if request.holds else 0
        self.tokens += (held - idle) * shape.span
        self.free += blocks - held * self.span_blocks
        for mark in sorted(request.marks, key=lambda mark: -mark.at):  # the deepest leaves first
            mark.owners -= 1
            self._leave(mark, request.plan)
        request.marks = []
        request.holds, request.registered, request.plan = [], 0, []

    def _register_output(self, request: Request, tokens: int) -> None:
        """The whole spans behind `target` go into the prefix cache: what was generated may be asked for again."""
        span = self.shape.span
        more = tokens // span - request.target // span
        if more <= 0 or request.cursor == _UNKNOWN:
            return
        key, spans = request.plan[-1] if request.plan else (None, 0)
        if key == request.tail:
            request.plan[-1] = request.tail, spans + more
            request.cursor = len(request.plan) - 1, spans
        else:
            request.plan.append((request.tail, more))
            request.cursor = len(request.plan) - 1, 0
        self._register(request, more)

    def level(self) -> tuple[float, float, float, float]:
        """Blocks (in use, filled with states of tokens, reserved for later, idle in the prefix cache)."""
        idle = self.cache.idle_blocks
        used = self.capacity - self.free - idle
        stored = self.other + self.tokens * self.per_token
        return used, stored, 0.0, idle

    @property
    def evicted_blocks(self) -> int:
        """Blocks of shared prefixes that had to make room."""
        return self.cache.evicted_blocks
