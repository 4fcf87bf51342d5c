"""``kvplan gpus``: the accelerators of the catalog, and what is known of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from kvplan.catalog import gpu_ids, load_gpu
from kvplan.cli import output
from kvplan.cli.app import SETTINGS, Group, Verb
from kvplan.errors import UnknownNameError
from kvplan.units import GB, gib

if TYPE_CHECKING:
    from kvplan.render.grid import Document
    from kvplan.spec.gpu import GpuSpec

SCHEMA = "kvplan.gpus/1"

app = typer.Typer(cls=Group, **SETTINGS)


@app.callback()
def gpus() -> None:
    """The accelerators of the catalog. Rates are dense and per accelerator."""


@app.command("list", cls=Verb)
def list_gpus(
    ctx: typer.Context,
    text: str | None = typer.Argument(None, metavar="[TEXT]", help="only accelerators with this in id, name or alias"),
    vendor: str | None = typer.Option(None, "--vendor", metavar="NAME", help="only this vendor's (nvidia, amd, ...)"),
) -> None:
    """One line per accelerator: the memory a process sees, bandwidth, dense compute."""
    found = [load_gpu(gpu) for gpu in gpu_ids()]
    if vendor is not None:
        vendors = sorted({gpu.vendor for gpu in found})
        if vendor.lower() not in vendors:
            raise UnknownNameError("vendor", vendor, vendors, where="--vendor", more=f"known: {', '.join(vendors)}")
        found = [gpu for gpu in found if gpu.vendor == vendor.lower()]
    if text is not None:
        found = [gpu for gpu in found if _matches(gpu, text)]
        if not found:
            raise UnknownNameError("GPU", text, gpu_ids(), more="`kvplan gpus list` shows all")
    output.of(ctx).emit(lambda: _list(found), {"schema": SCHEMA, "gpus": [payload(gpu) for gpu in found]})


@app.command("show", cls=Verb)
def show_gpu(
    ctx: typer.Context,
    name: str = typer.Argument(metavar="NAME", help="an id, an alias, the name its driver prints, or a YAML file"),
) -> None:
    """Everything the catalog knows of one accelerator, with its sources."""
    from kvplan.sources import find_gpu

    gpu = find_gpu(name)
    output.of(ctx).emit(lambda: _sheet(gpu), {"schema": SCHEMA, "gpus": [payload(gpu)]})


@app.command("detect", cls=Verb)
def detect_gpus(ctx: typer.Context) -> None:
    """The GPUs of this machine as driver, torch and catalog see them, and where the three differ."""
    from kvplan.probe.inventory import inventory

    devices, remarks = inventory()
    plain = {"schema": SCHEMA, "devices": devices, "remarks": remarks}
    output.of(ctx).emit(lambda: _found(plain), plain, warnings=remarks)


def _found(plain: dict[str, Any]) -> Document:
    from kvplan.render.validation import inventory_report

    return inventory_report(plain)


@app.command("lint", cls=Verb)
def lint_gpus(
    ctx: typer.Context,
    paths: list[str] = typer.Argument(metavar="PATH...", help="accelerator files, or folders of them"),
) -> int:
    """Check accelerator files for all that is wrong or odd; exit status 1 when one of them has an error."""
    from kvplan.cli.lint import lint
    from kvplan.sources.yaml_file import lint_gpu_file

    return lint(ctx, SCHEMA, paths, lint_gpu_file)


def payload(gpu: GpuSpec) -> dict[str, Any]:
    """The JSON object of one accelerator: every field of its spec, and what follows from them."""
    plain: dict[str, Any] = {name: _plain(getattr(gpu, name)) for name in gpu.__dataclass_fields__}
    basis, source = gpu.device_bytes_basis
    return {**plain, "device_bytes": gpu.device_bytes, "device_bytes_basis": basis, "device_bytes_source": source}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return value


def _matches(gpu: GpuSpec, text: str) -> bool:
    key = text.lower()
    return any(key in name.lower() for name in (gpu.id, gpu.name, gpu.architecture, *gpu.aliases))


def _tera(value: int | None) -> str:
    """FLOP/s in TFLOP/s, three or four digits."""
    return "" if value is None else f"{value / 10**12:,.4g}"


def _giga(value: int | None) -> str:
    """Bytes per second in GB/s."""
    return "" if value is None else f"{value / GB:,.0f}"


def _list(found: list[GpuSpec]) -> Document:
    from kvplan.render.grid import Column, Grid

    columns = (
        Column("id"),
        Column("memory GiB", right=True),
        Column("basis"),
        Column("GB/s", right=True),
        Column("16-bit TFLOP/s", right=True),
        Column("fp8 TFLOP/s", right=True, optional=True),
        Column("TDP W", right=True, optional=True),
        Column("name", optional=True),
        Column("architecture", optional=True),
    )
    rows = [
        (
            gpu.id,
            gib(gpu.device_bytes).removesuffix(" GiB"),
            gpu.device_bytes_basis[0],
            _giga(gpu.bandwidth_bytes_per_second),
            _tera(gpu.bf16_flops or gpu.fp16_flops),
            _tera(gpu.fp8_flops),
            f"{gpu.tdp_watts:,}" if gpu.tdp_watts else "",
            gpu.name,
            gpu.architecture,
        )
        for gpu in found
    ]
    return [
        Grid(
            columns,
            rows,
            note="memory: measured is what torch prints; modelled is the driver's total or the datasheet's",
        )
    ]


def _sheet(gpu: GpuSpec) -> Document:
    from kvplan.render.grid import Grid, KeyValues, Notes, Title

    basis, source = gpu.device_bytes_basis
    memory = [
        (
            "a process sees",
            gib(gpu.device_bytes),
            f"{gpu.device_bytes:,} B, {basis}" + (f": {source}" if basis == "modelled" else ""),
        ),
        *_total("torch total", gpu.torch_total_bytes, gpu.torch_total_source),
        *_total("driver total", gpu.nvml_total_bytes, gpu.nvml_total_source),
        ("datasheet", f"{gpu.datasheet_gb:g} GB", "the vendor's own GB"),
        ("bandwidth", f"{_giga(gpu.bandwidth_bytes_per_second)} GB/s", "datasheet"),
    ]
    if gpu.unified_memory:
        memory.append(("unified", "yes", "shared with the CPU"))
    rates = [
        ("bf16", gpu.bf16_flops),
        ("fp16", gpu.fp16_flops),
        ("fp16, fp16 accumulation", gpu.fp16_accumulate_flops),
        ("fp8", gpu.fp8_flops),
        ("fp4", gpu.fp4_flops),
        ("int8", gpu.int8_ops),
    ]
    compute = [(name, f"{_tera(value)} {'TOP/s' if name == 'int8' else 'TFLOP/s'}") for name, value in rates if value]
    parts: list[Title | KeyValues | Grid | Notes] = [
        Title(gpu.id, gpu.name),
        KeyValues(_identity(gpu)),
        KeyValues(memory, title="Memory"),
    ]
    if compute:
        parts.append(KeyValues(compute, title="Dense compute"))
    if gpu.notes:
        parts.append(Notes(gpu.notes, title="Notes"))
    if gpu.source:
        parts.append(Notes(gpu.source, title="Sources"))
    return parts


def _total(label: str, value: int | None, source: str | None) -> list[tuple[str, str, str]]:
    return [] if value is None else [(label, gib(value), f"{value:,} B" + (f"; {source}" if source else ""))]


def _identity(gpu: GpuSpec) -> list[tuple[str, str]]:
    rows = [("vendor", gpu.vendor), ("architecture", gpu.architecture)]
    if gpu.compute_capability:
        rows.append(("compute capability", gpu.compute_capability))
    if gpu.sm_count:
        rows.append(("multiprocessors", str(gpu.sm_count)))
    if gpu.aliases:
        rows.append(("also known as", ", ".join(gpu.aliases)))
    if gpu.interconnect:
        speed = gpu.interconnect_bytes_per_second
        rows.append(("interconnect", gpu.interconnect + (f", {_giga(speed)} GB/s both ways" if speed else "")))
    if gpu.interconnect_note:
        rows.append(("interconnect note", gpu.interconnect_note))
    if gpu.tdp_watts:
        rows.append(("TDP", f"{gpu.tdp_watts:,} W"))
    if gpu.price:
        low, high = gpu.price.low_usd_per_hour, gpu.price.high_usd_per_hour
        shown = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        rows.append(("price", f"{shown} USD an hour ({gpu.price.source}, {gpu.price.date})"))
    if gpu.confidence:
        rows.append(("confidence", gpu.confidence))
    return rows
