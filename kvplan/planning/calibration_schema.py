"""The calibration file as pydantic reads it: strict, no unknown keys, every figure above zero (latencies: or zero)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Key = Literal["16", "fp8", "int8", "fp4"]
Bits = Literal["16", "8", "4"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FigureFile(_Strict):
    """A value and what its samples span."""

    value: Positive
    low: Positive
    high: Positive
    samples: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError("low, value and high are not in order")
        return self

    @property
    def spread(self) -> float:
        return max(1 - self.low / self.value, self.high / self.value - 1)


class LatencyFile(FigureFile):
    """A figure of seconds; 0 where the line that fits best goes through the origin."""

    value: NotNegative
    low: NotNegative
    high: NotNegative


class LineFile(_Strict):
    """``seconds = bytes / bytes_per_second + latency_seconds`` over the shapes that were measured."""

    bytes_per_second: FigureFile
    latency_seconds: LatencyFile
    worst_miss: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class DeviceFile(_Strict):
    """The machine."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    kind: Literal["cuda", "rocm", "mps", "cpu"] | None = None
    gpu: str | None = None
    driver: str | None = None


class SoftwareFile(_Strict):
    """What measured."""

    kvplan: str
    torch: str | None = None
    triton: str | None = None


class ModelFile(_Strict):
    """Whose shapes the lines belong to: the model, and one layer's attention as a rank of the plan held it."""

    id: Annotated[str, Field(min_length=1)]
    query_heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    head_dim_v: Count | None = None


class CalibrationFile(_Strict):
    """The whole file."""

    schema_: Literal["kvplan.calibration/1"] = Field(alias="schema")
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    device: DeviceFile
    software: SoftwareFile
    model: ModelFile | None = None
    read_bytes_per_second: FigureFile | None = None
    matmul_flops: dict[Key, FigureFile] = {}
    linear: dict[Key, LineFile] = {}
    attention: dict[Bits, LineFile] = {}
    layer_seconds: FigureFile | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not (self.read_bytes_per_second or self.linear):
            raise ValueError("neither read_bytes_per_second nor linear: nothing says how fast memory is read")
        return self
