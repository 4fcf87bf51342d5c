"""The receipt of a validation: predicted beside measured, section by section."""

from __future__ import annotations

from typing import Any

from kvplan.render.grid import Column, Document, Grid, KeyValues, Notes, Part, Title
from kvplan.units import gib

Plain = dict[str, Any]

HEADINGS = {
    "device": "Device", "memory": "Memory", "fill": "The whole card", "blocks": "Blocks", "bandwidth": "Bandwidth",
    "attention": "Decode attention", "decode": "Decode steps", "prefill": "Prefill", "correctness": "Correctness",
    "distributed": "Several GPUs", "drift": "Drift",
}  # fmt: skip


def validation_report(plain: Plain) -> Document:
    """The document of one receipt (the object that ``validate --json`` prints)."""
    parts: list[Part] = [_title(plain), _verdict(plain), _device(plain)]
    by_section: dict[str, list[Plain]] = {}
    for row in plain["rows"]:
        by_section.setdefault(row["section"], []).append(row)
    for section, rows in by_section.items():
        parts.append(_grid(HEADINGS.get(section, section.capitalize()), rows))
        if section == "blocks" and "blocks" in plain["exhibits"]:
            parts.append(_tables(plain["exhibits"]["blocks"]))
    if off := [row for row in plain["rows"] if row["pass"] is False]:
        parts.append(Notes([_sentence(row) for row in off], title="Off"))
    return parts


def _title(plain: Plain) -> Title:
    inputs, software = plain["inputs"], plain["software"]
    detail = [inputs["engine"], f"torch {software['torch']}"]
    if software["triton"]:
        detail.append(f"Triton {software['triton']}")
    if software["driver"]:
        detail.append(f"driver {software['driver']}")
    if threads := software.get("threads"):
        detail.append(f"{threads} thread{'s' if threads != 1 else ''}")
    return Title(f"{inputs['model']} on {plain['device']['name']}", ", ".join([*detail, plain["date"]]))


def _verdict(plain: Plain) -> KeyValues:
    verdict = plain["verdict"]
    word = {True: "agrees", False: "OFF", None: "nothing judged"}[verdict["agrees"]]
    remark = f"{verdict['reason']}; {verdict['informative']} more rows inform"
    return KeyValues([("verdict", word, remark), ("took", f"{plain['seconds']:.1f} s", _limits(plain))])


def _limits(plain: Plain) -> str:
    inputs = plain["inputs"]
    return f"{'quick, ' if inputs['quick'] else ''}at most {gib(inputs['max_memory_bytes'])} held at once"


def _device(plain: Plain) -> KeyValues:
    device, known = plain["device"], plain["device"]["nvml"]
    rows: list[tuple[str, str, str]] = [
        ("memory", gib(device["total_bytes"]), f"{device['total_bytes']:,} B; {gib(device['free_bytes'])} free"),
    ]
    if device["theoretical_bandwidth"]:
        rows.append(
            ("bandwidth", f"{device['theoretical_bandwidth'] / 1e9:,.0f} GB/s", f"theory: {device['bandwidth_source']}")
        )
    rows.append(("catalog", device["gpu"] or "-", "" if device["gpu"] else "not in it"))
    if known is not None:
        rows += _nvml(known)
    return KeyValues(rows, title="This machine")


def _nvml(known: Plain) -> list[tuple[str, str, str]]:
    def state(value: bool | None) -> str:
        return "not said" if value is None else "on" if value else "off"

    processes = known.get("processes")  # of `gpus detect`; receipts, which are published, only count them
    others = known.get("other_processes") if processes is None else len(processes)
    beside = "processes not counted" if others is None else f"{others} process{'es' if others != 1 else ''}"
    reserved = "-" if known["reserved_bytes"] is None else gib(known["reserved_bytes"])
    memory = ("NVML", "-", "states no memory: the card uses the processor's")
    if known["total_bytes"] is not None:
        used = f"{reserved} reserved, {gib(known['used_bytes'])} used before the probe"
        memory = ("NVML", gib(known["total_bytes"]), used)
    return [
        memory,
        ("state", f"ECC {state(known['ecc'])}", f"MIG {state(known['mig'])}, {beside}"),
        (
            "clocks", f"{known['max_memory_clock_mhz'] or '-'} MHz memory",
            f"{known['max_sm_clock_mhz'] or '-'} MHz multiprocessors, {known['bus_width_bits'] or '-'} bit bus",
        ),
    ]  # fmt: skip


def _grid(title: str, rows: list[Plain]) -> Grid:
    columns = [
        Column("quantity", wrap=True), Column("predicted", right=True), Column("measured", right=True),
        Column("error", right=True), Column("verdict"), Column("tolerance", right=True, optional=True),
        Column("spread", right=True, optional=True), Column("how", wrap=True, optional=True),
    ]  # fmt: skip
    cells = [
        (
            row["name"] + (" (wide)" if _wide(row) else ""),
            amount(row["predicted"], row["unit"]), amount(row["measured"], row["unit"]),
            error_text(row), {True: "ok", False: "OFF", None: "-"}[row["pass"]], _tolerance(row), _spread(row),
            row["note"],
        )
        for row in rows
    ]  # fmt: skip
    return Grid(columns, cells, title=title)


