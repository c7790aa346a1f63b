"""How much memory a test may use."""

from __future__ import annotations

import pytest


def need_gigabytes(count: float) -> None:
    """Skip the test if less memory than that is available."""
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        kibibytes = next(int(x.split()[1]) for x in meminfo if x.startswith("MemAvailable"))
    if kibibytes * 1024 < count * 1e9:
        pytest.skip(f"needs {count} GB of memory, {kibibytes * 1024 / 1e9:.1f} GB are available")
