"""What a person sees of a running build: a bar on a terminal, else a line for each finished step.

Compilers' own words are not shown here: they stay in the log, and those of a step that failed go
into its error.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TextIO

#: What ninja is told to print before each finished step, and how it is read back.
NINJA_STATUS = "[%f/%t %es] "
_STEP = re.compile(r"\[(\d+)/(\d+) +([\d.]+)s\] (.*)")

_BAR_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step: the how-many-eth it is, of how many, after how many seconds."""

    finished: int
    total: int
    seconds: float
    name: str

    def line(self) -> str:
        """The step as a line of a log."""
        remaining = self.total - self.finished
        return f"[{self.finished}/{self.total} {self.seconds:.1f}s, {remaining} left] {self.name}"

    def bar(self, columns: int) -> str:
        """The step as a bar that fits ``columns``."""
        filled = _BAR_WIDTH * self.finished // self.total
        return f"[{'#' * filled:<{_BAR_WIDTH}}] {self.line()}"[: columns - 1]


def parse_step(line: str) -> Step | None:
    """The step that a line of ninja's output reports; None for any other line."""
    found = _STEP.fullmatch(line.rstrip())
    return Step(int(found[1]), int(found[2]), float(found[3]), found[4]) if found else None


class Progress:
    """Shows the steps of one build on ``stream``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._redraws = stream.isatty()
        self._drawn = False

    def show(self, line: str) -> None:
        """Show the step that a line of ninja's output reports, if it does."""
        step = parse_step(line)
        if step is None:
            return
        if self._redraws:
            columns = shutil.get_terminal_size().columns
            # Back to the first column, and whatever a longer bar left behind is erased.
            self._stream.write(f"\r{step.bar(columns)}\x1b[K")
            self._drawn = True
        else:
            self._stream.write(step.line() + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Leave the last bar where it is, and go on below it."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
            self._drawn = False
