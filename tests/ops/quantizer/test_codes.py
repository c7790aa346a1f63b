"""Codes of 4 and 8 bits against the formulas, and the way back."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from .reference import check_codes, numbers_of, params_of, quotients, unpack

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
# Around the widths of vectors, warps, blocks, registers and parts.
SIZES = (2, 6, 8, 24, 64, 128, 256, 264, 384, 1000, 1024, 1040, 4096, 5000, 16384, 40_000, 100_002)


def numbers(groups: int, size: int, dtype: torch.dtype, device: str) -> Tensor:
    """Groups of different scales."""
    x = torch.randn(groups, size) * torch.logspace(-2, 2, groups).unsqueeze(1)
    return x.to(device, dtype)


def check(op, x: Tensor, groups: int, bits: int, symmetric: bool) -> None:
    kind = op.Symmetric if symmetric else op.Asymmetric
    q, params = op.quantize(x, groups, bits, kind)
    assert q.dtype == torch.int8 and params.dtype == F32
    assert q.shape == (*x.shape[:-1], x.shape[-1] * bits // 8)
    assert params.shape == (groups, 1 if symmetric else 2)
    torch.testing.assert_close(
        params.double(), params_of(x, groups, bits, symmetric), rtol=1e-6, atol=1e-7
    )
    check_codes(q, quotients(x, params), bits)
    wanted = numbers_of(q, params, bits)
    for function, dtype in (
        (op.dequantize, F16),
        (op.dequantize_fp32, F32),
        (op.dequantize_bf16, BF16),
    ):
        back = function(q, params, groups, bits, kind)
        assert back.dtype == dtype and back.shape == x.shape
        # Once more rounded, from float32; where an offset cancels, in terms of its last bit.
        largest = wanted.abs().max().item()
        near = {"rtol": 1.01 * torch.finfo(dtype).eps, "atol": 1e-6 * max(largest, 1.0)}
        rows = back.double().reshape(groups, -1)
        torch.testing.assert_close(rows, wanted.to(dtype).double(), **near)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_are_those_of_the_formula(op, device, size, bits, symmetric):
    check(op, numbers(5, size, F16, device), 5, bits, symmetric)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("groups", [1, 13, 517])
@pytest.mark.parametrize("size", [10, 128, 1024])
def test_every_dtype_and_number_of_groups(op, device, dtype, groups, size):
    """DeepSpeed reads bfloat16 and float32 as if they were float16."""
    for symmetric in (True, False):
        check(op, numbers(groups, size, dtype, device), groups, 8, symmetric)


@pytest.mark.parametrize("size", [64, 13, 4096])
def test_views_at_odd_offsets_and_strided_tensors(op, device, size):
    base = torch.randn(3 * size + 1).to(device, F16)
    check(op, base[1:].view(3, size), 3, 8, True)
    check(op, torch.randn(size, 6).to(device, F16).t()[::2], 3, 8, False)


def test_groups_need_not_follow_rows(op, device):
    check(op, torch.randn(6, 40).to(device, F16), 4, 4, True)


@pytest.mark.parametrize("symmetric", [True, False])
def test_extremes(op, device, symmetric):
    rows = torch.randn(8, 384).abs()  # all positive: padding with zeros would show
    rows[0] = 0.0
    rows[1] = 3.25
    rows[2, ::2], rows[2, 1::2] = 65504.0, -65504.0
    rows[3] *= 1e-4
    rows[3, 7] = 60000.0
    rows[4] = -rows[4]
    for bits in (4, 8):
        check(op, rows.to(device, F16), 8, bits, symmetric)
    check(op, (rows * 1e33).to(device), 8, 8, symmetric)


def test_a_constant_group_comes_back_exactly(op, device):
    x = torch.full((2, 64), 3.25, device=device, dtype=F16)
    q, params = op.quantize(x, 2, 8, op.Asymmetric)
    assert params.tolist() == [[1.0, 3.25]] * 2 and not q.any()
    assert torch.equal(op.dequantize(q, params, 2, 8, op.Asymmetric), x)
    q, params = op.quantize(torch.zeros_like(x), 2, 4, op.Symmetric)
    assert params.tolist() == [[1.0]] * 2 and not q.any()


@pytest.mark.parametrize("size", [64, 1024, 6, 20_002])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_nan_shows_in_its_group_and_in_no_other(op, device, size, symmetric):
    kind = op.Symmetric if symmetric else op.Asymmetric
    x = torch.randn(3, size).to(device, F16)
    x[1, size // 2] = float("nan")
    q, params = op.quantize(x, 3, 8, kind)
    assert params[1].isnan().any() and not params[[0, 2]].isnan().any()
    back = op.dequantize(q, params, 3, 8, kind)
    assert back[1].isnan().all() and not back[[0, 2]].isnan().any()


def test_the_first_of_two_codes_has_the_high_half(op, device):
    x = torch.tensor([[-8.0, 7.0, 1.0, -1.0]], device=device, dtype=F16)
    q, params = op.quantize(x, 1, 4, op.Symmetric)
    assert params.item() == 1.0
    assert [byte & 255 for byte in q.flatten().tolist()] == [0x87, 0x1F]
    assert unpack(q, 4).tolist() == [-8, 7, 1, -1]


def test_empty_tensors(op, device):
    q, params = op.quantize(torch.empty(0, 8, device=device, dtype=F16), 4, 8, op.Asymmetric)
    assert q.shape == (0, 8) and params.tolist() == [[1.0, 0.0]] * 4
    assert op.dequantize(q, params, 4, 8, op.Asymmetric).shape == (0, 8)


@pytest.mark.parametrize(
    ("shape", "groups", "bits", "dtype", "words"),
    [
        ((10,), 3, 8, F16, "can't be cut into 3 equal groups"),
        ((10,), 0, 8, F16, "there has to be at least one"),
        ((10,), -1, 8, F16, "there has to be at least one"),
        ((9,), 1, 4, F16, "is odd"),
        ((3, 6), 2, 4, F16, None),
        ((2, 3), 1, 4, F16, "is odd"),
        ((6,), 2, 4, F16, "can't be packed in pairs"),
        ((8,), 1, 5, F16, "choose 4 or 8"),
        ((8,), 1, 8, torch.float64, "unsupported dtype"),
        ((8,), 1, 8, torch.int32, "unsupported dtype"),
    ],
)
def test_what_cant_be_quantized_is_refused(op, device, shape, groups, bits, dtype, words):
    x = torch.ones(shape, device=device).to(dtype)
    if words is None:
        with pytest.raises(RuntimeError, match="packed in pairs"):
            op.quantize(x, groups, bits, op.Symmetric)
        return
    with pytest.raises(RuntimeError, match=words):
        op.quantize(x, groups, bits, op.Symmetric)


def test_what_cant_be_dequantized_is_refused(op, device):
    q, params = op.quantize(torch.randn(4, 16).to(device, F16), 4, 8, op.Symmetric)
    with pytest.raises(RuntimeError, match="params holds 4 values, and 4 groups have 2 each"):
        op.dequantize(q, params, 4, 8, op.Asymmetric)
    with pytest.raises(RuntimeError, match="params holds 4 values, and 2 groups"):
        op.dequantize(q, params, 2, 8, op.Symmetric)
    with pytest.raises(RuntimeError, match="q is not of dtype int8"):
        op.dequantize(q.int(), params, 4, 8, op.Symmetric)
    with pytest.raises(RuntimeError, match="params is not of dtype float32"):
        op.dequantize(q, params.half(), 4, 8, op.Symmetric)


@hypothesis.given(
    groups=st.integers(1, 6),
    pairs=st.integers(1, 300),
    bits=st.sampled_from([4, 8]),
    symmetric=st.booleans(),
    scale=st.floats(1e-3, 1e3),
)
def test_numbers_come_back_within_half_a_step(op, groups, pairs, bits, symmetric, scale):
    x = torch.randn(groups, 2 * pairs) * scale
    kind = op.Symmetric if symmetric else op.Asymmetric
    q, params = op.quantize(x, groups, bits, kind)
    back = op.dequantize_fp32(q, params, groups, bits, kind)
    # The greatest number has the code 2ᵇ⁻¹, which is one more than there is.
    top = unpack(q, bits).reshape(x.shape) == 2 ** (bits - 1) - 1
    allowed = params[:, :1] * torch.where(top, 1.0, 0.5) * 1.0001
    assert ((back - x).abs() <= allowed).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_unsigned_codes_of_the_experimental_functions(op, device, bits):
    """DeepSpeed launches nothing for fewer than 32 groups."""
    for groups, size in ((1, 2), (7, 64), (40, 1000)):
        codes = torch.randint(0, 2**bits, (groups, size))
        scale, minimum = torch.rand(groups).half() + 0.5, torch.randn(groups).half()
        data = codes if bits == 8 else codes[:, ::2] * 16 + codes[:, 1::2]
        name = f"dequantize_int{bits}_to_half_experimental"
        arguments = (data.to(device, torch.uint8), scale.to(device), minimum.to(device))
        got = getattr(op, name)(*arguments, groups, size)
        wanted = codes / scale.double().unsqueeze(1) + minimum.double().unsqueeze(1)
        assert got.shape == (groups, size) and got.dtype == F16
        torch.testing.assert_close(got.cpu().double(), wanted, rtol=1e-3, atol=1e-3)
    with pytest.raises(RuntimeError, match="scale holds 40 values for 39 groups"):
        getattr(op, name)(*arguments, 39, 1000)


def test_torch_compile_traces_through(op, device):
    def there_and_back(x: Tensor) -> Tensor:
        q, params = op.quantize(x, 4, 4, op.Asymmetric)
        return op.dequantize_fp32(q, params, 4, 4, op.Asymmetric)

    x = torch.randn(4, 64).to(device, F16)
    compiled = torch.compile(there_and_back, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), there_and_back(x))
