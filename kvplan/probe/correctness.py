"""The cache changes no result: decoding with it beside computing everything anew, on random data.

Keys carry rotary positions; the cache is paged, read through a block table, and holds exactly the entries that the
planner counts (a window keeps its window, latent attention its row, a recurrence its state).
"""

from __future__ import annotations

import time
from dataclasses import replace
from math import log, sqrt
from typing import TYPE_CHECKING, Any

from kvplan.probe import extras
from kvplan.probe.layout import PROBE_FORMATS, LayerCache, layer_cache
from kvplan.probe.mixer_kinds import build_mixer
from kvplan.probe.mixers import Mixer
from kvplan.probe.quantise import expected_error, round_trip
from kvplan.probe.receipt import Row, median, row
from kvplan.spec.formats import get_format
from kvplan.units import human_bytes

if TYPE_CHECKING:
    from kvplan.probe.session import Session
    from kvplan.spec.kind import CacheKind

TOLERANCE = {"float32": 2e-5, "float64": 2e-12}
"""Largest difference of any element over the largest element, by precision: sums are taken in another order."""
PROOF_WINDOW, PROOF_RATIO = 48, 8
"""Entries of a window or chunk in the proof, which has to overflow for the proof to mean something, and tokens of a
compressed entry."""
_ROUND_TRIP_BYTES = 8 * 12
"""Of an element while its format is tried: float64 as drawn (of all lengths), stored, read back, and between."""
_FEW_ELEMENTS = 128
"""Of an output: its error over fewer says little of its format."""
QUANTISED_TOLERANCE = 0.5
"""How far the error of an output may exceed ``sqrt(2)`` of the format's own: it varies with the sequence."""


def measure(session: Session) -> list[Row]:
    """Equality, growth of work, and errors of formats."""
    if session.device.is_cuda:
        return _measure(session, session.device.torch_device)
    torch = extras.torch()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # operators this small only wait for one another on several cores
    try:
        return _measure(session, torch.device("cpu"))
    finally:
        torch.set_num_threads(threads)


def _measure(session: Session, device: Any) -> list[Row]:
    rows: list[Row] = []
    mixers = _mixers(session)
    for label, (layer, mixer) in zip(_labels(mixers), mixers, strict=True):
        session.say(f"correctness, {label}")
        built = build_mixer(shortened(mixer), session.seed, device)
        if built is None:
            note = (
                "keeps nothing between tokens: there is no cache to compare"
                if not (layer.streams or layer.states)
                else ("layers of this kind are allocated and counted, not run")
            )
            rows.append(row("correctness", f"{label}: not run", predicted=None, measured=None, unit="ratio", note=note))
        elif (why := _too_large(session, built)) is not None:
            session.lack(f"correctness, {label}: {why}")
            rows.append(row("correctness", f"{label}: not run", predicted=None, measured=None, unit="ratio", note=why))
        else:
            rows += _equal(label, built, session)
            if any(stream.role == "index" for stream in layer.streams):
                name, note = f"{label}: index not run", "its keys are allocated and counted; attention is over all"
                rows.append(row("correctness", name, predicted=None, measured=None, unit="ratio", note=note))
    plain = next(((x, m) for x, m in mixers if x.kind in ("full", "mla")), None)
    if plain is not None:
        rows += _growth(session, plain[1], device)
    return rows + _formats(session, device)


def _too_large(session: Session, mixer: Mixer) -> str | None:
    """Why a proof is not run within the limit; None: it is."""
    size = mixer.num_bytes + mixer.scores_bytes(mixer.proof_tokens(session.limits.quick))
    if size <= session.limits.max_bytes:
        return None
    return f"{human_bytes(size)} of weights and scores do not fit into --max-memory"


def _mixers(session: Session) -> list[tuple[LayerCache, CacheKind]]:
    """One mixer of each kind and of each set of streams, with what it keeps; some read what others keep."""
    found: dict[tuple[str, ...], tuple[LayerCache, CacheKind]] = {}
    for _, mixer in session.layout.spec.mixers():
        key = (mixer.kind, *(s.name for s in mixer.streams()))
        if key not in found:
            found[key] = (layer_cache(0, mixer, session.layout.formats), mixer)
    return list(found.values())


