"""The errors this package raises: one sentence of cause, one of mend, then details.

Every error a user can meet is an :class:`OpBuilderError`. It knows how to print itself; it
knows nothing about ops, compilers or caches.
"""

from __future__ import annotations

import textwrap


class OpBuilderError(RuntimeError):
    """An error with its cause, the command that mends it, and optional details.

    Args:
        cause: one sentence: what is wrong.
        mend: one sentence: what to do, with the exact command.
        details: text from another program (compiler, linker), shown indented below.
    """

    def __init__(self, cause: str, mend: str = "", details: str = "") -> None:
        self.cause = cause
        self.mend = mend
        self.details = details.rstrip()
        super().__init__(cause, mend, details)

    def __str__(self) -> str:
        text = f"{self.cause} {self.mend}".strip()
        return f"{text}\n{textwrap.indent(self.details, '    ')}" if self.details else text


class ConfigurationError(OpBuilderError):
    """An environment variable or option has a value that means nothing."""


class ToolchainError(OpBuilderError):
    """A program or library needed to build is missing or unusable."""


class BuildError(OpBuilderError):
    """The compiler, the linker or ninja failed."""


class CacheError(OpBuilderError):
    """The folder that keeps built ops can't be used."""


class LoadError(OpBuilderError):
    """A built op can't be loaded into this process."""


class SelfCheckError(OpBuilderError):
    """An op loaded, but its results differ from the reference."""
