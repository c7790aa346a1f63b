"""One value that says whether an op can be used here, why not, and what mends it.

The report, the loader and the install errors all print the same value. It is made in one
place, :meth:`OpBuilder.compatibility`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import OpBuilderError

if TYPE_CHECKING:
    from .builder import OpBuilder


@dataclass(frozen=True, slots=True)
class Compatibility:
    """``ok``, or the sentence of cause and the sentence of mend."""

    ok: bool
    cause: str = ""
    mend: str = ""

    def __bool__(self) -> bool:
        return self.ok

    @classmethod
    def refused_by(cls, error: OpBuilderError) -> Compatibility:
        """The refusal that ``error`` stands for."""
        return cls(False, error.cause, error.mend)

    @property
    def reason(self) -> str:
        """Cause and mend in one text; empty when ok."""
        return f"{self.cause} {self.mend}".strip()


OK = Compatibility(True)


def check(builder: OpBuilder) -> Compatibility:
    """Ask any builder, also one that overrides ``is_compatible()`` or raises; never raises."""
    try:
        if builder.is_compatible(verbose=False):
            return OK
        result = builder.compatibility()
        cause = builder.error_log or f"{type(builder).__name__}.is_compatible() says no."
        return result if not result else Compatibility(False, cause)
    except (Exception, SystemExit) as error:  # a report has to survive whatever a builder does
        return Compatibility(False, f"Its check failed: {type(error).__name__}: {error}")
