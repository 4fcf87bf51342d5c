"""What the package as it is now predicts from the samples of published receipts: no GPU is needed.

    python scripts/replay_receipts.py

A receipt of ``kvplan validate`` holds every raw sample. From those of its linear layers, attention and kernels between
them a calibration is made as the probe makes it, and the receipt's decode steps are predicted anew.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from kvplan.catalog import load_gpu, load_model
from kvplan.engines import get_engine
from kvplan.planning.calibration import from_data
from kvplan.planning.evaluate import evaluate, fit_length
from kvplan.planning.settings import FIT, resolve
from kvplan.planning.speed import decode
from kvplan.planning.speed.figures import Setup, setup
from kvplan.probe.fit import measured_line
from kvplan.probe.receipt import median, quantile
from kvplan.probe.session import MeasuredFigure
from kvplan.probe.shapes import product_shapes
from kvplan.probe.step_rows import MEMORY_SHARE, memory_share
from kvplan.spec.ffn import MoeFfn

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "validation"


class Replay(NamedTuple):
    """Relative misses of a receipt's steps that memory binds, as they were and as they are now."""

    model: str
    then: list[float]
    now: list[float]
    stated: list[float]
    """Now, before calibration."""
    short: list[float]
    """Now, of steps whose bytes are less than half of their time: mostly starts of kernels."""

    @property
    def middle(self) -> float:
        """The median of what is predicted now."""
        return quantile(self.now, 0.5)

    @property
    def most(self) -> float:
        """What nine in ten stay below."""
        return quantile(self.now, 0.9)


def calibration(receipt: dict[str, Any]) -> dict[str, Any]:
    """The receipt's calibration with the line of linear layers fitted anew to its samples."""
    made: dict[str, Any] = copy.deepcopy(receipt["calibration"])
    spec = load_model(receipt["inputs"]["model"])
    times = product_shapes(spec)
    routed = sum(
        layers
        for name, layers in spec.layer_counts.items()
        if any(isinstance(f, MoeFfn) for f in spec.blocks[name].ffns)
    )
    points, shares = [], []
    for row in receipt["rows"]:
        if (found := re.match(r"(linear layer|experts), ([\dx ]+)$", row["name"])) is None:
            continue
        shape = tuple(map(int, found[2].split(" x ")))
        size = 2
        for side in shape:
            size *= side
        seconds = median([size / rate for rate in row["samples"]])
        points.append((float(size), seconds))
        shares.append(seconds * (routed if found[1] == "experts" else times.get((shape[0], shape[1]), 1)))
    read = made["read_bytes_per_second"]
    line = measured_line(points, MeasuredFigure(read["value"], read["low"], read["high"], read["samples"]), shares)
    assert line is not None
    made["linear"]["16"] = {
        "bytes_per_second": line.bytes_per_second._asdict(), "latency_seconds": line.latency_seconds._asdict(),
        "worst_miss": line.worst_miss,
    }  # fmt: skip
    return made


def planned(receipt: dict[str, Any], *, calibrated: bool = True) -> Setup:
    """What steps are predicted from, on the GPU of the receipt; `calibrated` by its samples or as it is stated."""
    model, gpu = load_model(receipt["inputs"]["model"]), load_gpu(receipt["calibration"]["device"]["gpu"])
    engine = get_engine(receipt["inputs"]["engine"].split()[0])
    settings, _ = resolve(model, gpu, engine, {})
    if settings.max_model_len == FIT:
        settings = fit_length(model, gpu, engine, settings)
    made = setup(
        model, gpu, get_engine("generic"), evaluate(model, gpu, engine, settings),
        from_data(calibration(receipt)) if calibrated else None,
    )  # fmt: skip
    assert not isinstance(made, str), made
    return made


def replay(receipt: dict[str, Any]) -> Replay:
    """Every step of a receipt predicted again."""
    made, stated = planned(receipt), planned(receipt, calibrated=False)
    found = Replay(receipt["inputs"]["model"], [], [], [], [])
    ceiling = receipt["calibration"]["read_bytes_per_second"]["value"]
    for row in receipt["rows"]:
        if point := re.match(r"step, \S+ cache, (\d+) x (\d+)$", row["name"]):
            batch, context, took = int(point[1]), int(point[2]), row["measured"]
            miss, first = (
                abs(float(decode.step(rates.works, rates.rates, rates.layout, batch, context).seconds) / took - 1)
                for rates in (made, stated)
            )
            if memory_share(made, ceiling, batch, context, took) < MEMORY_SHARE:
                found.short.append(miss)
                continue
            found.then.append(abs(row["predicted"] / took - 1))
            found.now.append(miss)
            found.stated.append(first)
    return found


def receipts() -> dict[str, dict[str, Any]]:
    """Published receipts of whole steps by file name: of one GPU, in one process.

    Those named ``-attention`` were made before experts had rows of their own: nothing says what their products took.
    """
    paths = [*FOLDER.glob("h200-*.json"), *(FOLDER / "models").glob("*.json")]
    paths = [path for path in paths if not path.stem.endswith("-attention")]
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(paths)}


def main() -> int:
    """Print the misses of every receipt."""
    for name, receipt in receipts().items():
        found = replay(receipt)
        print(f"{name}: median {100 * quantile(found.then, 0.5):.1f} % then, {100 * found.middle:.1f} % now; "
              f"nine in ten {100 * found.most:.1f} %, over {len(found.now)} steps")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
