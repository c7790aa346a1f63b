"""Architecture lists as people write them, and which GPUs the code in a binary runs on."""

import itertools
import re
import shutil
import subprocess

import pytest
from deepspeed.ops.op_builder import cuda_arch
from deepspeed.ops.op_builder.cuda_arch import ArchSpec, gencode_flags, parse, runs_on, uncovered
from deepspeed.ops.op_builder.errors import ConfigurationError
from hypothesis import given
from hypothesis import strategies as st

CAPABILITIES = st.tuples(st.integers(5, 13), st.integers(0, 9))


@pytest.mark.parametrize(
    ("architecture", "capability", "expected"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),  # a later minor capability runs it too
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),  # machine code is for one major capability
        ("compute_80", (9, 0), True),  # PTX is translated
        ("compute_80", (12, 1), True),
        ("compute_90", (8, 6), False),
        ("sm_90a", (9, 0), True),
        ("compute_90a", (10, 0), False),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("sm_103f", (10, 0), False),
        ("compute_100f", (12, 0), False),
        ("sm_120", (12, 0), True),
        ("hopper", (9, 0), False),
    ],
)
def test_code_runs_where_cuda_says_it_does(architecture, capability, expected):
    assert runs_on(architecture, capability) is expected


@given(CAPABILITIES)
def test_a_gpu_runs_code_for_its_own_capability(capability):
    major, minor = capability
    for suffix in ("", "a", "f"):
        for kind in ("sm", "compute"):
            assert runs_on(f"{kind}_{major}{minor}{suffix}", capability)


@given(st.lists(CAPABILITIES))
def test_every_gpu_is_uncovered_by_nothing_and_covered_by_old_ptx(capabilities):
    assert uncovered([], capabilities) == sorted(set(capabilities))
    assert uncovered(["sm_90a", "compute_50"], capabilities) == []


def names(specs) -> str:
    return ";".join(map(str, specs))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9.0a", "9.0a"),
        ("8.0 8.6", "8.0;8.6"),
        ("8.0,9.0+PTX", "8.0;9.0+PTX"),
        ("9.0+PTX;8.0;", "8.0;9.0+PTX"),
        (" 8.0 ;; 8.0, 8.0+PTX ", "8.0+PTX"),
        ("10.0 9.0 12.0+PTX", "9.0;10.0;12.0+PTX"),
        ("12.0a+PTX 10.0f", "10.0f;12.0a+PTX"),
        ("Hopper", "9.0+PTX"),
        ("ampere;Ada", "8.0;8.6+PTX;8.9+PTX"),
        ("5.2 6.0 6.1 7.0 7.5 8.0 8.6+PTX", "5.2;6.0;6.1;7.0;7.5;8.0;8.6+PTX"),
        ("native", "8.6;9.0"),
        ("all", "7.5;8.0;9.0;10.0+PTX"),
        ("all-major", "7.5;8.0;9.0;10.0+PTX"),
        ("3.5", "3.5"),  # read; whether nvcc can is another question
        ("", ""),
    ],
)
def test_lists_are_read_sorted_and_without_repetitions(text, expected):
    supported = ("compute_75", "compute_80", "compute_90", "compute_100")
    assert names(parse(text, lambda: supported, lambda: [(9, 0), (8, 6), (9, 0)])) == expected


@pytest.mark.parametrize("entry", ["9.x", "90", "sm_90", "9.0b", "Hoper", "9.0+ptx+PTX", "-1.0"])
def test_what_is_no_architecture_is_quoted(entry):
    with pytest.raises(ConfigurationError) as error:
        parse(f"8.0;{entry}")
    assert repr(entry) in error.value.cause and "TORCH_CUDA_ARCH_LIST" in error.value.mend


def test_native_without_a_gpu_says_so():
    with pytest.raises(ConfigurationError, match="no GPU is visible"):
        parse("native")


def test_the_order_of_a_list_does_not_matter():
    entries = ["8.0", "9.0a", "10.0f", "12.0+PTX"]
    results = {names(parse(";".join(order))) for order in itertools.permutations(entries)}
    assert results == {"8.0;9.0a;10.0f;12.0+PTX"}


SPECS = st.builds(
    ArchSpec, st.integers(5, 13), st.integers(0, 9), st.sampled_from(["", "a", "f"]), st.booleans()
)


@given(st.lists(SPECS), st.sampled_from([";", ",", " ", " ; "]))
def test_reading_undoes_writing(specs, separator):
    merged = cuda_arch.merge(specs)
    assert parse(separator.join(map(str, specs))) == merged
    assert parse(names(merged)) == merged == sorted(merged)


@given(st.lists(SPECS, min_size=1))
def test_each_code_is_asked_for_once_and_runs_on_its_own_gpu(specs):
    merged = cuda_arch.merge(specs)
    flags = gencode_flags(merged)
    assert len(set(flags)) == len(flags)
    codes = [code for spec in merged for code in spec.codes]
    assert [
        re.fullmatch(r"-gencode=arch=compute_\w+,code=(\w+)", flag)[1] for flag in flags
    ] == codes
    assert uncovered(codes, [(spec.major, spec.minor) for spec in merged]) == []


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_nvcc_accepts_everything_it_lists(tmp_path):
    def listed(option: str) -> list[str]:
        done = subprocess.run(["nvcc", option], capture_output=True, text=True, check=True)
        return done.stdout.split()

    specs = parse("all", lambda: tuple(listed("--list-gpu-arch")))
    codes = {code for spec in specs for code in spec.codes}
    assert set(listed("--list-gpu-code")) == {code for code in codes if code.startswith("sm_")}
    source = tmp_path / "kernel.cu"
    source.write_text("__global__ void k(float* x) { x[threadIdx.x] = 1; }\n")
    # Without compiling: nvcc checks its options, and prints what it would run.
    argv = ["nvcc", "--dryrun", "-c", str(source), "-o", str(tmp_path / "kernel.o")]
    done = subprocess.run([*argv, *gencode_flags(specs)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
