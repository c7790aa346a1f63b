"""The extra ``[nvcc]``: the CUDA compiler as wheels, where a machine has no toolkit."""

from __future__ import annotations

import json

import pytest
from deepspeed.ops.op_builder.binary_note import read_note

from tests.conftest import ROOT
from tests.install.environments import path_with_only
from tests.install.test_flags import bdist_wheel
from tests.install.test_ways_to_install import only_wheel, succeeded

pytestmark = pytest.mark.slow

_PROGRAMS = ("g++", "gcc", "as", "ld", "git", "sh", "cat", "rm")


def test_the_wheels_of_nvcc_compile_an_op(source_tree, venv, tmp_path):
    path = f"{venv.root / 'bin'}:{path_with_only(tmp_path / 'programs', *_PROGRAMS)}"
    succeeded(venv.pip("install", "-r", ROOT / "requirements" / "requirements-nvcc.txt"))
    flags = {"DS_BUILD_FUSED_LION": "1", "TORCH_CUDA_ARCH_LIST": "9.0a;12.0+PTX", "PATH": path}
    succeeded(bdist_wheel(venv, source_tree, **flags))
    succeeded(venv.pip("install", "--no-deps", only_wheel(source_tree / "dist")))
    (binary,) = venv.site_packages.glob("deepspeed/ops/lion/*.abi3.so")
    assert read_note(binary).architectures == ("sm_90a", "sm_120", "compute_120")
    report = json.loads(venv.ds_report("--json", PATH=path).stdout)
    assert "the nvidia-cuda-nvcc wheel" in json.dumps(report["environment"])
