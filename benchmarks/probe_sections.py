"""Runs sections of the probe on this machine, prints their rows and writes the receipt.

python benchmarks/probe_sections.py MODEL SECTIONS [--quick] [--device cuda] [-o FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from kvplan.catalog import load_model
from kvplan.probe.device import detect
from kvplan.probe.run import Request, validate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("sections")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("-o", "--output")
    given = parser.parse_args()
    request = Request(
        load_model(given.model), given.engine, {}, detect(given.device), None, given.quick, False, True,
        tuple(given.sections.split(",")),
    )  # fmt: skip
    receipt = validate(request)
    for row in receipt.rows:
        figures = ["-" if x is None else f"{x:.4g}" for x in (row.predicted, row.measured, row.error, row.spread)]
        print(
            row.section,
            row.name,
            *figures,
            row.unit,
            {True: "ok", False: "OFF", None: ""}[row.passed],
            row.note,
            sep=" | ",
        )
    print(f"{receipt.seconds:.1f} s", *receipt.warnings)
    if given.output:
        with open(given.output, "w", encoding="utf-8") as file:
            json.dump(receipt.to_dict(), file, indent=1)


if __name__ == "__main__":
    main()
