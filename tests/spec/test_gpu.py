"""What an accelerator's description must say, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.errors import SpecError
from kvplan.planning.fit.candidates import lacks, runs_on
from kvplan.sources.yaml_file import load_gpu_file

FILE = """schema: kvplan.gpu/1
id: my-gpu-48gb
name: My GPU 48GB
vendor: {vendor}
architecture: ada
datasheet_gb: 48
bandwidth_bytes_per_second: 864000000000
compute_capability: "{capability}"
"""


def written(folder: Path, *, vendor: str = "nvidia", capability: str = "8.9") -> Path:
    path = folder / "my-gpu-48gb.yaml"
    path.write_text(FILE.format(vendor=vendor, capability=capability))
    return path


@pytest.mark.parametrize("wrong", ["hopper", "89", "8.", ".9", "8.9.0", "8.90", "sm_89", "nan", "\u0668.9", ""])
def test_a_capability_that_is_none(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(SpecError, match="compute_capability") as caught:
        load_gpu_file(written(tmp_path, capability=wrong))
    assert str(caught.value).count("\n") == 0
    assert (caught.value.where or "").endswith(":8")


@pytest.mark.parametrize("right", ["8.9", "12.0"])
def test_a_capability(tmp_path: Path, right: str) -> None:
    gpu = load_gpu_file(written(tmp_path, capability=right))
    assert gpu.compute_capability == right
    assert lacks("vllm", gpu, "fp8", cache=True) == ""  # Ada and later


def test_other_vendors_name_instruction_sets(tmp_path: Path) -> None:
    assert load_gpu_file(written(tmp_path, vendor="amd", capability="gfx942")).compute_capability == "gfx942"


@pytest.mark.parametrize("vendor", ["NVIDIA", "Nvidia", "nvidia"])
def test_a_vendor_in_any_case(tmp_path: Path, vendor: str) -> None:
    gpu = load_gpu_file(written(tmp_path, vendor=vendor))
    assert gpu == load_gpu_file(written(tmp_path))
    assert runs_on("vllm", gpu)
