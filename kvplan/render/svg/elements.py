"""Markup: elements, escaping, numbers, and how wide a text is about."""

from __future__ import annotations

from kvplan.render.grid import clean, width_of

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})

FONT = 13
"""Height of a label in units of the drawing."""
NARROW_FONT = 18
"""The same where the drawing is shown at half its width; places for labels are laid out for this one."""
_EM = 0.56
"""Width of a letter as a share of its height, on average."""


def escape(text: str) -> str:
    """`text` as itself, in an element or in an attribute."""
    return clean(text).translate(_ESCAPES)


def number(value: float) -> str:
    """A coordinate with at most two decimals, the same on every machine."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def element(tag: str, *children: str, **attributes: object) -> str:
    """An element; ``class_`` and ``text_anchor`` stand for ``class`` and ``text-anchor``.

    Args:
        children: markup, already escaped.
        attributes: numbers, or text that is escaped here; None is left out.
    """
    names = (name.rstrip("_").replace("_", "-") for name in attributes)
    shown = "".join(
        f' {name}="{number(value) if isinstance(value, (int, float)) else escape(str(value))}"'
        for name, value in zip(names, attributes.values(), strict=True)
        if value is not None
    )
    return f"<{tag}{shown}>{''.join(children)}</{tag}>" if children else f"<{tag}{shown}/>"


def text(x: float, y: float, words: str, *, anchor: str | None = None, class_: str | None = None) -> str:
    """A label whose baseline is at `y`."""
    return element("text", escape(words), x=x, y=y, text_anchor=anchor, class_=class_)


def width(words: str) -> float:
    """About how wide `words` are at their largest (`NARROW_FONT`)."""
    return width_of(clean(words)) * NARROW_FONT * _EM


def lines(words: str, room: float) -> list[str]:
    """`words` broken into lines of about `room`; a word longer than that stands alone."""
    found: list[str] = []
    for word in clean(words).split(" "):
        if found and width(f"{found[-1]} {word}") <= room:
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def shortened(words: str, room: float) -> str:
    """`words`, or their beginning and an ellipsis where they are wider than `room`."""
    words = clean(words)
    while words and width(words) > room:
        words = words[:-2] + "…" if words.endswith("…") else words[:-1] + "…"
        if words == "…":
            break
    return words
