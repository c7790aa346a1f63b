"""Which GPUs the code in a binary runs on."""

import pytest
from deepspeed.ops.op_builder.cuda_arch import runs_on, uncovered
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
