"""One request on its way through a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.simulate.allocators.prefix import Mark


class Request:
    """What the scheduler and the memory keep about a request; tokens are of one of its `samples` sequences."""

    __slots__ = (
        "admitted", "apart", "arrival", "base_length", "base_step", "computed", "cursor", "emitted", "extra_blocks",
        "finish_step", "first", "forked", "holds", "index", "marks", "output", "parting", "place", "plan",
        "preemptions", "prompt", "registered", "samples", "spans", "stand", "stands", "swapped", "tail",
        "target", "tried",
    )  # fmt: skip

    def __init__(self, index: int, arrival: float, prompt: int, output: int, samples: int = 1) -> None:
        self.index = index
        self.arrival = arrival
        self.prompt = prompt
        self.output = output
        self.samples = samples
        self.spans: list[tuple[int, int]] = []
        """(key, whole spans) of the prompt, for the prefix cache."""
        self.tail = 0
        """Key under which the output's spans follow."""
        self.plan: list[tuple[int, int]] = []
        """`spans` up to `target`, output that is computed again included."""
        self.cursor = (0, 0)
        """(entry of `plan`, spans of it) that the next whole span belongs to."""
        self.holds: list[list[int]] = []
        """[key, spans] that this request holds in the prefix cache, in order."""
        self.marks: list[Mark] = []
        """Where its windows and states are kept for others when it ends."""
        self.stand = 0
        """Tokens up to which its windows read, or read, what others keep of `stands`."""
        self.stands: Mark | None = None
        """The mark that it went on from and has in its windows, with others."""
        self.parting = 0
        """Spans after which others that were here before go on differently; 0: none was met."""
        self.registered = 0
        """Spans in `holds`."""
        self.target = prompt
        """Tokens to compute before the next token comes out."""
        self.computed = 0
        self.emitted = 0
        self.base_step = 0
        """The step after which it decodes; it had `base_length` tokens then."""
        self.base_length = 0
        self.finish_step = -1
        self.extra_blocks = 0
        """Blocks of windows that a chunk of a prompt holds until the step is done."""
        self.forked = False
        """Whether its further samples have blocks of their own."""
        self.apart = False
        """Whether its samples share nothing: they came back from host memory."""
        self.place: tuple[list[int], int] | None = None
        """Where contiguous reservations begin, and their slots."""
        self.preemptions = 0
        self.swapped = False
        self.tried = False
        """Whether its first look-up in the prefix cache has been counted."""
        self.admitted = -1.0
        self.first = -1.0

    @property
    def final_tokens(self) -> int:
        """Tokens in the cache when the last one comes out, which is not cached itself."""
        return self.prompt + self.output - 1
