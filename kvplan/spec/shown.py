"""One ``repr`` for every spec: a generated one per class costs start-up time."""

from __future__ import annotations


class Shown:
    """Prints a dataclass as its constructor would be written, fields at their defaults left out."""

    def __repr__(self) -> str:
        fields = getattr(self, "__dataclass_fields__", {})
        said = [f"{n}={getattr(self, n)!r}" for n, f in fields.items() if getattr(self, n) != f.default]
        return f"{type(self).__name__}({', '.join(said)})"
