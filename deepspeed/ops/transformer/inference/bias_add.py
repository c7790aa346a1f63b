"""Biases of channels as one function. Knows the op's functions and nothing of kernels."""

from __future__ import annotations

from torch import Tensor

from deepspeed.ops.op_builder import SpatialInferenceBuilder


def nhwc_bias_add(
    activation: Tensor, bias: Tensor, other: Tensor | None = None, other_bias: Tensor | None = None
) -> Tensor:
    """``activation + bias``, ``+ other``, or ``+ (other + other_bias)``, in one pass.

    Args:
        activation: float16, bfloat16 or float32 on a GPU; 4-D in channels_last order, or contiguous
            [B, S, C].
        bias: one value a channel.
        other: of ``activation``'s shape, any strides.
        other_bias: one value a channel; only with ``other``.

    Returns:
        A new tensor in ``activation``'s memory format; sums are float32, rounded once.

    Raises:
        RuntimeError: shapes, dtypes, devices or orders don't fit.
    """
    op = SpatialInferenceBuilder().load()
    if other is None:
        if other_bias is not None:
            raise RuntimeError("nhwc_bias_add: other_bias is given without other; pass both")
        return op.nhwc_bias_add(activation, bias)
    if other_bias is None:
        return op.nhwc_bias_add_add(activation, bias, other)
    return op.nhwc_bias_add_bias_add(activation, bias, other, other_bias)