def _labels(mixers: list[tuple[LayerCache, CacheKind]]) -> list[str]:
    """The kind, and its streams where several of a kind differ in them."""
    kinds = [mixer.kind for _, mixer in mixers]
    return [
        f"{layer.kind} ({', '.join(s.name for s in layer.streams)})" if kinds.count(layer.kind) > 1 else layer.kind
        for layer, _ in mixers
    ]


def shortened(mixer: CacheKind) -> CacheKind:
    """The mixer with a window, entries and an encoder that a proof passes soon; what leaves a short window leaves a
    long one alike."""
    most = {"window": PROOF_WINDOW, "ratio": PROOF_RATIO, "encoder_tokens": PROOF_WINDOW}
    shorter = {name: limit for name, limit in most.items() if (getattr(mixer, name, None) or 0) > limit}
    return replace(mixer, **shorter) if shorter else mixer  # type: ignore[type-var]


def _equal(kind: str, mixer: Mixer, session: Session) -> list[Row]:
    torch = extras.torch()
    tokens = mixer.proof_tokens(session.limits.quick)
    rows = []
    for precision, bound in TOLERANCE.items():
        own = mixer.to(getattr(torch, precision))
        inputs = own.inputs(tokens, session.seed + 1)
        whole = own.recompute(inputs)
        steps = own.decode(inputs, session.layout.block_size)
        worst = float((whole - steps).abs().max() / whole.abs().max())
        rows.append(
            row(
                "correctness", f"{kind}, {precision}: cache against recomputation", predicted=bound, measured=worst,
                unit="ratio", tolerance=0.0, sense="at_most",
                note=f"largest difference over {tokens} steps of a layer; predicted is the bound",
            )
        )  # fmt: skip
    return rows


def _products(kind: CacheKind, tokens: int) -> int:
    """FLOPs of one token over all before it: the attention that runs here, without what an index scores or leaves."""
    reads = (read for read in kind.reads() if read.stream.role != "index")
    return sum(int(read.stream.entries(tokens)) * read.flops for read in reads)


def _growth(session: Session, kind: CacheKind, device: Any) -> list[Row]:
    """Work and time of one step at several lengths, with the cache and without."""
    session.say("correctness, growth of a step")
    mixer = build_mixer(kind, session.seed, device)
    if mixer is None:
        return []
    wanted = (512, 1024, 2048, 4096) if session.device.is_cuda and not session.limits.quick else (128, 256, 512)
    room = session.limits.max_bytes - mixer.num_bytes
    lengths = tuple(n for n in wanted if mixer.scores_bytes(n) <= room)
    if len(lengths) < len(wanted):
        session.lack(f"correctness, growth: {len(wanted) - len(lengths)} of {len(wanted)} lengths do not fit into "
                     "--max-memory")  # fmt: skip
    if len(lengths) < 2:
        return []
    mixer = mixer.to(extras.torch().float32)
    rows: list[Row] = []
    for name, exponent, step in (("with cache", 1, mixer.cached_step), ("without cache", 2, mixer.uncached_step)):
        counted = [_flops(step, n) for n in lengths]
        if exponent == 1:
            for n, flops in zip(lengths, counted, strict=True):
                rows.append(
                    row(
                        "correctness", f"work of a step at {n:,}, with cache", predicted=_products(kind, n),
                        measured=flops, unit="count", tolerance=0.0, note="FLOPs of attention in one layer, as counted",
                    )
                )  # fmt: skip
        rows.append(
            row(
                "correctness", f"work of a step {name}: exponent", predicted=exponent,
                measured=_exponent(lengths, counted), unit="ratio", tolerance=0.02,
                note=f"of the length, by counted FLOPs over {lengths[0]:,} to {lengths[-1]:,} tokens",
            )
        )  # fmt: skip
        seconds = [_seconds(session, step, n) for n in lengths]
        shown = ", ".join(f"{n:,}: {t * 1e6:,.0f} us" for n, t in zip(lengths, seconds, strict=True))
        rows.append(
            row(
                "correctness", f"time of a step {name}: exponent", predicted=exponent,
                measured=_exponent(lengths, seconds), unit="ratio", note=f"short steps are latency; {shown}",
            )
        )  # fmt: skip
    return rows


