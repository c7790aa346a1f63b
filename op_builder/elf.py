"""What a shared object says of itself before it is loaded: machine, sections, and whether it is
all there.

Loading a binary for another machine gives an obscure error, and a truncated one can kill the
process; sixty-four bytes of header tell both (System V ABI, "ELF Header" and "Sections", 64-bit
little-endian).
"""

from __future__ import annotations

import platform
import struct
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
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


def section(path: Path, name: str) -> bytes | None:
    """The contents of the section ``name``; None if ``path`` has none or is no such file."""
    try:
        with open(path, "rb") as stream:
            fields = _HEADER.unpack(stream.read(_HEADER.size))
            table_at, entry_size, count, names_index = (fields[i] for i in (6, 11, 12, 13))
            stream.seek(table_at)
            table = stream.read(entry_size * count)
            headers = [_SECTION.unpack_from(table, i * entry_size) for i in range(count)]

            def contents(header: tuple[int, ...]) -> bytes:
                stream.seek(header[4])
                return stream.read(header[5])

            names = contents(headers[names_index])
            wanted = name.encode("ascii") + b"\0"
            found = (h for h in headers if names[h[0] : h[0] + len(wanted)] == wanted)
            return next((contents(header) for header in found), None)
    except (OSError, struct.error, IndexError, OverflowError):
        return None
