"""Continuous batching on one replica, event by event.

Each step serves the running requests first, in the order in which they were admitted: one token for each that
decodes, a chunk for the one whose prompt is under way. What is left of the token budget admits waiting requests,
first come first served, while the sequence limit and the memory allow, and none in a step that had to preempt. The
victim is the request that was admitted last; it loses its blocks (*recompute*) or moves them to host memory (*swap*)
and waits at the head of the queue. Whoever ends gives back its blocks after the step, in the order of admission too.
Source: vLLM 0.33.0 ``vllm/v1/core/sched/scheduler.py``, ``schedule`` and ``update_from_output``.

Steps in which nothing changes but lengths are taken together: until a request ends, memory runs out, or one arrives.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Any, NamedTuple

from kvplan.simulate.recorder import Counts, Rows, Timeline
from kvplan.simulate.request import Request
from kvplan.simulate.timing import StepTimer

_WINDOW, _FINISH = 0, 1
"""Kinds of events, in the order in which those of one step are served."""


class Limits(NamedTuple):
    """What bounds a step."""

    tokens: int
    """Computed in one step: vLLM's ``max_num_batched_tokens``."""
    sequences: int
    """Running at once: ``max_num_seqs``."""
    longest: int
    """Tokens of the longest request: ``max_model_len``."""
    swap_seconds_per_block: float | None = None
    """Moving one block to host memory or back; None: preempted requests are computed again."""
    whole_prompts: bool = False
    """Prompts are not cut into chunks."""


