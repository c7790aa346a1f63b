"""What a CUDA op is compiled for, and what is said where it can't be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from deepspeed.ops.op_builder import (
    CUDAOpBuilder,
    FusedAdamBuilder,
    FusedLambBuilder,
    QuantizerBuilder,
    UtilsBuilder,
    builder,
    cuda_builder,
    ninja_build,
)
from deepspeed.ops.op_builder.errors import ConfigurationError, ToolchainError

from tests.op_builder.test_cuda_toolkit import make_toolkit

# Without CUDA in torch any release of the toolkit will do, so that one can stand in.
without_cuda_in_torch = pytest.mark.skipif(
    torch.version.cuda is not None, reason="torch has CUDA here"
)


class NeedsAmpere(CUDAOpBuilder):
    NAME = "needs_ampere"
    BUILD_VAR = "DS_BUILD_NEEDS_AMPERE"

    def absolute_name(self) -> str:
        return "somewhere.needs_ampere_op"

    def sources(self) -> list[str]:
        return ["/nowhere/kernel.cu"]

    def filter_ccs(self, ccs: list[str]) -> list[list[str]]:
        # As the filters of DeepSpeed's own builders do.
        return [cc.split(".") for cc in ccs if int(cc.split(".")[0]) >= 8]


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Sets the visible GPUs and the architecture list; the toolkit is a stand-in."""
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda", 13, 0)))

    def show(*capabilities: tuple[int, int], listed: str = "") -> None:
        monkeypatch.setattr(cuda_builder, "visible_capabilities", lambda: capabilities)
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)

    return show


def names(builder: CUDAOpBuilder, ahead_of_time: bool = False) -> str:
    return ";".join(map(str, builder.architectures(ahead_of_time)))


@without_cuda_in_torch
def test_just_in_time_is_for_every_visible_gpu_and_ahead_of_time_for_the_usual(gpus):
    gpus((9, 0), (8, 0), (9, 0))
    assert names(FusedAdamBuilder()) == "8.0;9.0+PTX"
    # Cut to what nvcc lists: neither 6.0, 6.1 nor 7.0.
    usual = "7.5;8.0;8.6;8.9;9.0;10.0;12.0+PTX"
    assert names(FusedAdamBuilder(), ahead_of_time=True) == usual
    assert builder.get_default_compute_capabilities() == usual


@without_cuda_in_torch
@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("9.0a", "9.0a"),
        ("8.0 8.6", "8.0;8.6"),
        ("8.0,9.0+PTX", "8.0;9.0+PTX"),
        ("Hopper", "9.0+PTX"),
        ("native", "8.6"),
        ("", "8.6+PTX"),
    ],
)
def test_the_variable_decides_in_both_ways(gpus, listed, expected):
    gpus((8, 6), listed=listed)
    assert names(FusedAdamBuilder()) == expected
    if listed:
        assert names(FusedAdamBuilder(), ahead_of_time=True) == expected


@without_cuda_in_torch
def test_without_a_gpu_just_in_time_needs_the_variable(gpus):
    gpus()
    with pytest.raises(ToolchainError) as error:
        FusedAdamBuilder().architectures()
    assert error.value.cause == "No GPU is visible to this process."
    assert "TORCH_CUDA_ARCH_LIST" in error.value.mend
    gpus(listed="9.0")
    assert names(FusedAdamBuilder()) == "9.0"


@without_cuda_in_torch
def test_a_filter_of_an_op_drops_what_it_cant_run_on_and_says_so(gpus, capfd):
    gpus(listed="5.2 6.0 6.1 7.0 7.5 8.0 8.6+PTX")
    for _ in range(2):
        assert names(NeedsAmpere()) == "8.0;8.6+PTX"
    assert capfd.readouterr().err.count("not compiled for 5.2, 6.0, 6.1, 7.0, 7.5") == 1
    gpus(listed="7.5")
    with pytest.raises(ConfigurationError, match=r"needs_ampere runs on none of 7\.5"):
        NeedsAmpere().architectures()


