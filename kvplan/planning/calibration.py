"""Measured rates of one machine, read from a calibration file (schema ``kvplan.calibration/1``).

``docs/speed.md`` documents the file. Every figure is a value with the bounds that its samples span; what
the file leaves out stays as stated. pydantic is loaded when a file is read, never before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import InputError, KvplanError, SpecError, printable

if TYPE_CHECKING:
    from kvplan.planning.calibration_schema import CalibrationFile, LineFile, ModelFile
    from kvplan.spec.model import ModelSpec

SCHEMA = "kvplan.calibration/1"
FLAG = "--calibration"


class Line(NamedTuple):
    """``seconds = bytes / bytes_per_second + seconds``, fitted over several shapes of one format."""

    bytes_per_second: float
    seconds: float
    worst_miss: float
    """Largest relative miss of the line over its shapes."""


class Heads(NamedTuple):
    """The attention of one layer as one rank holds it."""

    query_heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int


class Calibration(NamedTuple):
    """What one machine reached."""

    gpu: str | None
    """Catalog id of the device that was measured."""
    device: str
    """The name its driver prints."""
    kind: str | None
    """``cuda``, ``rocm``, ``mps`` or ``cpu``; None: the file does not say."""
    driver: str | None
    torch: str | None
    date: str
    read_bandwidth: float | None
    """Bytes a second of a plain read kernel in a CUDA graph."""
    matmul: dict[str, float]
    """``16``, ``fp8``, ``int8``, ``fp4`` -> FLOPs a second at the plateau."""
    linear: dict[str, Line]
    """The same keys -> the line of a linear layer below the crossing."""
    attention: dict[str, Line]
    """Bits of the cache (``16``, ``8``, ``4``) -> the line of decode attention."""
    layer_seconds: float | None
    """Per layer, besides matrix and attention kernels."""
    spread: float
    """Relative distance of the bounds: the largest spread or miss among the figures used."""
    below: float
    """The same below the figures alone: less than 1, since samples are above zero."""
    path: str
    spans: dict[str, tuple[float, float]]
    """``read``, ``layer``, ``matmul 16``, ``attention 8`` and ``attention 8 latency`` -> the bounds of that figure."""
    model: str | None = None
    """Id of the model whose layers its lines were measured on; None: the file does not say."""
    heads: Heads | None = None
    """The attention of these lines."""

    @property
    def source(self) -> str:
        """Where the figures come from, in a few words."""
        software = ", ".join(
            filter(None, (self.driver and f"driver {self.driver}", self.torch and f"torch {self.torch}"))
        )
        where = f" in {self.path}" if self.path else ""
        return printable(f"calibration of {self.device}, {self.date}{f' ({software})' if software else ''}{where}")

    def other_model(self, model: ModelSpec) -> str | None:
        """The model that the lines were measured on, where the file names one and it is not `model`."""
        own = {name.lower() for name in (model.id, model.repo, *model.aliases) if name}
        return None if self.model is None or self.model.lower() in own else printable(self.model)

    def note(self, model: ModelSpec) -> str | None:
        """What to say of a plan of `model` with lines of another model's shapes."""
        lines = [name for name, there in (("linear", self.linear), ("attention", self.attention)) if there]
        if not lines or (other := self.other_model(model)) is None:
            return None
        return (
            f"--calibration: its lines of {' and '.join(lines)} layers were measured on {other}, and belong to the "
            f"shapes of that model: {printable(model.id)} may be faster or slower"
        )

    def linear_line(self, key: str) -> Line | None:
        """The line for weights that run at rate `key`; weight-only formats share the 16-bit line."""
        return self.linear.get(key) or self.linear.get("16")

    def attention_line(self, bits: str) -> Line | None:
        """The line for a cache of so many bits."""
        return self.attention.get(bits)

    def matmul_flops(self, key: str) -> float | None:
        """The plateau of matrix products, if measured."""
        return self.matmul.get(key)

    def bounds(self, low: float, high: float) -> tuple[float, float]:
        """The engine's bounds (shares of predicted tokens a second), narrowed to what the device leaves open.

        Half of what separates single reports is the device; the engine's half stays. A sample of twice a figure or more
        says nothing of what lies below it.
        """
        return 1 - max(self.below, (1 - low) / 2), 1 + max(self.spread, (high - 1) / 2)


def load_calibration(path: str, gpu: str | None = None) -> Calibration:
    """Read a calibration file.

    Args:
        gpu: id of the GPU that is planned; a file of another one is refused.

    Raises:
        InputError: no such file, a file of another GPU or of a CPU, or one that does not say what was measured.
        SpecError: not a calibration; says which field.
    """
    from kvplan.sources.bounded import decode, read_bytes

    hint = f"a calibration is a JSON object with schema {SCHEMA}"
    try:
        text = decode(read_bytes(path, "", limit=1 << 20, what="calibration"), "", hint=hint)
    except KvplanError as error:
        reason = error.message.removeprefix("cannot be read: ")
        raise InputError(
            f"cannot read {printable(path)}: {reason}", where=FLAG, hint="give a file of kvplan validate --save"
        ) from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise SpecError("is not JSON", where=path, hint=hint) from None
    found = from_data(data, path)
    measured = found.gpu if found.gpu is not None or gpu is None else _named(found, gpu, path)
    if gpu is not None and measured is None and _catalogued(gpu):
        what = "which is a CPU" if found.kind == "cpu" else "which is no GPU of the catalog"
        written = f'write "gpu": "{gpu}" into its device, if it was this one'
        hint = "measure that one" if found.kind == "cpu" else written
        raise InputError(
            f"{printable(path)} was measured on {printable(found.device)}, {what}, not on {gpu}", where=FLAG, hint=hint
        )
    if gpu is not None and measured is not None and measured != gpu:
        raise InputError(
            f"{printable(path)} was measured on {measured}, not on {gpu}", where=FLAG,
            hint=f"plan with --gpu {measured}, or measure this one",
        )  # fmt: skip
    return found


