"""What a device reaches under an engine: bandwidths, matrix rates, latencies; stated, or calibrated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.planning.speed import constants as stated
from kvplan.spec.arrays import smaller

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.planning.calibration import Calibration
    from kvplan.spec.formats import Format
    from kvplan.spec.gpu import GpuSpec


class Rates(NamedTuple):
    """What `decode` and `prefill` divide by. Seconds, bytes a second, FLOPs a second, per rank."""

    weight_bandwidth: float
    attention_bandwidth: float
    matmul_flops: float | None
    """None: the device's rate is not known."""
    attention_flops: float | None
    linear_seconds: float
    attention_seconds: float
    layer_seconds: float
    routing_seconds: float
    step_seconds: float
    link_bandwidth: float
    """Of large messages, over each link in one direction."""
    link_seconds: float
    """Before the first byte of a collective of large messages."""
    prefill_share: float
    prefill_cap: float | None
    """FLOPs a second that the engine's prefill kernels reach at most on this device."""
    softness: float
    low: float
    high: float
    prefill_low: float
    prefill_high: float
    source: str
    notes: tuple[str, ...] = ()
    weight_memory: float | None = None
    """What `weight_bandwidth` would be if nothing but the memory limited it; None: it is that."""
    attention_memory: float | None = None
    """The same of `attention_bandwidth`."""
    short_bandwidth: float | None = None
    """`link_bandwidth` of short messages; None: one line holds for all sizes."""
    short_seconds: float = 0.0
    index_share: float = 1.0
    """Seconds of a FLOP of index scores (sparse attention), as a share of one of attention at `attention_flops`."""

    def message_seconds(self, num_bytes: Any, collectives: Any = 1) -> Any:
        """Collectives that carry `num_bytes` (a number or an array) over each link, all by the faster protocol."""
        large = collectives * self.link_seconds + num_bytes / self.link_bandwidth
        if self.short_bandwidth is None:
            return large
        return smaller(collectives * self.short_seconds + num_bytes / self.short_bandwidth, large)

    @property
    def decode_flops(self) -> Any:
        """FLOPs a second of a step's matrix products, however many tokens it takes: the engine's kernels are those of
        prefill. None: the device's rate is not known."""
        if self.matmul_flops is None or self.prefill_cap is None:
            return self.matmul_flops
        return 1 / join(1 / self.matmul_flops, 1 / self.prefill_cap, self.softness)


def cache_bits(fmt: Format) -> str:
    """Which attention kernel reads a cache of this format: ``16``, ``8`` or ``4`` bits, the nearest above.

    A scale and a bias of 16 bits for 32 elements, the most that formats of a cache have, add one bit to 4 and two
    of 32 bits add two to 8.
    """
    bits = 8 * fmt.block_bytes / fmt.block_elements
    return "16" if bits > 10 else "8" if bits > 5 else "4"


def dense_flops(gpu: GpuSpec, key: str) -> tuple[float, str] | None:
    """(dense rate, the key it is for) of a device, falling back to 16 bits where it has no such units."""
    wide = gpu.bf16_flops or gpu.fp16_flops
    if key == "fp4" and gpu.fp4_flops:
        return gpu.fp4_flops, key
    if key in ("fp8", "fp4") and gpu.fp8_flops:
        return gpu.fp8_flops, "fp8"
    if key == "int8" and gpu.int8_ops:
        return gpu.int8_ops, key
    return (wide, "16") if wide else None


class _Device(NamedTuple):
    """A device without any engine: stated shares of its datasheet, or what was measured."""

    read: float
    attention: float
    matmul: float | None
    wide: float | None
    """The 16-bit plateau."""
    linear_seconds: float
    attention_seconds: float
    layer_seconds: float


def _device(gpu: GpuSpec, key: str, bits: str, calibration: Calibration | None) -> _Device:
    bandwidth = gpu.bandwidth_bytes_per_second or _measured_bandwidth(key, calibration)
    found, wide = dense_flops(gpu, key), dense_flops(gpu, "16")
    device = _Device(
        read=stated.READ_SHARE * bandwidth, attention=stated.ATTENTION_SHARE[bits] * bandwidth,
        matmul=found[0] * stated.MATMUL_SHARE[found[1]] if found else None,
        wide=wide[0] * stated.MATMUL_SHARE["16"] if wide else None, linear_seconds=stated.LINEAR_SECONDS,
        attention_seconds=stated.ATTENTION_SECONDS, layer_seconds=stated.LAYER_SECONDS,
    )  # fmt: skip
    if calibration is None:
        return device
    linear, attention = calibration.linear_line(key), calibration.attention_line(bits)
    if linear:
        device = device._replace(read=linear.bytes_per_second, linear_seconds=linear.seconds)
    elif calibration.read_bandwidth:
        device = device._replace(read=calibration.read_bandwidth)
    if attention:
        device = device._replace(attention=attention.bytes_per_second, attention_seconds=attention.seconds)
    if calibration.layer_seconds is not None:
        device = device._replace(layer_seconds=calibration.layer_seconds)
    return device._replace(
        matmul=calibration.matmul_flops(key) or device.matmul, wide=calibration.matmul_flops("16") or device.wide
    )


def _measured_bandwidth(key: str, calibration: Calibration | None) -> float:
    """The bandwidth of a device that nobody states, from what was measured; 0: nothing was."""
    if calibration is None:
        return 0.0
    line = calibration.linear_line(key)
    return (calibration.read_bandwidth or (line.bytes_per_second if line else 0.0)) / stated.READ_SHARE


