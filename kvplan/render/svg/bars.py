"""Lying bars, stacked of pieces, one below the other."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.render.svg.elements import element, shortened, text, width
from kvplan.render.svg.frame import EDGE, LINE, WIDTH, Drawn, Key, heading, legend
from kvplan.render.svg.parts import Bars, Piece, Stack
from kvplan.render.svg.style import LIGHT
from kvplan.render.svg.ticks import spoken

_THICK = 30
_GAP = 14


def draw(bars: Bars, key: str) -> Drawn:
    """The bars from the top of the sheet; `key` is not needed, since nothing here has an id."""
    del key
    colors = _colors(bars)
    head = heading(bars.title)
    named = [Key(label, color) for label, color in colors.items()]
    named += [Key(label, None) for label in dict.fromkeys(p.label for s in bars.stacks for p in s.pieces if p.spare)]
    marked = legend(named, head.bottom) if len(named) > 1 else Drawn([], head.bottom)
    y = marked.bottom + 10
    longest = max([_size(s) for s in bars.stacks] + [bars.total or 0]) or 1
    room = WIDTH - 2 * EDGE
    parts = [*head.markup, *marked.markup]
    if bars.total is not None and bars.total_label:
        y += LINE
    top = y
    for stack in bars.stacks:
        label = _label(stack, bars)
        parts.append(text(EDGE, y + 14, shortened(label, room)))
        y += LINE
        parts += _stack(stack, bars, colors, y, room / longest)
        if bars.total is not None:
            x = EDGE + bars.total * room / longest
            parts.append(element("line", x1=x, y1=y - 4, x2=x, y2=y + _THICK + 4, class_="end"))
        y += _THICK + _GAP
    if bars.total is not None:
        x = EDGE + bars.total * room / longest
        anchor = "end" if x > WIDTH / 2 else None
        parts.append(text(x, top - 10, shortened(bars.total_label, room), anchor=anchor, class_="ends"))
    return Drawn(parts, y)


def _size(stack: Stack) -> float:
    return sum(max(p.value, 0) for p in stack.pieces)


def _colors(bars: Bars) -> dict[str, int]:
    """Label -> colour, by first appearance; a single label for all bars takes the first colour."""
    found: dict[str, int] = {}
    for stack in bars.stacks:
        for piece in stack.pieces:
            if not piece.spare:
                found.setdefault(piece.label, len(found) % len(LIGHT))
    return found


def _label(stack: Stack, bars: Bars) -> str:
    end = stack.text or spoken(bars.unit, _size(stack))
    return f"{stack.label}: {end}" if stack.label else end


def _stack(stack: Stack, bars: Bars, colors: dict[str, int], y: float, scale: float) -> Iterator[str]:
    x = float(EDGE)
    for piece in stack.pieces:
        long = max(piece.value, 0) * scale
        if long <= 0:
            continue
        shade = "spare" if piece.spare else f"f{colors[piece.label]}"
        yield element("rect", x=x, y=y, width=max(long, 1), height=_THICK, class_=f"{shade} gap")
        words = _inside(piece, bars, long)
        if words:
            yield text(x + long / 2, y + _THICK / 2 + 6, words, anchor="middle",
                       class_="in on-spare" if piece.spare else "in")  # fmt: skip
        x += long


def _inside(piece: Piece, bars: Bars, room: float) -> str:
    """What of a piece's label and value has room in it."""
    value = piece.text or spoken(bars.unit, piece.value)
    for words in (f"{piece.label} {value}", value, piece.label):
        if words and len(bars.stacks[0].pieces) > 1 and width(words) * 1.06 + 8 <= room:
            return words
    return ""
