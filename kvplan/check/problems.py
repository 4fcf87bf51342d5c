"""What is wrong with a rule file: every mistake with its place, said together."""

from __future__ import annotations

from typing import NamedTuple

from kvplan.errors import KvplanError


class Place(NamedTuple):
    """Where something stands in a file."""

    file: str
    """As it is shown: relative to where the check was started."""
    line: int
    """From 1, as the column."""
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Problem(NamedTuple):
    """One mistake in a file."""

    place: Place
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class RuleFileError(KvplanError):
    """A rule file that cannot be used; `problems` holds everything that is wrong with it.

    As an error of one line it is the first of them.
    """

    def __init__(self, problems: list[Problem]) -> None:
        first = problems[0]
        more = f"and {len(problems) - 1:,} more" if len(problems) > 1 else ""
        hint = "; ".join(filter(None, (first.hint, more)))
        super().__init__(first.message, hint=hint or None, where=str(first.place))
        self.problems = problems


class Problems:
    """Collects mistakes, each once."""

    def __init__(self) -> None:
        self.found: dict[tuple[Place, str], Problem] = {}
        self.settled: list[tuple[Place, int]] = []
        """(start, characters) of texts that are known to be wrong: what follows from that is not said."""

    def add(self, place: Place, message: str, hint: str = "") -> None:
        for start, length in self.settled:
            if place[:2] == start[:2] and start.column <= place.column < start.column + length:
                return
        self.found.setdefault((place, message), Problem(place, message, hint))

    def error(self, place: Place, error: KvplanError, *, where: bool = True) -> None:
        """An error that something else raised, at the place that asked for it.

        Args:
            where: False leaves out what the error says about its own place.
        """
        self.add(place, str(error) if where else error.message, error.hint or "")

    def __bool__(self) -> bool:
        return bool(self.found)

    def settle(self) -> None:
        """Go on where nothing is wrong.

        Raises:
            RuleFileError: something is.
        """
        if self.found:
            raise RuleFileError(sorted(self.found.values()))
