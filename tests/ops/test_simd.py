"""The choice of vector instructions, and the conversions that differ between them."""

from __future__ import annotations

import pytest
import torch

from .reference import LEVELS


@pytest.mark.parametrize("op", ["adam_op", "adagrad_op", "lion_op"])
def test_every_op_reads_the_level_at_each_call(op, request, monkeypatch):
    op = request.getfixturevalue(op)
    best = op.simd_level()
    for level in LEVELS[: LEVELS.index(best) + 1]:
        monkeypatch.setenv("DS_CPU_SIMD", level)
        assert op.simd_level() == level
    monkeypatch.setenv("DS_CPU_SIMD", "")
    assert op.simd_level() == best


def test_unknown_level_is_an_error_that_names_it(adam_op, monkeypatch):
    monkeypatch.setenv("DS_CPU_SIMD", "sse9")
    with pytest.raises(RuntimeError, match=r"DS_CPU_SIMD=sse9 .* set it to generic, avx2 or avx"):
        adam_op.simd_level()


def narrowed(lion_op, values, dtype):
    """``values`` rounded to ``dtype`` by the op: with beta2 = 0 the new state is the gradient."""
    state = torch.zeros(values.numel(), dtype=dtype)
    param = torch.zeros(values.numel())
    lion_op.lion_step([param], [values], [state], 1, 0.0, 0.0, 0.0, 0.0)
    return state


def widened(lion_op, values):
    state, param = torch.zeros(values.numel()), torch.zeros(values.numel())
    lion_op.lion_step([param], [values], [state], 1, 0.0, 0.0, 0.0, 0.0)
    return state


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_pattern_widens_exactly(simd, lion_op, dtype):
    low = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert torch.equal(widened(lion_op, low).nan_to_num(nan=7.0), low.float().nan_to_num(nan=7.0))
    assert torch.equal(widened(lion_op, low).isnan(), low.isnan())


def interesting_floats():
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (400_000,), generator=generator)
    # All float16 and bfloat16 values, the ties between neighbours, and what lies next to both.
    high = torch.arange(-(2**15), 2**15)
    near = torch.cat([(high << 16) + k for k in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    half = high.to(torch.int16).view(torch.float16).float().view(torch.int32).long()
    ties = torch.cat([half + k for k in (-1, 0, 1, 0x0FFF, 0x1000, 0x1001)])
    tiny = torch.arange(0, 2**12) * 2.0**-26  # subnormal float16 values and their ties
    ints = torch.cat([bits, near, ties]).clamp(-(2**31), 2**31 - 1).to(torch.int32)
    return torch.cat([ints.view(torch.float32), tiny, -tiny])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_rounds_to_nearest_even(simd, lion_op, dtype):
    values = interesting_floats()
    # Adding a zero state turns -0 into +0.
    expected, got = (values + 0.0).to(dtype), narrowed(lion_op, values, dtype)
    assert torch.equal(got.isnan(), values.isnan())
    number = ~values.isnan()
    assert torch.equal(got.view(torch.int16)[number], expected.view(torch.int16)[number])


def test_float16_subnormals_survive_flush_to_zero(simd, lion_op):
    subnormal = torch.arange(1, 1024, dtype=torch.int16).view(torch.float16)
    expected = subnormal.float()
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU can't flush subnormal numbers")
    try:
        assert torch.equal(widened(lion_op, subnormal), expected)
        assert torch.equal(narrowed(lion_op, expected, torch.float16), subnormal)
    finally:
        torch.set_flush_denormal(False)