class Replica:
    """One engine with its memory and its clock.

    Args:
        number: among the replicas.
        memory: `kvplan.simulate.allocators`.
        rows: where the figures of requests go.
    """

    def __init__(self, number: int, memory: Any, timer: StepTimer, limits: Limits, rows: Rows) -> None:
        self.number, self.memory, self.timer, self.limits, self.rows = number, memory, timer, limits, rows
        self.clock = 0.0
        self.step = 0
        """Steps that are done."""
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        """In order of admission; the one whose prompt is under way is the last."""
        self.partial: Request | None = None
        self.ahead: list[float] | None = None
        self.sequences = 0
        """That run, prompts under way included."""
        self.batch = 0
        """Sequences that decode."""
        self.context = 0
        """Tokens of all sequences that decode."""
        self.events: list[tuple[int, int, int, Request, int]] = []
        """(step, kind, serial number, request, the step from which it decoded: older ones are void)."""
        self.blocked = False
        """The head of the queue was refused for want of memory; since then none was given back or prompt computed."""
        self.serial = 0
        self.line = Timeline()
        self.counts = Counts()
        self.load_tokens = 0
        """Tokens that wait or run here, for routing."""

    def submit(self, request: Request) -> str | None:
        """Put a request at the end of the queue; a sentence where it can never run."""
        length = request.prompt + request.output
        if length > self.limits.longest:
            return f"{length:,} tokens are over max_model_len {self.limits.longest:,}"
        if request.samples > self.limits.sequences:
            return f"{request.samples:,} samples are over max_num_seqs {self.limits.sequences:,}"
        if self.limits.whole_prompts and request.prompt > self.limits.tokens:
            return f"a prompt of {request.prompt:,} tokens is over max_num_batched_tokens {self.limits.tokens:,}"
        if not self.memory.fits_alone(request):
            return f"{length:,} tokens do not fit the whole pool"
        if self.clock < request.arrival and not self.running and not self.waiting:
            self.line.rest(self.clock, request.arrival, self.memory.level()[3])
            self.clock = request.arrival
        self.waiting.append(request)
        self.load_tokens += length
        self.rows.replica[request.index] = self.number
        return None

    def run(self, until: float) -> None:
        """Work until the clock reaches `until` or nothing is left to do."""
        while self.clock < until and (self.running or self.waiting):
            self._advance(until)

    def _advance(self, until: float) -> None:
        """One step, or as many as pass without anything to decide."""
        memory, preempted, moved = self.memory, False, 0
        if self.batch and not memory.steps(self.step, 1):
            memory.drain()  # those that were admitted before the victim are served before it loses its blocks
            while self.batch and not memory.steps(self.step, 1):
                moved += self._preempt()
                preempted = True
        before = memory.level()
        decoding, context = self.batch, self.context
        if decoding:
            memory.grow(self.step, 1, decoding)
        chunks: list[tuple[Request, int, int]] = []
        resumed: list[Request] = []
        budget = self.limits.tokens - decoding
        partial = self.partial
        if partial is not None and budget > 0:
            part = min(partial.target - partial.computed, budget)
            if memory.extend(partial, partial.computed + part):
                chunks.append((partial, partial.computed, partial.computed + part))
                budget -= part
            else:
                moved += self._preempt()
                preempted = True
        if not preempted and self.waiting and budget > 0 and not self.blocked:
            moved += self._admit(chunks, resumed, budget)
        if chunks or moved or not decoding:
            self._mixed_step(before, decoding, context, chunks, resumed, moved)
        else:
            # nobody is admitted in a step that preempted: the head has its next chance in the one after
            self._decode_steps(before, decoding, context, until, 1 if preempted else None)

    def _admit(self, chunks: list[tuple[Request, int, int]], resumed: list[Request], budget: int) -> int:
        """Let requests in while there is room; returns blocks that came back from host memory."""
        memory, limits, waiting, moved = self.memory, self.limits, self.waiting, 0
        while waiting and budget > 0:
            request = waiting[0]
            if self.sequences + request.samples > limits.sequences:
                break
            if request.swapped:
                tokens = request.base_length
                if not memory.restore(request, tokens):
                    self.blocked = True
                    break
                moved += memory.shape.blocks(tokens) * request.samples
                resumed.append(request)
            else:
                if limits.whole_prompts and request.target > budget and (chunks or self.batch):
                    break
                hit = memory.admit(request, budget)
                if hit is None:
                    self.blocked = True
                    break
                self._count_hit(request, hit)
                part = min(request.target - hit, budget)
                if not memory.extend(request, hit + part):
                    memory.release(request, hit)
                    self.blocked = True
                    break
                chunks.append((request, hit, hit + part))
                budget -= part
            waiting.popleft()
            self.running[request] = None
            self.sequences += request.samples
            if request.admitted < 0:
                request.admitted = self.clock
        return moved

    def _count_hit(self, request: Request, hit: int) -> None:
        if request.tried:
            self.counts.recomputed_tokens += request.target - hit
            return
        request.tried = True
        self.rows.hits[request.index] = hit
        self.rows.tried[request.index] = True
        self.counts.hit_tokens += hit
        self.counts.looked_up_tokens += request.prompt

    def _mixed_step(
        self, before: tuple[float, ...], decoding: int, context: int, chunks: list[tuple[Request, int, int]],
        resumed: list[Request], moved: int,
    ) -> None:  # fmt: skip
        """A step that computes parts of prompts."""
        timer, limits = self.timer, self.limits
        done = sum(end == request.target for request, _, end in chunks)
        seconds = 0.0
        if chunks:
            mean = (context + decoding) / decoding if decoding else 0.0
            goes_on = len(chunks) == 1 and chunks[0][0] is self.partial and not moved
            ahead = self.ahead if goes_on else None
            seconds = timer.mixed(decoding, mean, [(start, end) for _, start, end in chunks], done, ahead)
            self.ahead = timer.ahead
        elif decoding:
            seconds = timer.decode(decoding, (context + decoding) / decoding)
        if moved:
            seconds += moved * (limits.swap_seconds_per_block or 0.0)
        if not (chunks or decoding or moved):
            raise AssertionError("a step without work: the head of the queue fits no empty pool")
        tokens = sum(end - start for _, start, end in chunks) + decoding
        self._record(before, seconds, tokens)
        self.clock += seconds
        self.step += 1
        self.context += self.batch
        self.counts.steps += 1
        self.partial = None
        if chunks:  # they may give back blocks behind a window, and what they computed can be found
            self.blocked = False
        self._events()  # whoever was admitted first gives back its blocks first
        for request, _, end in chunks:
            request.computed = end
            self.memory.settle(request)
            if end < request.target:
                self.partial = request
            else:
                self._emit_first(request)
        for request in resumed:
            request.swapped = False
            self._start(request, request.base_length)

    def _emit_first(self, request: Request) -> None:
        """A prompt is done: its next token comes out."""
        request.emitted += 1
        if request.first < 0:
            request.first = self.clock
        if request.emitted == request.output:
            self._finish(request, request.target)
        else:
            self._start(request, request.target)

    def _start(self, request: Request, length: int) -> None:
        """The request decodes from the next step on."""
        request.base_step, request.base_length = self.step, length
        request.finish_step = self.step + request.output - request.emitted
        self.batch += request.samples
        self.context += length * request.samples
        self.serial += 1
        heappush(self.events, (request.finish_step, _FINISH, self.serial, request, self.step))
        full = self.memory.join(request, self.step, length)
        if full:
            self._window_event(request)

    def _window_event(self, request: Request) -> None:
        at = self.memory.fill(request, self.step)
        if at:
            self.serial += 1
            heappush(self.events, (at, _WINDOW, self.serial, request, request.base_step))

    def _events(self) -> None:
        """Whatever is due after the step that was done."""
        events = self.events
        while events and events[0][0] <= self.step:
            at, kind, _, request, base = heappop(events)
            if request.finish_step < 0 or request.base_step != base:
                continue  # it was preempted since
            if kind == _WINDOW:
                self._window_event(request)
            else:
                length = request.base_length + at - base
                self._stop(request, length)
                request.emitted = request.output
                self._finish(request, length)

    def _stop(self, request: Request, length: int) -> None:
        """The request decodes no longer."""
        self.batch -= request.samples
        self.context -= length * request.samples
        self.memory.leave(request, self.step)
        request.finish_step = -1

    def _finish(self, request: Request, length: int) -> None:
        self.memory.release(request, length)
        del self.running[request]
        self.sequences -= request.samples
        self.blocked = False
        self.load_tokens -= request.prompt + request.output
        rows, index = self.rows, request.index
        rows.admitted[index], rows.first[index], rows.finish[index] = request.admitted, request.first, self.clock
        rows.preemptions[index] = request.preemptions
        rows.count()

    def _preempt(self) -> int:
        """Take its memory from the request that was admitted last; returns blocks that move to host memory."""
        request, _ = self.running.popitem()
        self.sequences -= request.samples
        request.preemptions += 1
        self.counts.preemptions += 1
        self.blocked = False
        self.waiting.appendleft(request)
        moved = 0
        if request is self.partial:
            self.partial = None
            self.memory.release(request, request.computed)
        else:
            length = request.base_length + self.step - request.base_step
            request.emitted += self.step - request.base_step
            self._stop(request, length)
            swap = self.limits.swap_seconds_per_block is not None
            if swap:
                moved = self.memory.shape.blocks(length) * request.samples
                self.counts.swapped_tokens += length * request.samples
                request.swapped, request.base_length = True, length
            self.memory.release(request, length, keep=not swap)
        request.target = request.prompt + request.emitted
        request.computed = 0
        return moved

    def _decode_steps(
        self, before: tuple[float, ...], decoding: int, context: int, until: float, most: int | None = None
    ) -> None:
        """Decode until something happens, or `most` steps; the memory of the first step is taken already."""
        timer, memory = self.timer, self.memory
        most = most or self._next_event() - self.step
        if most > 1:
            most = 1 + memory.steps(self.step + 1, most - 1)
        tokens = context + decoding  # a sequence attends to the token that it appends
        steps = timer.steps_until(decoding, tokens, until - self.clock, most)
        seconds = timer.decodes(decoding, tokens, steps)
        if steps > 1:
            memory.grow(self.step + 1, steps - 1, decoding)
        self._record(before, seconds, steps * decoding, memory.mean_growth(self.step, steps))
        self.clock += seconds
        self.step += steps
        self.context += steps * decoding
        self.counts.steps += steps
        self._events()

    def _next_event(self) -> int:
        """The step after which the next request ends or a window is full."""
        events = self.events
        while True:
            at, _, _, request, base = events[0]
            if request.finish_step >= 0 and request.base_step == base:
                return at
            heappop(events)

    def _record(
        self, before: tuple[float, ...], seconds: float, tokens: int, growth: tuple[float, float] | None = None
    ) -> None:
        """Means over some time: between its ends, but for blocks that are taken one by one (`growth`)."""
        memory, line = self.memory, self.line
        after = memory.level()
        used, stored = (before[0] + after[0]) / 2, (before[1] + after[1]) / 2
        if growth is not None:
            used, stored = before[0] + growth[0], stored + growth[1]
        handed = memory.used
        external = handed - after[0]
        if self.blocked and self.waiting:
            external += memory.capacity - handed
        running = len(self.running)
        line.add(
            self.clock, seconds,
            (
                used, stored, (before[2] + after[2]) / 2, (before[3] + after[3]) / 2, external, running,
                len(self.waiting), tokens,
            ),
        )  # fmt: skip
        line.peak_used = max(line.peak_used, handed)
        line.peak_running = max(line.peak_running, running)
