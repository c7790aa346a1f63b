"""Codes in the order in which they are sent, sums of codes, and errors fed back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .reference import check_codes, numbers_of, params_of, quotients

KINDS = [(4, True), (4, False), (8, True), (8, False)]
F16 = torch.float16


def dealt_order(groups: int, pipeline: int, nodes: int, devices: int) -> list[int]:
    """The input group that each group of the result is."""
    block = groups // (pipeline * nodes * devices)
    order = [0] * groups
    for node in range(nodes):
        for device in range(devices):
            target = node * devices + device
            for stage in range(pipeline):
                for x in range(block):
                    place = block * (stage * nodes * devices + device * nodes + node) + x
                    order[place] = x + block * (stage + pipeline * target)
    return order


@pytest.mark.parametrize(("bits", "symmetric"), KINDS)
@pytest.mark.parametrize("dealt", [(1, 1, 1), (1, 2, 4), (2, 2, 2), (3, 1, 2)])
@pytest.mark.parametrize("size", [10, 64, 1024, 5000])
def test_groups_are_dealt_out(op, device, bits, symmetric, dealt, size):
    kind = op.Symmetric if symmetric else op.Asymmetric
    groups = 24
    x = torch.randn(groups, size).to(device, F16)
    q, params = op.swizzle_quant(x, groups, bits, kind, *dealt)
    in_order, in_order_params = op.quantize(x, groups, bits, kind)
    order = dealt_order(groups, *dealt)
    assert q.dim() == 1
    assert torch.equal(q.view(groups, -1), in_order[order])
    assert torch.equal(params, in_order_params[order])


def test_groups_that_cant_be_dealt_equally_are_refused(op, device):
    x = torch.randn(6, 16).to(device, F16)
    with pytest.raises(RuntimeError, match="can't be dealt out"):
        op.swizzle_quant(x, 6, 8, op.Symmetric, 1, 2, 2)
    with pytest.raises(RuntimeError, match="have to be positive"):
        op.swizzle_quant(x, 6, 8, op.Symmetric, 1, 0, 2)


def received(op, parts: int, groups: int, size: int, bits: int, kind, device: str):
    """Codes of several devices, as one tensor, and what they stand for, summed in float64."""
    x = torch.randn(parts * groups, size).to(device, F16)
    q, params = op.quantize(x, parts * groups, bits, kind)
    total = numbers_of(q, params, bits).view(parts, groups * size).sum(0)
    return q.view(1, -1), params, total


@pytest.mark.parametrize(("bits", "symmetric"), KINDS)
@pytest.mark.parametrize(
    ("parts", "groups", "size", "out_groups"),
    [
        (1, 2, 64, 2),
        (2, 4, 128, 2),
        (8, 16, 256, 4),
        (3, 5, 10, 1),
        (16, 2, 4096, 8),
        (2, 3, 30, 9),
    ],
)
def test_sums_are_those_of_all_parts(op, device, bits, symmetric, parts, groups, size, out_groups):
    """DeepSpeed reads wrong parameters for every asymmetric part but the first."""
    kind = op.Symmetric if symmetric else op.Asymmetric
    q, params, total = received(op, parts, groups, size, bits, kind, device)
    out, out_params = op.quantized_reduction(
        q, params, parts * groups, out_groups, bits, kind, parts
    )
    assert out.shape == (1, q.shape[1] // parts)
    wanted = params_of(total, out_groups, bits, symmetric)
    torch.testing.assert_close(out_params.double(), wanted, rtol=1e-5, atol=1e-5)
    check_codes(out, quotients(total, out_params), bits, near=1e-3)


def test_parts_that_dont_fit_are_refused(op, device):
    q, params, _ = received(op, 2, 4, 64, 8, op.Symmetric, device)
    for in_groups, out_groups, parts, words in (
        (8, 2, 3, "can't be cut into 3 equal parts"),
        (7, 2, 2, "params holds 8 values, and 7 groups"),
        (8, 3, 2, "can't be cut into 3 equal groups"),
    ):
        with pytest.raises(RuntimeError, match=words):
            op.quantized_reduction(q, params, in_groups, out_groups, 8, op.Symmetric, parts)


def check_feedback(before: Tensor, after: Tensor, lost: Tensor, beta: float) -> None:
    wanted = beta * before.double() + (1 - beta) * lost
    torch.testing.assert_close(after.double(), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("bits", "symmetric"), KINDS)
@pytest.mark.parametrize("size", [10, 64, 1024, 20_000])
@pytest.mark.parametrize("dtype", [F16, torch.bfloat16])
def test_errors_are_added_in_the_order_of_the_result(op, device, bits, symmetric, size, dtype):
    kind = op.Symmetric if symmetric else op.Asymmetric
    groups, dealt, beta = 8, (1, 2, 2), 0.8
    x = torch.randn(groups, size).to(device, dtype)
    error = (torch.randn(groups, size) * 0.1).to(device, dtype)
    before = error.clone()
    q, params = op.loco_swizzle_quant(x, error, beta, groups, bits, kind, *dealt)
    total = x[dealt_order(groups, *dealt)].float() + before.float()
    wanted = params_of(total, groups, bits, symmetric)
    torch.testing.assert_close(params.double(), wanted, rtol=1e-6, atol=1e-6)
    check_codes(q, quotients(total, params), bits)
    if dtype == F16:
        check_feedback(before, error, total.double() - numbers_of(q, params, bits), beta)


@pytest.mark.parametrize(("bits", "symmetric"), KINDS)
def test_errors_are_added_to_a_sum(op, device, bits, symmetric):
    kind = op.Symmetric if symmetric else op.Asymmetric
    for parts, groups, size, out_groups in ((4, 8, 128, 2), (2, 3, 20, 6)):
        q, params, total = received(op, parts, groups, size, bits, kind, device)
        error = (torch.randn(groups * size) * 0.1).to(device, F16)
        before = error.clone()
        out, out_params = op.loco_quantized_reduction(
            *(q, params, error, 0.9, parts * groups, out_groups, bits, kind, parts)
        )
        total = total + before.double()
        check_codes(out, quotients(total, out_params), bits, near=1e-3)
        lost = total - numbers_of(out, out_params, bits).flatten()
        check_feedback(before, error, lost, 0.9)


def test_errors_that_dont_fit_are_refused_and_nothing_is_written(op, device):
    x = torch.randn(4, 64).to(device, F16)
    for error, beta, words in (
        (torch.zeros(4, 32), 0.9, "error has 128 elements"),
        (torch.zeros(4, 64, dtype=torch.bfloat16), 0.9, "not of x's dtype"),
        (torch.zeros(4, 64, dtype=F16), 1.5, r"choose a value in \[0, 1\]"),
    ):
        error = error.to(device)
        with pytest.raises(RuntimeError, match=words):
            op.loco_swizzle_quant(x, error, beta, 4, 8, op.Symmetric, 1, 1, 1)
        assert not error.any()
