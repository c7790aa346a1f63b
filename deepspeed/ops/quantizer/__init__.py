"""Fake quantization; codes of 4 and 8 bits come from ``QuantizerBuilder().load()``."""

from .quantizer import ds_quantizer

__all__ = ["ds_quantizer"]
