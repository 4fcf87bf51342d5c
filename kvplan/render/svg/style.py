"""Colours and type of every picture, as CSS: light, dark and print from one table.

The series colours are told apart by people with any common colour blindness, have a contrast of 3 or more on their
ground, and no picture rests on colour alone: lines differ in dash and points, bars have their legend in order.
Cells of a heat map go from dark blue to yellow, lighter all the way (the order of cividis).
"""

from __future__ import annotations

from kvplan.render.svg.elements import FONT, NARROW_FONT

LIGHT = ("#0072b2", "#c84e00", "#00805c", "#a23b8f", "#8a6a00", "#3f3f8f")
DARK = ("#5ab4f0", "#ff9a57", "#35c79b", "#e39ad0", "#e6c34d", "#b3b3ff")
DASHES = ("none", "7 4", "2 3", "9 3 2 3", "12 4", "4 2 1 2")
HEAT = (
    "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
)  # fmt: skip
"""From the least to the most (cividis, from Nunez, Anderton and Renslow, PLoS ONE 13(7), 2018)."""
_DARK_CELLS = 5
"""So many of them carry white text."""
_FAMILY = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'

_LIGHT = {"ground": "#ffffff", "ink": "#1a1c1f", "quiet": "#5a6068", "rule": "#d4d8dd", "spare": "#e4e7eb",
          "limit": "#b3001b"}  # fmt: skip
_DARK = {"ground": "#14171a", "ink": "#e8eaed", "quiet": "#a4abb3", "rule": "#3a4047", "spare": "#31373e",
         "limit": "#ff7b86"}  # fmt: skip


def _variables(colors: dict[str, str], series: tuple[str, ...]) -> str:
    named = [*colors.items(), *((f"c{i}", c) for i, c in enumerate(series))]
    return "".join(f"--{name}:{color};" for name, color in named)


def variables(root: str) -> str:
    """The colours as CSS variables of `root`: light, and dark where the reader's system is; print is light."""
    return (
        f"{root}{{color-scheme:light dark;{_variables(_LIGHT, LIGHT)}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{{root}{{{_variables(_DARK, DARK)}}}}}\n"
    )


def rules() -> str:
    """What the classes of the pictures look like."""
    series = "".join(
        f".p{i}{{stroke:var(--c{i});stroke-dasharray:{DASHES[i]}}}.f{i}{{fill:var(--c{i})}}" for i in range(len(LIGHT))
    )
    cells = "".join(
        f".h{i}{{fill:{color}}}.picture text.t{i}{{fill:{'#fff' if i < _DARK_CELLS else '#000'}}}"
        for i, color in enumerate(HEAT)
    )
    return (
        f".picture{{font-family:{_FAMILY};font-size:{FONT}px;print-color-adjust:exact;"
        f"-webkit-print-color-adjust:exact}}\n"
        ".picture text{fill:var(--ink);font-variant-numeric:tabular-nums}\n"
        ".picture .head{font-weight:600;font-size:1.12em}.picture .quiet{fill:var(--quiet)}"
        f".picture .foot,.picture .fit{{font-size:{FONT}px}}\n"
        ".picture .halo{paint-order:stroke;stroke:var(--ground);stroke-width:4px;stroke-linejoin:round}\n"
        ".picture .ground{fill:var(--ground)}.picture .rule{stroke:var(--rule);stroke-width:1}\n"
        ".picture .axis{stroke:var(--quiet);stroke-width:1}\n"
        ".picture .mark{stroke:var(--quiet);stroke-width:1.4;stroke-dasharray:5 4}\n"
        ".picture .end{stroke:var(--limit);stroke-width:1.8;stroke-dasharray:none}\n"
        ".picture text.ends{fill:var(--limit);font-weight:600}\n"
        ".picture .line{fill:none;stroke-width:2.2;stroke-linejoin:round}.picture .area{opacity:.22}\n"
        ".picture .spare{fill:var(--spare)}.picture .gap{stroke:var(--ground);stroke-width:1.5}\n"
        ".picture .spot{fill:var(--ground);stroke:var(--ink);stroke-width:2.2}\n"
        f"{series}{cells}.picture .none{{fill:var(--spare)}}\n"
        ".picture text.in{fill:var(--ground);font-weight:600}.picture text.in.on-spare{fill:var(--ink)}\n"
        f"@media screen and (max-width:560px){{.picture{{font-size:{NARROW_FONT}px}}}}\n"
    )
