"""The formulas of quantization in plain torch operations, and comparisons with them."""

from __future__ import annotations

import torch
from torch import Tensor


def params_of(x: Tensor, groups: int, bits: int, symmetric: bool) -> Tensor:
    """Each group's step, or step and offset, in float64."""
    rows = x.reshape(groups, -1).double()
    if symmetric:
        step, offset = 2 * rows.abs().amax(1) / 2**bits, None
    else:
        low, high = rows.amin(1), rows.amax(1)
        step, offset = (high - low) / 2**bits, (high + low) / 2
    step = torch.where(step < torch.finfo(torch.float32).tiny, 1.0, step)
    return torch.stack([step] if symmetric else [step, offset], 1)


def quotients(x: Tensor, params: Tensor) -> Tensor:
    """(x − offset) / step for float32 ``params``, rounded as float32 arithmetic does."""
    rows = x.reshape(len(params), -1).float()
    if params.shape[1] == 2:
        rows = rows - params[:, 1:]
    return rows / params[:, :1]


def codes_of(quotient: Tensor, bits: int) -> Tensor:
    return quotient.round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def unpack(q: Tensor, bits: int) -> Tensor:
    """Codes as integers, one an element; the first of two is in the high half of the byte."""
    if bits == 8:
        return q.flatten().int()
    byte = q.flatten().int()
    return torch.stack([byte >> 4, (byte << 28) >> 28], 1).flatten()


def check_codes(q: Tensor, quotient: Tensor, bits: int, near: float = 1e-6) -> None:
    """Codes are those of ``quotient``, but where it is ``near`` a tie they may be one off."""
    got, wanted = unpack(q, bits), codes_of(quotient.flatten(), bits).int()
    off = (got - wanted).abs()
    tie = ((quotient.flatten() - quotient.flatten().floor()) - 0.5).abs() < near
    assert off.max() <= 1, off.max()
    assert not (off.bool() & ~tie).any()


def numbers_of(q: Tensor, params: Tensor, bits: int) -> Tensor:
    """The numbers of codes, [groups, group_size], in float64."""
    rows = unpack(q, bits).reshape(len(params), -1).double() * params[:, :1].double()
    return rows + params[:, 1:].double() if params.shape[1] == 2 else rows
