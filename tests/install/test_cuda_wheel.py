"""Ops for GPUs, compiled ahead of time where there is no GPU and no CUDA in torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from deepspeed.ops.op_builder.binary_note import read_note

from tests.install.test_flags import bdist_wheel, error_of
from tests.install.test_ways_to_install import only_wheel, succeeded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc"),
]

without_cuda_in_torch = pytest.mark.skipif(
    torch.version.cuda is not None, reason="torch has CUDA here"
)

LOAD = "from deepspeed.ops.op_builder import FusedLionBuilder as B; B().load()"


def test_an_op_is_compiled_for_the_gpus_asked_for_and_says_so(source_tree, venv):
    flags = {"DS_BUILD_FUSED_LION": "1", "TORCH_CUDA_ARCH_LIST": "9.0a 8.0,8.0;10.0+PTX"}
    output = succeeded(bdist_wheel(venv, source_tree, **flags))
    assert "compile fused_lion: fused_lion.cu" in output
    wheel = only_wheel(source_tree / "dist")
    assert "-cp310-abi3-linux_" in wheel.name
    succeeded(venv.pip("install", "--no-deps", wheel))
    (binary,) = venv.site_packages.glob("deepspeed/ops/lion/*.abi3.so")
    architectures = ("sm_80", "sm_90a", "sm_100", "compute_100")
    assert read_note(binary).architectures == architectures
    program = "from deepspeed.git_version_info import op_architectures as o; print(o)"
    assert str({"fused_lion": list(architectures)}) in venv.python("-c", program).stdout
    report = venv.ds_report().stdout
    assert "fused_lion\n    built for sm_80, sm_90a, sm_100, compute_100\n" in report
    no_path_of_this_machine_is_in(binary, source_tree.parent, Path.home())


def no_path_of_this_machine_is_in(binary: Path, *folders: Path) -> None:
    content = binary.read_bytes()
    assert not [folder for folder in folders if f"{folder}/".encode() in content]


@without_cuda_in_torch
def test_a_cpu_build_of_torch_says_what_it_lacks_and_how_to_compile_for_others(source_tree, venv):
    text = error_of(bdist_wheel(venv, source_tree, DS_BUILD_FUSED_ADAM="1"))
    assert text.startswith("Unable to pre-compile fused_adam: torch ")
    assert "is a CPU build, and this op runs on NVIDIA GPUs." in text
    assert "`TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX' DS_BUILD_FUSED_ADAM=1 pip install .`" in text
    everything = bdist_wheel(venv, source_tree, DS_BUILD_OPS="1")
    assert "skipping op fused_adam: torch " in succeeded(everything)
    succeeded(venv.pip("install", "--no-deps", ".", cwd=source_tree))
    row = json.loads(venv.ds_report("--json").stdout)["ops"]["fused_adam"]
    assert not row["compatible"] and "is a CPU build" in row["cause"]
    done = venv.python("-c", LOAD)
    assert done.returncode == 1 and "is a CPU build" in done.stderr


@pytest.mark.parametrize(
    ("listed", "cause"),
    [
        ("3.5", "can't compile for 3.5."),
        ("9.x", "holds '9.x', which is no architecture."),
        ("8.0;8.0a", "can't compile for 8.0a."),
    ],
)
def test_a_list_that_cant_be_compiled_for_stops_the_install(source_tree, venv, listed, cause):
    flags = {"DS_BUILD_FUSED_LION": "1", "TORCH_CUDA_ARCH_LIST": listed}
    text = error_of(bdist_wheel(venv, source_tree, **flags))
    assert text.startswith("Unable to pre-compile fused_lion: ") and cause in text
    assert "TORCH_CUDA_ARCH_LIST" in text


def test_a_host_compiler_of_its_own_is_used_for_nvcc(source_tree, venv, tmp_path):
    log = tmp_path / "calls"
    compiler = tmp_path / "my-g++"
    compiler.write_text(f'#!/bin/sh\necho called >> "{log}"\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    flags = {"DS_BUILD_FUSED_LION": "1", "TORCH_CUDA_ARCH_LIST": "9.0"}
    succeeded(bdist_wheel(venv, source_tree, CUDAHOSTCXX=str(compiler), **flags))
    assert log.exists()


def test_an_op_for_both_is_compiled_for_gpus_elsewhere_and_runs_on_this_cpu(source_tree, venv):
    flags = {"DS_BUILD_QUANTIZER": "1", "TORCH_CUDA_ARCH_LIST": "9.0"}
    output = succeeded(bdist_wheel(venv, source_tree, **flags))
    assert "compile quantizer: quantize.cu" in output
    succeeded(venv.pip("install", "--no-deps", only_wheel(source_tree / "dist")))
    (binary,) = venv.site_packages.glob("deepspeed/ops/quantizer/*.abi3.so")
    assert read_note(binary).architectures == ("sm_90",)
    report = venv.ds_report("--verify", "quantizer", DS_JIT="0")
    assert report.returncode == 0 and "loaded and checked" in report.stdout, report.stdout