def amount(value: float | None, unit: str) -> str:
    """One figure with its unit; bytes to the last one, so that equality can be seen."""
    if value is None:
        return "-"
    if unit == "bytes":
        return f"{value:,.0f} B"
    if unit == "bytes/s":
        return f"{value / 1e12:.3f} TB/s" if value >= 1e12 else f"{value / 1e9:.2f} GB/s"
    if unit == "flop/s":
        return f"{value / 1e12:,.4g} TFLOP/s"
    if unit == "s":
        return f"{value * 1e6:,.4g} us" if value < 1e-3 else f"{value * 1e3:,.4g} ms" if value < 1 else f"{value:.3f} s"
    if unit == "count":
        return f"{value:,.0f}"
    return f"{value:.4g}"


def error_text(row: Plain) -> str:
    """How far the measured figure lies from the predicted one, for people."""
    error = row["error"]
    if error is None:
        return "-"
    if row["sense"] == "at_most" and error <= 0:
        return "below"
    return "0" if error == 0 else f"{error:+.2%}" if abs(error) >= 5e-5 else f"{error:+.0e}"


def _tolerance(row: Plain) -> str:
    tolerance = row["tolerance"]
    if tolerance is None:
        return "-"
    sign = {"equal": "", "at_least": "-", "at_most": "+"}[row["sense"]]
    if tolerance == 0:
        return "exact" if row["sense"] == "equal" else "bound"
    return f"{sign}{tolerance:.3g}"


def _spread(row: Plain) -> str:
    spread = row["spread"]
    return "-" if spread is None else f"{spread:.1%}" + (" wide" if _wide(row) else "")


def _wide(row: Plain) -> bool:
    """Whether the samples lie too far apart to say much."""
    return row["spread"] is not None and row["spread"] > 0.1


def _tables(shown: Plain) -> Grid:
    """The physical blocks of each sequence, before and after sharing."""
    columns = [Column("sequence", right=True), Column("tokens", right=True), Column("blocks apart"),
               Column("prefix shared", optional=True), Column("after each went its own way")]  # fmt: skip
    rows = [
        (str(i), f"{tokens:,}", *(" ".join(map(str, shown[key][i])) for key in ("separate", "shared", "diverged")))
        for i, tokens in enumerate(shown["lengths"])
    ]
    note = f"blocks of {shown['block_size']} tokens; the first {shown['prefix']} tokens are the same in all"
    return Grid(columns, rows, title="Block tables", note=note)


def _sentence(row: Plain) -> str:
    measured, predicted = amount(row["measured"], row["unit"]), amount(row["predicted"], row["unit"])
    note = f" ({row['note']})" if row["note"] else ""
    return f"{row['section']}, {row['name']}: {measured} measured, {predicted} predicted{note}"


def inventory_report(plain: Plain) -> Document:
    """The devices of a machine (the object that ``gpus detect --json`` prints): three views side by side."""
    parts: list[Part] = []
    for device in plain["devices"]:
        parts.append(Title(device["name"], device["gpu"] or "not in the catalog"))
        columns = [
            Column("fact"),
            Column("NVML", right=True),
            Column("torch", right=True),
            Column("catalog", right=True),
        ]
        parts.append(Grid(columns, _views(device)))
        known = device["nvml"]
        if known is not None:
            parts.append(KeyValues(_nvml(known), title="Driver"))
        if device["differences"]:
            parts.append(Notes(device["differences"], title="Differences"))
    return parts


def _views(device: Plain) -> list[tuple[str, ...]]:
    known, torch, catalog = device["nvml"] or {}, device["torch"] or {}, device["catalog"] or {}

    def size(view: Plain, key: str) -> str:
        return amount(view.get(key), "bytes")

    def rate(view: Plain, key: str) -> str:
        value = view.get(key)
        return f"{value / 1e9:,.0f} GB/s" if value else "-"

    def text(view: Plain, key: str) -> str:
        return str(view.get(key) or "-")

    reserved, total = known.get("reserved_bytes"), known.get("total_bytes")
    less = amount(total - reserved, "bytes") if total and reserved is not None else "-"
    return [
        ("memory in total", size(known, "total_bytes"), "-", size(catalog, "nvml_total_bytes")),
        ("less reserved", less, size(torch, "total_bytes"), size(catalog, "torch_total_bytes")),
        ("free", size(known, "free_bytes"), size(torch, "free_bytes"), "-"),
        (
            "bandwidth", rate(known, "theoretical_bandwidth"), rate(torch, "theoretical_bandwidth"),
            rate(catalog, "bandwidth_bytes_per_second"),
        ),
        ("compute capability", *(text(view, "compute_capability") for view in (known, torch, catalog))),
        ("multiprocessors", "-", text(torch, "multiprocessors"), text(catalog, "multiprocessors")),
        ("version", f"driver {known['driver']}" if known else "-", text(torch, "version"), "-"),
    ]  # fmt: skip
