"""Fake quantization as one function. Knows the op's function and nothing of kernels."""

from __future__ import annotations

from torch import Tensor

from deepspeed.ops.op_builder import QuantizerBuilder


def ds_quantizer(
    input: Tensor, groups: int = 1, bit_num: int = 8, sr: bool = False, asym: bool = False
) -> Tensor:
    """Round ``input`` in place to the numbers that ``bit_num`` bits can tell apart.

    The formulas are those of ``QuantizerBuilder().load().fake_quantize``.

    Args:
        input: float16, bfloat16 or float32, any shape, on a GPU or the CPU.
        groups: each run of ``numel / groups`` elements has a scale of its own.
        bit_num: 1 to 16.
        sr: round stochastically.
        asym: between each group's least and greatest number, instead of symmetrically around 0.

    Returns:
        ``input``.

    Raises:
        RuntimeError: a tensor can't be rounded, or ``groups`` doesn't divide its size.
    """
    return QuantizerBuilder().load().fake_quantize(input, groups, bit_num, sr, not asym)
