"""Static batching, the baseline before continuous batching: a batch is formed, padded, and ends as a whole.

When the replica is idle it takes the requests that wait, as many as the memory holds at the maximum length each.
Prompts are padded to the longest; steps go on until the longest output is done, and every answer is sent then.
"""

from __future__ import annotations

from collections import deque

from kvplan.simulate.recorder import Counts, Rows, Timeline
from kvplan.simulate.request import Request
from kvplan.simulate.scheduler import Limits
from kvplan.simulate.timing import StepTimer


class StaticReplica:
    """One replica that works batch by batch; used as `kvplan.simulate.scheduler.Replica` is.

    Args:
        slots: token slots of the pool.
    """

    def __init__(self, number: int, slots: int, timer: StepTimer, limits: Limits, rows: Rows) -> None:
        self.number, self.slots, self.timer, self.limits, self.rows = number, slots, timer, limits, rows
        self.memory = self
        self.paged = False
        self.capacity = slots
        self.evicted_blocks = 0
        self.clock = 0.0
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.line = Timeline()
        self.counts = Counts()
        self.load_tokens = 0
        self.most = min(limits.sequences, slots // limits.longest)

    def submit(self, request: Request) -> str | None:
        """Put a request at the end of the queue; a sentence where it can never run."""
        length = request.prompt + request.output
        if length > self.limits.longest:
            return f"{length:,} tokens are over max_model_len {self.limits.longest:,}"
        if not self.most or request.samples > 1:
            return "one request of max_model_len does not fit" if not self.most else "static batching has one sample"
        self.waiting.append(request)
        self.load_tokens += length
        self.rows.replica[request.index] = self.number
        return None

    def run(self, until: float) -> None:
        """Run whole batches until the clock reaches `until` or nothing waits."""
        while self.clock < until and self.waiting:
            self.clock = max(self.clock, self.waiting[0].arrival)
            if self.clock >= until and until != float("inf"):
                return
            batch: list[Request] = []
            while self.waiting and len(batch) < self.most and self.waiting[0].arrival <= self.clock:
                batch.append(self.waiting.popleft())
            self._batch(batch)

    def _batch(self, batch: list[Request]) -> None:
        count, prompt = len(batch), max(r.prompt for r in batch)
        steps = max(r.output for r in batch) - 1
        start = self.clock
        per_step = max(1, self.limits.tokens // prompt)
        seconds = 0.0
        for first in range(0, count, per_step):
            some = min(per_step, count - first)
            seconds += self._prefill(prompt, some)
        self._record(start, seconds, batch, 0, sum(r.prompt for r in batch) + count)
        self.clock += seconds
        for request in batch:
            self.rows.admitted[request.index], self.rows.first[request.index] = start, self.clock
        if steps:
            taken = self.timer.decodes(count, count * (prompt + 1), steps)
            self._record(self.clock, taken, batch, steps, sum(r.output for r in batch) - count)
            self.clock += taken
        for request in batch:
            self.rows.finish[request.index] = self.clock
            self.rows.count()
            self.load_tokens -= request.prompt + request.output
        self.counts.steps += steps + -(-count // per_step)

    def _prefill(self, prompt: int, count: int) -> float:
        """Seconds of `count` padded prompts, in chunks where one alone is over the step's budget."""
        total, start = 0.0, 0
        while start < prompt:
            end = min(prompt, start + max(1, self.limits.tokens // count))
            total += self.timer.mixed(0, 0.0, [(start, end)] * count, count if end == prompt else 0)
            start = end
        return total

    def _record(self, start: float, seconds: float, batch: list[Request], steps: int, tokens: int) -> None:
        """Means over a phase: outputs grow step by step and stay until the batch ends."""
        used = len(batch) * self.limits.longest
        stored = later = 0.0
        for request in batch:
            grown = request.output - 1
            mean = grown - grown * (grown + 1) / 2 / steps if steps else 0.0
            stored += request.prompt + mean
            later += grown - mean
        self.line.add(start, seconds, (used, stored, later, 0, 0, len(batch), len(self.waiting), tokens))
        self.line.peak_used = max(self.line.peak_used, used)
        self.line.peak_running = max(self.line.peak_running, len(batch))