def rates(
    gpu: GpuSpec, engine: str, weights: Format, cache: Format, *, version: str = "", flash: bool = True,
    eager: bool = False, calibration: Calibration | None = None, meeting: int = 2,
) -> Rates | None:  # fmt: skip
    """The rates of one rank; None where the device's memory bandwidth is not known.

    Args:
        version: of the engine, as asked for (a llama.cpp build: ``b2800``).
        flash: whether attention runs fused; without it llama.cpp reads the cache at a rate of its own.
        eager: no CUDA graphs.
        calibration: measured figures, which replace those of the device (not those of the engine).
        meeting: ranks that exchange messages (`ranks_that_meet`).
    """
    own = stated.engine_rates(engine, gpu.vendor, version)
    device = _device(gpu, weights.units, cache_bits(cache), calibration)
    if not device.read or not device.attention:
        return None
    weight = device.read * own.read_share
    multiprocessors = gpu.sm_count if gpu.vendor.lower() == "nvidia" else None
    caps = []
    if own.sm_bytes and multiprocessors:
        caps.append(own.sm_bytes * multiprocessors)
    if own.matvec_share and device.wide:
        flops = own.matvec_share * device.wide / stated.MATMUL_SHARE["16"]
        caps.append(flops / 2 * weights.block_bytes / weights.block_elements)
    for cap in caps:
        weight = 1 / join(1 / weight, 1 / cap, stated.SOFTNESS)
    attention = bare = device.attention * own.read_share
    if not flash and own.naive_bytes:
        attention = min(attention, own.naive_bytes)
    if not flash and own.naive_share and gpu.bandwidth_bytes_per_second:
        attention = min(attention, own.naive_share * gpu.bandwidth_bytes_per_second)
    matmul, measured = device.matmul, calibration is not None and calibration.matmul_flops("16") is not None
    if own.half_accumulate and gpu.fp16_accumulate_flops and weights.units == "16" and not measured:
        matmul = gpu.fp16_accumulate_flops * stated.MATMUL_SHARE["16"]
    link, short, notes = _link(gpu, meeting)
    scale = own.latency_scale * (stated.EAGER_SCALE if eager else 1)
    bounds, prefill = (own.low, own.high), (own.prefill_low, own.prefill_high)
    if calibration is not None:
        bounds, prefill = calibration.bounds(*bounds), calibration.bounds(*prefill)
    share = stated.ATTENTION_COMPUTE_SHARE / stated.MATMUL_SHARE["16"]
    wide, eight = dense_flops(gpu, "16"), gpu.fp8_flops if stated.INDEX_IN_8_BITS[engine] else None
    return Rates(
        weight_bandwidth=weight, attention_bandwidth=attention, matmul_flops=matmul,
        attention_flops=share * device.wide if device.wide else None,
        linear_seconds=device.linear_seconds * scale, attention_seconds=device.attention_seconds * scale,
        layer_seconds=device.layer_seconds * scale, routing_seconds=stated.ROUTING_SECONDS * scale,
        step_seconds=own.step_seconds, link_bandwidth=link[0], link_seconds=link[1], softness=stated.SOFTNESS,
        prefill_share=own.prefill_share,
        prefill_cap=own.sm_flops * multiprocessors if own.sm_flops and multiprocessors else None,
        weight_memory=device.read * own.read_share if caps else None,
        attention_memory=bare if attention < bare else None,
        short_bandwidth=short[0] if short else None, short_seconds=short[1] if short else 0.0,
        index_share=wide[0] / eight if wide and eight else 1.0,
        low=bounds[0], high=bounds[1], prefill_low=prefill[0], prefill_high=prefill[1], notes=notes,
        source=f"{calibration.source}; {own.source}" if calibration else own.source,
    )  # fmt: skip


def join(memory: Any, compute: Any, softness: float) -> Any:
    """Time of work that needs both: ``(memory^p + compute^p)^(1/p)``, never below the larger of the two."""
    if softness == 3:  # the usual one; products are many times faster than powers of arrays
        return (memory * memory * memory + compute * compute * compute) ** (1 / 3)
    return (memory**softness + compute**softness) ** (1 / softness)


def ranks_that_meet(settings: Settings) -> int:
    """Ranks of the largest group whose every layer ends in messages; the stages where nothing but hops is sent.

    Hops between stages of ranks that share matrices count on the link of those ranks: one message a step against two
    a layer.
    """
    ranks = settings.tensor_parallel_size
    if settings.enable_expert_parallel:
        ranks *= settings.data_parallel_size
    return ranks if ranks > 1 else settings.pipeline_parallel_size


def _link(gpu: GpuSpec, ranks: int) -> tuple[tuple[float, float], tuple[float, float] | None, tuple[str, ...]]:
    """((bytes a second in one direction, seconds of a collective), the same of short messages, notes)."""
    if gpu.interconnect_bytes_per_second is None:
        share, seconds = stated.LINKS["pcie"]
        return (stated.PCIE_4_X16 * share, seconds), None, ("link unknown: PCIe 4.0 x16 taken",)
    one_way, name, notes = gpu.interconnect_bytes_per_second / 2, gpu.interconnect or "", tuple[str, ...]()
    if gpu.interconnect_bridge and ranks > stated.BRIDGED:
        generation = (gpu.compute_capability or "").partition(".")[0]
        version, one_way = stated.PCIE_OF.get(generation, stated.PCIE_OF["8"])
        said = f"{name} bridges join pairs of {gpu.id}: among {ranks} of them messages take PCIe {version} x16"
        name, notes = "pcie", (said,)
    share, seconds = stated.LINKS.get(name, stated.OTHER_LINK)
    short = stated.SMALL_MESSAGES.get(name)
    return (one_way * share, seconds), (one_way * short[0], short[1]) if short else None, notes