def _flops(step: Any, tokens: int) -> int:
    """FLOPs of the matrix products of a step, counted at their calls.

    torch's own counter does the same one level below, and takes two seconds to load what that needs.
    """
    from torch.overrides import TorchFunctionMode

    torch = extras.torch()
    products = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)

    class Counter(TorchFunctionMode):  # type: ignore[misc]  # torch has no types for it
        total = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func in products:
                self.total += 2 * out.numel() * args[0].shape[-1]
            return out

    run = step(tokens)
    with Counter() as counter:
        run()
    return int(counter.total)


def _seconds(session: Session, step: Any, tokens: int) -> float:
    run = step(tokens)
    run()
    samples = []
    for _ in range(3 if session.limits.quick else 7):
        session.device.synchronize()
        start = time.perf_counter()
        run()
        session.device.synchronize()
        samples.append(time.perf_counter() - start)
    return float(median(samples))


def _exponent(lengths: tuple[int, ...], values: list[float] | list[int]) -> float:
    """Slope of a straight line through the logarithms (least squares)."""
    xs, ys = [log(n) for n in lengths], [log(v) for v in values]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - mean_x) ** 2 for x in xs)


def _formats(session: Session, device: Any) -> list[Row]:
    """Error of stored numbers and of attention outputs, for every format that the probe can store."""
    layer = next((x for x in session.layout.layers if [s.name for s in x.streams[:2]] == ["k", "v"]), None)
    if layer is None or layer.query_heads is None:
        return []
    torch = extras.torch()
    key, value = layer.streams[0], layer.streams[1]
    heads, group = key.heads, layer.query_heads // key.heads
    generator = torch.Generator(device="cpu").manual_seed(session.seed + 2)
    width = heads * (key.head_dim + value.head_dim)
    most = int(session.limits.max_bytes // (_ROUND_TRIP_BYTES * width))
    lengths = tuple(min(n, most) for n in ((1, 77, 256) if session.limits.quick else (1, 777, 2048)))
    if most < 1:
        session.lack("correctness, errors of formats: not one token fits into --max-memory")
        return []
    rows: list[Row] = []
    many = heads * group * value.head_dim >= _FEW_ELEMENTS
    names = dict.fromkeys((*PROBE_FORMATS, session.layout.formats.k.name))
    draws = [
        tuple(
            torch.randn(shape, generator=generator, dtype=torch.float64).to(device)
            for shape in ((heads * group, key.head_dim), (n, heads, key.head_dim), (n, heads, value.head_dim))
        )
        for n in lengths
    ]
    for name in names:
        fmt = get_format(name, use="cache")
        own = expected_error(fmt, heads, key.head_dim)
        if own is None:
            continue
        session.say(f"correctness, error of {name}")
        worst, stored = 0.0, 0.0
        for q, k, v in draws:
            k_back, v_back = round_trip(fmt, k), round_trip(fmt, v)
            if k_back is None or v_back is None:
                break
            exact, found = _attend(q, k, v), _attend(q, k_back, v_back)
            worst = max(worst, float((found - exact).norm() / exact.norm()))
            stored = float((k_back - k).norm() / k.norm())  # the last is the longest
        else:
            rows.append(
                row(
                    "correctness", f"{name}: error of stored numbers", predicted=own, measured=stored, unit="ratio",
                    tolerance=0.1, note="root mean square over normal data; predicted from the grid's steps",
                )
            )  # fmt: skip
            rows.append(
                row(
                    "correctness", f"{name}: error of attention", predicted=sqrt(2) * own, measured=worst, unit="ratio",
                    tolerance=QUANTISED_TOLERANCE if many else None, sense="at_most",
                    note=f"worst of {len(lengths)} sequences against float64; K and V each add the format's own error"
                    + ("" if many else "; not judged: the output has few elements"),
                )
            )  # fmt: skip
    return rows


def _attend(q: Any, k: Any, v: Any) -> Any:
    """Attention of one query per head: ``[heads, d]`` over ``[tokens, kv_heads, d]``."""
    torch = extras.torch()
    kv_heads = k.shape[1]
    folded = q.unflatten(0, (kv_heads, -1))
    scores = torch.einsum("hgd,thd->hgt", folded, k) / sqrt(k.shape[-1])
    return torch.einsum("hgt,thd->hgd", scores.softmax(-1), v).flatten(0, 1)
