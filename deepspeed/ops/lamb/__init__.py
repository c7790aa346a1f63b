"""LAMB optimizers."""

from .fused_lamb import FusedLamb

__all__ = ["FusedLamb"]
