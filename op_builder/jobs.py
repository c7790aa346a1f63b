"""How many compile jobs may run at once: by request, cores, and memory, containers included."""

from __future__ import annotations

import os
import re
from pathlib import Path

from . import environment

_CGROUP = Path("/sys/fs/cgroup")


#: For each version of control groups: limit, usage, and what counts as used but can be reclaimed.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def _cgroup_memory(root: Path = _CGROUP) -> int | None:
    """Bytes the control group (v2, else v1) still grants; None without a limit."""
    for limit, usage, statistics, reclaimable in _CGROUP_FILES:
        try:
            free = int((root / limit).read_text()) - int((root / usage).read_text())
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
        # The cache of files read and written counts as used, and goes when memory is asked for.
        return free + _statistic(root / statistics, reclaimable)
    return None


def _statistic(path: Path, name: str) -> int:
    try:
        found = re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


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
