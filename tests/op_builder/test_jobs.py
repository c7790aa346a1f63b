"""How many compilers run at once."""

import os

import pytest
from deepspeed.ops.op_builder import jobs
from hypothesis import given
from hypothesis import strategies as st


def test_the_number_comes_from_the_caller_then_the_environment_then_the_cores(monkeypatch):
    monkeypatch.delenv("DS_BUILD_JOBS", raising=False)
    monkeypatch.delenv("MAX_JOBS", raising=False)
    assert jobs.compile_jobs(1) == len(os.sched_getaffinity(0))
    monkeypatch.setenv("MAX_JOBS", "7")
    assert jobs.compile_jobs(1) == 7
    monkeypatch.setenv("DS_BUILD_JOBS", "5")
    assert jobs.compile_jobs(1) == 5
    assert jobs.compile_jobs(1, 64) == 64


def test_no_request_gets_more_jobs_than_fit_the_memory(monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "1000")
    half = jobs._available_memory() // 2
    assert jobs.compile_jobs(half) <= 2
    assert jobs.compile_jobs(half, 64) <= 2
    assert jobs.compile_jobs(1 << 60, 64) == 1


@given(st.integers(1, 512), st.integers(1, 1 << 33), st.lists(st.none() | st.integers(0, 1 << 42)))
def test_jobs_fit_the_memory_and_are_never_zero(wanted, bytes_per_job, grants):
    fitted = jobs.fit_memory(wanted, bytes_per_job, grants)
    assert 1 <= fitted <= wanted
    for grant in grants:
        if grant is not None and fitted > 1:
            assert fitted * bytes_per_job <= grant


@pytest.mark.parametrize(
    ("limit", "usage"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes",) * 2],
)
def test_a_control_groups_limit_counts(tmp_path, limit, usage):
    if limit == usage:
        usage = "memory/memory.usage_in_bytes"
        (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("4000000000\n")
    (tmp_path / usage).write_text("3900000000\n")
    assert jobs._cgroup_memory(tmp_path) == 100_000_000
    # What is only cached does not take memory from a compiler.
    name = "inactive_file" if "/" not in limit else "total_inactive_file"
    statistics = (tmp_path / usage).with_name("memory.stat")
    statistics.write_text(f"anon 7\n{name} 2900000000\nunevictable 0\n")
    assert jobs._cgroup_memory(tmp_path) == 3_000_000_000


def test_a_control_group_without_a_limit_does_not_count(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert jobs._cgroup_memory(tmp_path) is None
