"""Sweeps the configurations of the attention kernels on this machine's GPU and prints the best ones of each shape.

    python benchmarks/probe_tune.py [OUT.json]

`kvplan.probe.kernels.choose` tries the configurations that this found to be best on one H200. They are compiled and
checked on ragged lengths by many processes first: Triton keeps what it compiled on disk.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import torch

from kvplan.probe import timing
from kvplan.probe.device import detect
from kvplan.probe.kernels import choose, launch, reference, store
from kvplan.probe.kernels.launch import Config
from kvplan.probe.kernels.store import HeadShape
from kvplan.probe.receipt import median

GQA = HeadShape(32, 8, 128, 128)
LATENT = (HeadShape(16, 1, 576, 512, True, 192), HeadShape(128, 1, 576, 512, True, 192))
GRID = ((64, 4096), (256, 1024), (8, 8192), (1, 32768))
FORMATS = ("bf16", "fp8_e4m3", "int8_per_token_head", "int4_g32")
LENGTHS = (777, 1, 2048, 130)
PER_SM = (2, 4, 6, 8, 12)

Job = tuple[str, HeadShape, Config]


def jobs() -> Iterator[Job]:
    """Everything that is tried."""
    for fmt, columns, warps, stages in itertools.product(FORMATS, (False, True), (1, 2, 4), (2, 3, 5, 7)):
        for scale_v in (False, True) if fmt == "int4_g32" else (False,):
            yield fmt, GQA, Config(columns, 64, warps, stages, 4, scale_v)
        if columns and fmt in ("fp8_e4m3", "int8_per_token_head"):
            yield fmt, GQA, Config(columns, 64, warps, stages, 4, early=True)
    for shape, tile, warps, stages, block in itertools.product(LATENT, (32, 64), (4, 8), (2, 3), (16, 64)):
        if block <= shape.query_heads:
            yield "bf16", shape, Config(False, tile, warps, stages, 4, False, block)


def check(job: Job) -> float:
    """Worst error of one configuration over ragged lengths, unsplit and split; infinite where it does not run."""
    fmt, shape, config = job
    try:
        pool = store.allocate(shape, fmt, len(LENGTHS) * max(LENGTHS) // 64, 64, "cuda")
        store.fill_random(pool, 1)
        table = store.random_tables(pool, 1, len(LENGTHS), max(LENGTHS))[0]
        lens = torch.tensor(LENGTHS, dtype=torch.int32, device="cuda")
        q = torch.randn(len(LENGTHS), shape.query_heads, shape.head_dim, device="cuda").bfloat16()
        truth = reference.truth(q, pool, table, lens)
        errors = []
        for slots in (1, 264):
            out = torch.full((len(LENGTHS), shape.query_heads, shape.head_dim_v), math.nan, device="cuda").bfloat16()
            launch.prepare(q, pool, lens, out, config, longest=max(LENGTHS), slots=slots)(table)
            errors.append(reference.worst_error(out, truth))
        return math.inf if any(map(math.isnan, errors)) else max(errors)
    except Exception as error:
        print("cannot run", fmt, config, type(error).__name__, flush=True)
        return math.inf


def main() -> None:
    tried = list(jobs())
    with multiprocessing.get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 1)) as workers:
        errors = workers.map(check, tried, chunksize=1)
    device, results = detect("cuda"), []
    for (fmt, shape), group in itertools.groupby(zip(tried, errors, strict=True), key=lambda pair: pair[0][:2]):
        right = [job[2] for job, error in group if error <= choose.TOLERANCE]
        for batch, context in GRID:
            work = choose.workload(device, shape, fmt, batch, context, page=64, max_bytes=16 << 30)
            rows = []
            for config, per_sm in itertools.product(right, PER_SM):
                slots = per_sm * (device.multiprocessors or 1)
                run = launch.prepare(work.q, work.pool, work.lens, work.out, config, longest=context, slots=slots)
                seconds = timing.sample(
                    device, lambda w=work, r=run: list(map(r, w.tables)), samples=7, per=work.copies
                )
                rows.append((median(seconds), per_sm, config))
            for seconds, per_sm, config in sorted(rows)[:4]:
                rate = work.num_bytes / seconds / 1e12
                print(f"{fmt} {shape.query_heads} heads, {batch} x {context}: {seconds * 1e6:.1f} us, {rate:.2f} TB/s,",
                      f"{per_sm} a multiprocessor, {config}", flush=True)  # fmt: skip
            results += [dict(fmt=fmt, shape=shape, batch=batch, context=context, us=s * 1e6, per_sm=p, config=c)
                        for s, p, c in sorted(rows)]  # fmt: skip
            del work, run
            device.release()
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
