"""GPU architectures: what people write, what nvcc is told, and which GPUs the result runs on.

Pure functions; asks no GPU and no compiler. The one place that turns an architecture list into
flags.

Machine code (``sm_XY``) runs on GPUs of its own major capability with the same or a higher minor
one; PTX (``compute_XY``) is translated by the driver for any GPU at least as new. Code with the
suffix ``a`` runs on exactly its own capability, with ``f`` on its own family (CUDA C++ Programming
Guide, "Compute Capabilities", "Feature Set Compiler Targets").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .errors import ConfigurationError

#: As broad as sensible, for binaries that go to unknown GPUs; cut to what nvcc can target.
DEFAULT_CAPABILITIES = "6.0;6.1;7.0;7.5;8.0;8.6;8.9;9.0;10.0;12.0"

#: torch's names for generations.
_NAMES = {
    "pascal": "6.0;6.1+PTX",
    "volta": "7.0+PTX",
    "turing": "7.5+PTX",
    "ampere": "8.0;8.6+PTX",
    "ada": "8.9+PTX",
    "hopper": "9.0+PTX",
    "blackwell": "10.0;10.3;12.0;12.1+PTX",
}
#: Symbols that depend on the machine or on nvcc.
_SYMBOLS = frozenset({"native", "all", "all-major"})

_ENTRY = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


@dataclass(frozen=True, slots=True, order=True)
class ArchSpec:
    """One architecture to compile for: its capability, suffix ``a`` or ``f``, and whether PTX is
    kept beside the machine code. Sorts by capability."""

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}{'+PTX' if self.ptx else ''}"

    @property
    def number(self) -> str:
        """What stands behind ``sm_`` and ``compute_``."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def codes(self) -> tuple[str, ...]:
        """What a binary for it holds."""
        machine = f"sm_{self.number}"
        return (machine, f"compute_{self.number}") if self.ptx else (machine,)


Supported = Callable[[], Sequence[str]]
Visible = Callable[[], Iterable[tuple[int, int]]]


def parse(text: str, supported: Supported = tuple, visible: Visible = tuple) -> list[ArchSpec]:
    """The architectures in ``text``, sorted and without repetitions.

    Entries are separated by ``;``, ``,`` or blanks: capabilities such as ``8.0``, ``9.0a``,
    ``12.0+PTX``, torch's names of generations such as ``Hopper``, ``native`` (the ``visible``
    capabilities), ``all`` and ``all-major`` (of ``supported``, nvcc's own list of ``compute_XY``).
    Either is asked only if an entry needs it.

    Raises:
        ConfigurationError: an entry means nothing, or stands for nothing here.
    """
    specs: set[ArchSpec] = set()
    for entry in re.split(r"[;,\s]+", text.strip()):
        if entry:
            specs |= _expand(entry, text, supported, visible)
    return merge(specs)


def _expand(entry: str, text: str, supported: Supported, visible: Visible) -> set[ArchSpec]:
    name, plus, _ = entry.lower().partition("+ptx")
    if name in _NAMES and entry.lower() in (name, name + plus):
        return set(parse(_NAMES[name]))
    if entry.lower() in _SYMBOLS:
        found = _symbol(entry.lower(), supported, visible)
        if found:
            return found
        raise ConfigurationError(
            f"TORCH_CUDA_ARCH_LIST={text!r} asks for {entry!r}, which stands for nothing here: "
            + ("no GPU is visible." if entry.lower() == "native" else "nvcc lists none."),
            "Name capabilities, such as `export TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX'`.",
        )
    match = _ENTRY.fullmatch(entry) or _ENTRY.fullmatch(entry.replace("+ptx", "+PTX"))
    if not match:
        raise ConfigurationError(
            f"TORCH_CUDA_ARCH_LIST={text!r} holds {entry!r}, which is no architecture.",
            "Use capabilities such as 8.0, 9.0a or 12.0+PTX, names such as Hopper, or native, all, "
            "all-major: `export TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX'`.",
        )
    return {ArchSpec(int(match[1]), int(match[2]), match[3], bool(match[4]))}


def _symbol(symbol: str, supported: Supported, visible: Visible) -> set[ArchSpec]:
    if symbol == "native":
        return {ArchSpec(major, minor) for major, minor in visible()}
    every = merge(ArchSpec(*capability) for capability in map(capability_of, supported()))
    if symbol == "all-major":
        lowest: dict[int, ArchSpec] = {}
        for spec in every:
            lowest.setdefault(spec.major, spec)
        every = list(lowest.values())
    return set(with_ptx(every))


def capability_of(architecture: str) -> tuple[int, int]:
    """(major, minor) of ``compute_90`` or ``sm_90a``."""
    match = _ARCHITECTURE.fullmatch(architecture)
    if not match:
        raise ValueError(architecture)
    return int(match[2]), int(match[3])


def merge(specs: Iterable[ArchSpec]) -> list[ArchSpec]:
    """``specs`` sorted, those that differ in PTX only made one."""
    best: dict[tuple[int, int, str], ArchSpec] = {}
    for spec in sorted(specs):
        best[spec.major, spec.minor, spec.suffix] = spec  # False sorts before True
    return sorted(best.values())


def with_ptx(specs: Sequence[ArchSpec]) -> list[ArchSpec]:
    """``specs`` with PTX kept for the highest one, for GPUs that are newer."""
    if not specs:
        return []
    *lower, highest = merge(specs)
    return [*lower, ArchSpec(highest.major, highest.minor, highest.suffix, True)]


def supported_by(specs: Iterable[ArchSpec], supported: Sequence[str]) -> list[ArchSpec]:
    """Those of ``specs`` that an nvcc can target which lists ``supported`` (``compute_XY``).

    It does not list suffixes: ``a`` exists from 9.0 on, ``f`` from 10.0 on.
    """
    known = {capability_of(architecture) for architecture in supported}
    lowest = {"": (0, 0), "a": (9, 0), "f": (10, 0)}
    return [
        spec
        for spec in specs
        if (spec.major, spec.minor) in known and (spec.major, spec.minor) >= lowest[spec.suffix]
    ]


def gencode_flags(specs: Iterable[ArchSpec]) -> list[str]:
    """nvcc's options: one for each machine code, one for each PTX."""
    return [
        f"-gencode=arch=compute_{spec.number},code={code}" for spec in specs for code in spec.codes
    ]


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
