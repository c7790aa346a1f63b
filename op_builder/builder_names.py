"""Every builder's class name as a constant of that name, for code that picks ops by name."""

from .all_ops import BUILDERS

__all__ = sorted(BUILDERS)

globals().update({name: name for name in BUILDERS})