def measured_on(path: str, gpus: Sequence[str]) -> tuple[Calibration, str | None]:
    """A calibration, and which of some GPUs it is of; None: of another one.

    Raises:
        InputError: it cannot be read, or nothing says which GPU was measured; SpecError: it is no calibration.
    """
    from kvplan.catalog import resolve_gpu_name

    found = load_calibration(path)
    name = found.gpu if found.gpu is not None or found.kind == "cpu" else resolve_gpu_name(found.device)
    if name is None and (found.kind == "cpu" or (len(gpus) == 1 and _catalogued(gpus[0]))):
        return found, None
    if name is None and len(gpus) > 1:
        raise InputError(
            f"{printable(path)} does not say which GPU was measured", where=FLAG, hint='write "gpu": ID into its device'
        )
    return found, name if name in gpus else gpus[0] if name is None and gpus else None


def _named(found: Calibration, gpu: str, path: str) -> str | None:
    """The catalog's GPU behind the name that the driver gave; None: a CPU, it knows none of that name, or not `gpu`.

    Raises:
        InputError: the name fits more than one.
    """
    from kvplan.catalog import resolve_gpu_name

    if found.kind == "cpu" or not _catalogued(gpu):
        return None
    try:
        return resolve_gpu_name(found.device)
    except InputError as error:
        raise InputError(
            f"{printable(path)} does not say which GPU was measured: {error.message}", where=FLAG,
            hint=f'write "gpu": "{gpu}" into its device, if it was this one',
        ) from None  # fmt: skip


def _catalogued(gpu: str) -> bool:
    """Whether an id is one of the catalog's; others are what somebody describes, and only they know what it is."""
    from kvplan.catalog import gpu_ids

    return gpu in gpu_ids()


def from_data(data: Any, path: str = "") -> Calibration:
    """A calibration from the object in its file.

    Raises:
        SpecError: not a calibration; says which field.
    """
    from pydantic import ValidationError

    from kvplan.planning.calibration_schema import CalibrationFile

    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise SpecError(f"is no {SCHEMA}", where=path, hint=_other_file(str(schema)))
    try:
        file = CalibrationFile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "file"
        raise SpecError(f"{field}: {first['msg'].lower()}", where=path, hint="docs/speed.md lists the fields") from None
    return _calibration(file, path)


def _other_file(schema: str) -> str:
    """What a file of another schema is taken for, and what to do about it."""
    if schema.startswith("kvplan.validation/"):
        return "it is a receipt: give the file of --save, or what the receipt has under its key calibration"
    if schema.startswith("kvplan.calibration/"):
        return f"it is {printable(schema)}, of another kvplan: measure again with kvplan validate --save FILE"
    return f'its first key is "schema": "{SCHEMA}"'


def _calibration(file: CalibrationFile, path: str) -> Calibration:
    """The figures of a file as the planner uses them."""
    figures = [f for f in (file.read_bytes_per_second, *file.matmul_flops.values()) if f]
    lines = [*file.linear.values(), *file.attention.values()]
    spans = {f"matmul {k}": (f.low, f.high) for k, f in file.matmul_flops.items()}
    for name, figure in (("read", file.read_bytes_per_second), ("layer", file.layer_seconds)):
        if figure is not None:
            spans[name] = (figure.low, figure.high)
    for name, group in (("linear", file.linear), ("attention", file.attention)):
        for key, line in group.items():
            rate, late = line.bytes_per_second, line.latency_seconds
            spans[f"{name} {key}"], spans[f"{name} {key} latency"] = (rate.low, rate.high), (late.low, late.high)
    missed = max([x.worst_miss for x in lines] + [0.02])
    spread = max([f.spread for f in figures] + [missed])
    below = max([1 - f.low / f.value for f in figures] + [missed])
    return Calibration(
        gpu=file.device.gpu, device=file.device.name, kind=file.device.kind, driver=file.device.driver,
        torch=file.software.torch, date=file.date,
        read_bandwidth=file.read_bytes_per_second.value if file.read_bytes_per_second else None,
        matmul={k: f.value for k, f in file.matmul_flops.items()},
        linear={k: _line(x) for k, x in file.linear.items()},
        attention={k: _line(x) for k, x in file.attention.items()},
        layer_seconds=file.layer_seconds.value if file.layer_seconds else None, spread=spread, below=below,
        path=path, spans=spans, model=file.model.id if file.model else None, heads=_heads(file.model),
    )  # fmt: skip


def _heads(model: ModelFile | None) -> Heads | None:
    """The attention that a file names; None where it does not name all of it."""
    if model is None:
        return None
    query, kv, dim, dim_v = model.query_heads, model.kv_heads, model.head_dim, model.head_dim_v
    return None if query is None or kv is None or dim is None or dim_v is None else Heads(query, kv, dim, dim_v)


def _line(line: LineFile) -> Line:
    return Line(line.bytes_per_second.value, line.latency_seconds.value, line.worst_miss)
