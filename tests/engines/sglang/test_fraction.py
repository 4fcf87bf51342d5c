"""The share of the device that SGLang's own function gave to weights and cache, 0.5.6 to 0.5.23.

``_handle_gpu_memory_settings`` of each release (``python/sglang/srt/server_args.py``, from 0.5.20 on
``python/sglang/srt/arg_groups/memory_hook.py``) was taken out of its module and run on random settings, with sizes of
cards on both sides of every class.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.sglang.fraction import chunk_default, reserved_mib, static_fraction

FILE = Path(__file__).parents[2] / "data" / "cases" / "sglang_fraction.json.xz"
CASES: dict[str, list[list[Any]]] = json.loads(lzma.decompress(FILE.read_bytes()))
"""Release -> rows of MiB of the card, tp, pp, chunk and running requests if given, ranks that attend for requests of
their own, whether attention is latent; then the chunk and the share."""


@pytest.mark.parametrize("version", CASES)
def test_chunk_and_share(version: str) -> None:
    assert len(CASES[version]) == 280
    for mib, tp, pp, asked, running, attn_dp, latent, chunk, share in CASES[version]:
        found = asked or chunk_default(mib, version)
        reserved = reserved_mib(
            mib, version=version, tp=tp, pp=pp, chunk=found, running=running, attn_dp=attn_dp, latent=latent
        )
        assert (found, static_fraction(mib, reserved)) == (chunk, share), (mib, tp, pp, asked, running, attn_dp)


def test_between_the_releases() -> None:
    """0.5.22 brought the limit: 0.5.21 has no such line."""
    given = {"tp": 1, "pp": 1, "chunk": 8192, "running": 8, "attn_dp": 1, "latent": False}
    found = [reserved_mib(46068, version=version, **given) for version in ("0.5.20", "0.5.21", "0.5.22", "0.5.23")]
    assert found == [found[0], found[0], found[0] - 2 * (32 - 8), found[0] - 2 * (32 - 8)]
