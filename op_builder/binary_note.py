"""What a binary says of what it was built for, read from its file before it is loaded.

The build compiles a note into each binary, a section of its own that holds a line of JSON. Unlike
a record beside the binary it can't be lost or belong to another one. The loader compares it with
the environment: code for a newer torch or another GPU ends in an undefined symbol, a crash, or an
error at the first launch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import elf

_SECTION = ".deepspeed"

# TORCH_TARGET_VERSION is written down as the compiler sees it: also where a user's flag changed it.
_HEADER = """\
#define DS_NOTE_TEXT(x) #x
#define DS_NOTE_VALUE(x) DS_NOTE_TEXT(x)
#ifdef TORCH_TARGET_VERSION
#define DS_NOTE_TARGET DS_NOTE_VALUE(TORCH_TARGET_VERSION)
#else
#define DS_NOTE_TARGET ""
#endif
#ifdef __has_attribute
#if __has_attribute(retain)
__attribute__((retain))
#endif
#endif
__attribute__((used, section("{section}"))) static const char ds_binary_note[] =
    {head} DS_NOTE_TARGET {tail};
"""

_TARGET = "@target@"


@dataclass(frozen=True, slots=True)
class BinaryNote:
    """What a binary is bound to.

    Attributes:
        torch_target: (major, minor) of the oldest torch whose stable ABI it fits; None for a
            classic op.
        abi: :attr:`BuildPlan.abi` of the plan it was built from.
        architectures: what it holds for GPUs: ``sm_80`` (machine code), ``compute_90`` (PTX).
    """

    torch_target: tuple[int, int] | None
    abi: tuple[str, ...]
    architectures: tuple[str, ...] = ()


def note_header(abi: Sequence[str], architectures: Sequence[str]) -> str:
    """The C header that puts the note into the object it is included in."""
    values = {"torch_target": _TARGET, "abi": list(abi), "architectures": list(architectures)}
    # A JSON string is a C string too, as long as it is ASCII.
    head, tail = (json.dumps(part) for part in json.dumps(values).split(_TARGET))
    return _HEADER.format(section=_SECTION, head=head, tail=tail)


def read_note(path: Path) -> BinaryNote | None:
    """The note in the binary ``path``; None if it has none, as those of other build systems."""
    content = elf.section(path, _SECTION)
    if content is None:
        return None
    try:
        values = json.loads(content.split(b"\0", 1)[0])
        return BinaryNote(
            _release(values["torch_target"]), tuple(values["abi"]), tuple(values["architectures"])
        )
    except (ValueError, KeyError, TypeError):
        return None


def _release(target: str) -> tuple[int, int] | None:
    """(major, minor) in a TORCH_TARGET_VERSION, which has them in its two highest bytes."""
    if not target:
        return None
    value = int(str(target).rstrip("uUlL"), 0)
    return value >> 56, value >> 48 & 0xFF
