"""GPU architectures: which GPUs the code in a binary runs on. Pure functions; asks no GPU.

Machine code (``sm_XY``) runs on GPUs of its own major capability with the same or a higher minor
one; PTX (``compute_XY``) is translated by the driver for any GPU at least as new. Code with the
suffix ``a`` runs on exactly its own capability, with ``f`` on its own family (CUDA C++ Programming
Guide, "Compute Capabilities", "Feature Set Compiler Targets").
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether code for ``architecture`` (``sm_90a``, ``compute_80``) runs on a GPU of
    ``capability`` (major, minor)."""
    found = _ARCHITECTURE.fullmatch(architecture)
    if not found:
        return False
    kind, suffix = found[1], found[4]
    built_for = int(found[2]), int(found[3])
    if suffix == "a":
        return capability == built_for
    if kind == "compute" and not suffix:
        return capability >= built_for
    return capability[0] == built_for[0] and capability >= built_for


def uncovered(
    architectures: Iterable[str], capabilities: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Those of ``capabilities`` that no code of ``architectures`` runs on, sorted."""
    architectures = list(architectures)
    return sorted(
        capability
        for capability in set(capabilities)
        if not any(runs_on(architecture, capability) for architecture in architectures)
    )
