"""Fake quantization against its formulas, and the distribution of stochastic rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepspeed.ops.quantizer import ds_quantizer

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def scaled(x: Tensor, groups: int, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Quotients, step and offset of each group, in float32 arithmetic."""
    rows = x.reshape(groups, -1).float()
    if symmetric:
        s = 2**bits / (2 * rows.abs().amax(1, keepdim=True) + 1e-5)
        return rows * s, 1 / s, torch.zeros_like(s)
    low = rows.amin(1, keepdim=True)
    s = ((rows.amax(1, keepdim=True) - low) + 1e-5) / 2**bits
    return (rows - low) / s, s, low


def rounded(x: Tensor, groups: int, bits: int, symmetric: bool) -> Tensor:
    quotient, step, offset = scaled(x, groups, bits, symmetric)
    q = quotient.round()
    if symmetric:
        q = q.clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return (q * step + offset).to(x.dtype).view_as(x)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("size", [7, 64, 384, 1024, 4096, 50_000])
def test_numbers_are_rounded_to_those_of_the_formula(op, device, dtype, symmetric, size):
    """DeepSpeed rounds float32 to integers when symmetric, and reads bfloat16 as float32."""
    for bits in (2, 4, 8):
        x = (torch.randn(6, size) * torch.logspace(-2, 2, 6).unsqueeze(1)).to(device, dtype)
        wanted = rounded(x, 6, bits, symmetric)
        _, step, _ = scaled(x, 6, bits, symmetric)
        kind = "quantize" if symmetric else "quantize_asym"
        function = getattr(op, f"ds_{kind}_{'fp16' if dtype == F16 else 'fp32'}")
        result = function(x, 6, bits)
        assert result is x
        off = (x.double() - wanted.double()).abs()
        # In terms of the group's largest number: the sum with an offset may cancel.
        largest = x.double().abs().reshape(6, -1).amax(1, keepdim=True)
        last_bit = torch.finfo(dtype).eps * largest + 1e-6
        # A quotient next to a tie may go either way.
        other_way = off > last_bit
        assert other_way.double().mean() < 2e-3
        assert (off <= 1.01 * step.double() + last_bit).all()


@pytest.mark.parametrize("low", [1e5, -3e5])
def test_groups_far_from_zero(op, device, low):
    """DeepSpeed starts its search for the range at ±10,000."""
    x = (low + torch.rand(2, 256) * 1000).to(device)
    wanted = rounded(x, 2, 8, False)
    op.ds_quantize_asym_fp32(x, 2, 8)
    torch.testing.assert_close(x, wanted, rtol=1e-6, atol=0.1)


def test_groups_of_more_than_a_million_elements_are_rounded(op, device):
    """DeepSpeed silently leaves them as they are."""
    x = torch.randn((1 << 20) + 6, device=device)
    wanted = rounded(x, 1, 4, True)
    ds_quantizer(x, bit_num=4)
    torch.testing.assert_close(x, wanted)
    assert x.unique().numel() <= 16


@pytest.mark.parametrize(
    ("sr", "asym"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_ds_quantizer_chooses_the_function(op, device, sr, asym):
    x = torch.randn(4, 128).to(device, F16)
    torch.manual_seed(5)
    wanted = op.fake_quantize(x.clone(), 4, 6, sr, not asym)
    torch.manual_seed(5)
    assert torch.equal(ds_quantizer(x, groups=4, bit_num=6, sr=sr, asym=asym), wanted)


def test_strided_tensors_are_rounded_in_place(op, device):
    x = torch.randn(64, 6).to(device, F16).t()[::2]
    wanted = rounded(x.contiguous(), 3, 8, True)
    assert op.ds_quantize_fp16(x, 3, 8) is x
    torch.testing.assert_close(x, wanted)


def test_what_cant_be_rounded_is_refused(op, device):
    x = torch.randn(10, device=device)
    before = x.clone()
    for groups, bits, words in (
        (3, 8, "can't be cut into 3 equal groups"),
        (0, 8, "there has to be at least one"),
        (1, 0, "choose 1 to 16"),
        (1, 17, "choose 1 to 16"),
    ):
        with pytest.raises(RuntimeError, match=words):
            ds_quantizer(x, groups=groups, bit_num=bits)
    with pytest.raises(RuntimeError, match="unsupported dtype"):
        ds_quantizer(x.double())
    assert torch.equal(x, before)
    assert ds_quantizer(x[:0]).numel() == 0


# -- stochastic rounding ---------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("size", [24, 64, 1024])
def test_stochastic_rounding_is_unbiased_and_goes_to_neighbours_only(op, device, symmetric, size):
    """DeepSpeed's asymmetric function launches the symmetric kernel."""
    samples, bits = 4096, 4
    x = torch.randn(size).to(device, F32)
    many = x.expand(samples, size).contiguous()
    op.fake_quantize(many, samples, bits, True, symmetric)
    quotient, step, offset = scaled(x, 1, bits, symmetric)
    levels = (many - offset) / step
    assert (levels - levels.round()).abs().max() < 1e-3
    levels, quotient = levels.round().double(), quotient.flatten().double()
    lowest, highest = (-8, 7) if symmetric else (0, 15)
    assert levels.min() >= lowest and levels.max() <= highest
    floor, ceiling = quotient.floor(), quotient.ceil()
    inside = (floor >= lowest + 1) & (ceiling <= highest - 1)
    assert ((levels == floor) | (levels == ceiling))[:, inside].all()
    chance = quotient - floor
    sigma = (chance * (1 - chance) / samples).sqrt()
    far = (levels.mean(0) - quotient).abs() > 4.5 * sigma + 1e-4
    assert not far[inside].any()


def test_random_numbers_follow_torchs_seed_and_differ_between_calls_and_groups(op, device):
    """DeepSpeed's seed is 42 in every call, and groups below 1,024 elements share a stream."""
    x = torch.randn(128).repeat(64, 1).to(device, F16)

    def draw() -> Tensor:
        return op.ds_sr_quantize_fp16(x.clone(), 64, 4)

    torch.manual_seed(7)
    first, second = draw(), draw()
    assert not torch.equal(first, second)
    assert len({tuple(row) for row in first.tolist()}) == 64
    torch.manual_seed(7)
    assert torch.equal(draw(), first) and torch.equal(draw(), second)


def test_the_random_number_of_an_element_depends_on_its_place_alone(op, device):
    """Kernels for aligned groups and for others draw the same."""
    x = torch.randn(64, 16)
    seed = torch.tensor([1234567890123], device=device)
    results = []
    for offset in (0, 1):
        base = torch.zeros(64 * 16 + 1, device=device)
        view = base[offset : offset + 64 * 16].view(64, 16)
        view.copy_(x)
        op._ops.fake_quantize(view, 64, 4, True, seed)
        results.append(view.clone())
    assert torch.equal(*results)
