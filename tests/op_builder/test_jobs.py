"""How many compilers run at once."""

import pytest
from deepspeed.ops.op_builder import jobs
from hypothesis import given
from hypothesis import strategies as st


def test_a_requested_number_is_taken_as_it_is(monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "7")
    assert jobs.compile_jobs(64) == 64
    assert jobs.compile_jobs() == 7


@given(st.integers(1, 512), st.lists(st.none() | st.integers(0, 1 << 42)))
def test_the_default_fits_the_memory_and_is_never_zero(cores, grants):
    fitted = jobs.fit_memory(cores, grants)
    assert 1 <= fitted <= cores
    for grant in grants:
        if grant is not None and fitted > 1:
            assert fitted * jobs.BYTES_PER_JOB <= grant


@pytest.mark.parametrize(
    ("limit", "usage"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes",) * 2],
)
def test_a_control_groups_limit_counts(tmp_path, limit, usage):
    if limit == usage:
        usage = "memory/memory.usage_in_bytes"
        (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("4000000000\n")
    (tmp_path / usage).write_text("1000000000\n")
    assert jobs._cgroup_memory(tmp_path) == 3_000_000_000


def test_a_control_group_without_a_limit_does_not_count(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert jobs._cgroup_memory(tmp_path) is None
