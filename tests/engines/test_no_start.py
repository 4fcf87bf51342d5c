"""Deployments that an engine cannot start whatever is asked for: no length, no share, no pool."""

from __future__ import annotations

import pytest

from kvplan import plan
from kvplan.errors import InputError, UnsupportedError
from kvplan.units import GIB


def test_a_length_of_the_models_own_that_it_does_not_have() -> None:
    """``-c 0``: mamba2-2.7b states no longest context."""
    with pytest.raises(InputError, match="does not say how long a context it takes"):
        plan("mamba2-2.7b", gpu="a100-sxm4-80gb", engine="llama.cpp", ctx_size=0)


def test_a_device_smaller_than_what_is_kept_back_is_refused() -> None:
    """The share that SGLang works out for it is below zero: a refusal, over which a search goes on."""
    with pytest.raises(UnsupportedError, match="more back for activations and graphs than this device has"):
        plan("llama-3.2-1b", gpu_memory=2 * GIB, gpu_bandwidth=10**11, engine="sglang")


def test_a_model_without_entries_has_no_pool_of_tokens() -> None:
    with pytest.raises(UnsupportedError, match=r"no layer of mamba2-2\.7b caches any"):
        plan("mamba2-2.7b", gpu="h100-sxm", engine="sglang", max_model_len=8192)
