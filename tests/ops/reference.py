"""The optimizers' formulas in float64, and how far results may be from them."""

from __future__ import annotations

import torch
from torch import Tensor

#: Around the widths of vectors and of the blocks and splits inside the ops.
SIZES = (0, 1, 7, 15, 16, 17, 22, 127, 128, 129, 1023, 1025, 40_001)
LEVELS = ("generic", "avx2", "avx512")
LOW = (torch.bfloat16, torch.float16)
#: (parameter, gradient, state) dtypes: the usual pairs, and gradients of another dtype.
DTYPES = [
    (torch.float32, torch.float32, torch.float32),
    *((low, low, torch.float32) for low in LOW),
    *((low, low, low) for low in LOW),
    (torch.bfloat16, torch.float32, torch.float32),
    (torch.float32, torch.bfloat16, torch.float32),
    (torch.float16, torch.bfloat16, torch.bfloat16),
]


def adam64(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    adamw: bool,
    bias_correction: bool,
) -> list[Tensor]:
    """p, m, v after one step."""
    p, g, m, v = (x.double() for x in (p, g, m, v))
    bias1 = 1 - beta1**step if bias_correction else 1.0
    bias2 = 1 - beta2**step if bias_correction else 1.0
    if adamw:
        p = p - lr * decay * p
    elif decay:
        g = g + decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    return [p - lr / bias1 * m / (v.sqrt() / bias2**0.5 + eps), m, v]


def adagrad64(p: Tensor, g: Tensor, v: Tensor, lr: float, eps: float, decay: float) -> list[Tensor]:
    """p, v after one step."""
    p, g, v = (x.double() for x in (p, g, v))
    if decay:
        g = g + decay * p
    v = v + g * g
    return [p - lr * g / (v.sqrt() + eps), v]


def lion64(
    p: Tensor, g: Tensor, m: Tensor, lr: float, beta1: float, beta2: float, decay: float
) -> list[Tensor]:
    """p, m after one step."""
    p, g, m = (x.double() for x in (p, g, m))
    direction = beta1 * m + (1 - beta1) * g
    sign = torch.where(direction.isnan(), direction, direction.sign())
    return [p * (1 - lr * decay) - lr * sign, beta2 * m + (1 - beta2) * g]


def random_tensors(
    size: int,
    dtypes: tuple[torch.dtype, ...],
    offset: int = 0,
    squares: bool = True,
    seed: int = 0,
) -> list[Tensor]:
    """Parameter, gradient and states of ``size`` elements; the last is not negative if ``squares``.

    ``offset`` elements are cut off the front, so that the data is aligned to the element only.
    """
    generator = torch.Generator().manual_seed(seed + size)
    tensors = [torch.randn(size + offset, generator=generator) for _ in dtypes]
    if squares:
        tensors[-1] = tensors[-1].square()
    return [x.to(dtype)[offset:] for x, dtype in zip(tensors, dtypes)]


def ordinal(x: Tensor) -> Tensor:
    """The place of a 16-bit float among all of its kind: neighbours differ by 1."""
    bits = x.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def assert_near(results: list[Tensor], references: list[Tensor], steps: int = 1) -> None:
    """float32 within 2e-6 and the rounding of sums; 16-bit floats within 1 ulp of the rounded one.

    The absolute part covers cancellation between terms of order 1.
    """
    for result, reference in zip(results, references):
        if result.dtype == torch.float32:
            torch.testing.assert_close(
                result.double(), reference, rtol=2e-6, atol=1e-7 * (1 + steps / 3), equal_nan=True
            )
            continue
        rounded = reference.to(result.dtype)
        assert torch.equal(result.isnan(), rounded.isnan())
        apart = (ordinal(result) - ordinal(rounded)).abs()
        # Far below the terms it was made of, a sum has no better bound than float32 rounding.
        near = apart.le(1) | (result.double() - reference).abs().le(2e-7)
        assert bool((near | result.isnan()).all())