@without_cuda_in_torch
def test_deepspeeds_names_are_there(gpus):
    gpus((9, 0), listed="8.0;9.0+PTX")
    assert builder.CUDAOpBuilder is CUDAOpBuilder
    assert builder.installed_cuda_version() == (13, 0)
    assert builder.assert_no_cuda_mismatch("fused_adam") is True
    assert FusedAdamBuilder().compute_capability_args() == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    ]
    assert FusedAdamBuilder().compute_capability_args("10.0f") == [
        "-gencode=arch=compute_100f,code=sm_100f"
    ]
    for name in ("MissingCUDAException", "CUDAMismatchException"):
        assert issubclass(getattr(builder, name), ToolchainError)
    with pytest.raises(AttributeError):
        _ = builder.no_such_name


@without_cuda_in_torch
def test_an_op_for_gpus_is_not_compatible_with_a_cpu_build_of_torch(gpus):
    gpus((9, 0))
    op = FusedAdamBuilder()
    assert op.is_compatible() is False
    assert "is a CPU build" in op.error_log and "DS_BUILD_FUSED_ADAM=1" in op.error_log
    assert not op.buildable()
    gpus(listed="9.0")
    assert op.buildable() and not op.compatibility()


@without_cuda_in_torch
def test_what_is_compiled_gets_exactly_the_flags_of_the_list(gpus, tmp_path):
    gpus(listed="9.0a;8.0+PTX")
    plan = FusedAdamBuilder().plan(ahead_of_time=True)
    assert plan.architectures == ("sm_80", "compute_80", "sm_90a")
    ninja_build.write_ninja_file([plan], [tmp_path], tmp_path / "build.ninja")
    text = (tmp_path / "build.ninja").read_text()
    assert text.count("-gencode") == 3 and "code=sm_90a" in text
    (kernel,) = [line for line in text.splitlines() if "argv" in line and "nvcc" in line]
    assert "/torch/include" not in kernel and "TORCH_TARGET_VERSION" not in kernel
    assert "fast-math" not in kernel and "fast_math" not in kernel


@without_cuda_in_torch
def test_jobs_left_over_are_threads_of_nvcc(gpus, monkeypatch):
    gpus(listed="9.0")
    adam, lamb = (b().plan(ahead_of_time=True) for b in (FusedAdamBuilder, FusedLambBuilder))
    cases = [([adam], 8, 8), ([adam, lamb], 9, 4), ([adam, lamb], 1, 1), ([], 4, 4)]
    for plans, jobs, threads in cases:
        assert ninja_build.nvcc_threads([UtilsBuilder().plan(), *plans], jobs) == threads
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-DGIVEN")
    assert ninja_build._environment(1)["NVCC_PREPEND_FLAGS"] == "-DGIVEN"
    assert ninja_build._environment(4)["NVCC_PREPEND_FLAGS"] == "--split-compile=4 -DGIVEN"


@without_cuda_in_torch
def test_an_older_nvcc_is_not_asked_to_use_threads(gpus, monkeypatch, tmp_path):
    gpus(listed="9.0")
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "older", 12, 4)))
    assert ninja_build.nvcc_threads([FusedAdamBuilder().plan(ahead_of_time=True)], 8) == 1


def gpu_parts(plan: object) -> tuple[int, bool]:
    """How many kernel files a plan has, and whether its other sources know of them."""
    kernels = [source for source in plan.sources if source.suffix == ".cu"]
    return len(kernels), "-DDEEPSPEED_WITH_CUDA" in plan.flags


@without_cuda_in_torch
def test_an_op_for_both_is_compiled_for_gpus_only_where_they_can_be_of_use(gpus):
    gpus((9, 0), listed="9.0")
    op = QuantizerBuilder()
    # This torch has no CUDA: a GPU is of no use here, but may be elsewhere.
    assert op.is_compatible() and gpu_parts(op.plan()) == (0, False)
    assert op.plan().architectures == () and op.plan().cuda is None
    count, told = gpu_parts(op.plan(ahead_of_time=True))
    assert count > 0 and told and op.plan(ahead_of_time=True).architectures == ("sm_90",)
    gpus((9, 0), listed="")
    assert op.buildable() and gpu_parts(op.plan(ahead_of_time=True)) == (0, False)


def test_an_op_for_both_wants_code_for_gpus_where_torch_and_a_gpu_have_use_for_it(
    gpus, monkeypatch
):
    op = QuantizerBuilder()
    monkeypatch.setattr(op, "require_torch", lambda: SimpleNamespace(cuda="13.0"))
    gpus()
    assert not op.wants_gpu_code() and op.wants_gpu_code(ahead_of_time=True)
    gpus((9, 0))
    assert op.wants_gpu_code()
