"""How many compile jobs may run at once: by request, cores, and memory, containers included."""

from __future__ import annotations

import os
from pathlib import Path

from . import environment

_CGROUP = Path("/sys/fs/cgroup")


def _cgroup_memory(root: Path = _CGROUP) -> int | None:
    """Bytes the control group (v2, else v1) still grants; None without a limit."""
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return int((root / limit).read_text()) - int((root / usage).read_text())
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return None


def _available_memory() -> int | None:
    """Bytes that can be used without swapping; None if the machine doesn't say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def fit_memory(jobs: int, bytes_per_job: int, grants: list[int | None]) -> int:
    """``jobs``, cut so that each has ``bytes_per_job`` of the smallest grant; at least 1."""
    known = [grant for grant in grants if grant is not None]
    return max(1, min([jobs, *(grant // bytes_per_job for grant in known)]))


def compile_jobs(bytes_per_job: int, requested: int | None = None) -> int:
    """How many jobs to run: ``requested``, else DS_BUILD_JOBS, MAX_JOBS, else one a core; but
    never more than the memory holds, since a compiler that is killed for it costs the build."""
    wanted = requested or environment.job_limit() or len(os.sched_getaffinity(0))
    return fit_memory(wanted, bytes_per_job, [_available_memory(), _cgroup_memory()])
