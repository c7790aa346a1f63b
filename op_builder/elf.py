"""What a shared object says of itself before it is loaded: machine, and whether it is all there.

Loading a binary for another machine gives an obscure error, and a truncated one can kill the
process; sixty-four bytes of header tell both (System V ABI, "ELF Header", 64-bit little-endian).
"""

from __future__ import annotations

import platform
import struct
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_MACHINES = {62: "x86_64", 183: "aarch64"}


def cause_of_refusal(path: Path) -> str:
    """Why ``path`` can't be loaded on this machine; empty if its header raises no objection."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(_HEADER.size)
        length = path.stat().st_size
    except OSError as error:
        return f"{path} can't be read: {error.strerror}."
    if len(head) < _HEADER.size or head[:4] != b"\x7fELF":
        return f"{path} is not a shared object."
    if head[4:6] != b"\x02\x01":
        return f"{path} is not a 64-bit little-endian shared object."
    fields = _HEADER.unpack(head)
    machine, sections_at, section_size, sections = fields[2], fields[6], fields[11], fields[12]
    built_for = _MACHINES.get(machine, f"machine {machine}")
    if built_for != platform.machine():
        return f"{path} was built for {built_for}, and this machine is {platform.machine()}."
    if sections_at + section_size * sections > length:
        return f"{path} is truncated ({length} bytes)."
    return ""
