"""Biases of channels against a float32 sum that is rounded once."""

from __future__ import annotations

import pytest
import torch
from deepspeed.ops.op_builder import SpatialInferenceBuilder
from torch import Tensor

from deepspeed.ops.transformer.inference.bias_add import nhwc_bias_add

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def image(*shape: int, dtype=torch.float16) -> Tensor:
    x = torch.randn(shape, device="cuda").to(dtype)
    return x.to(memory_format=torch.channels_last) if len(shape) == 4 else x


def expected(x: Tensor, bias: Tensor, other=None, other_bias=None) -> Tensor:
    def wide(bias: Tensor) -> Tensor:
        return bias.float()[:, None, None] if x.dim() == 4 else bias.float()

    total = x.float() + wide(bias)
    if other is not None:
        total = total + (other.float() + (wide(other_bias) if other_bias is not None else 0.0))
    return total.to(x.dtype)


def check(x: Tensor, other: Tensor | None = None) -> None:
    channels = x.shape[1 if x.dim() == 4 else 2]
    bias, other_bias = (torch.randn(channels, device="cuda").to(x.dtype) for _ in range(2))
    other = torch.randn_like(x) if other is None else other
    for rest in ((), (other,), (other, other_bias)):
        result = nhwc_bias_add(x, bias, *rest)
        assert torch.equal(result, expected(x, bias, *rest))
        if x.numel():
            assert result.stride() == x.stride()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 3, 8, 192, 320, 2560])
@pytest.mark.parametrize("size", [1, 5, 32])
def test_sums_are_rounded_once(dtype, channels, size):
    check(image(2, channels, size, size, dtype=dtype))
    check(image(2, size, channels, dtype=dtype))


def test_empty_batches_and_odd_offsets():
    check(image(0, 8, 4, 4))
    check(image(2, 0, 16))
    base = torch.randn(2 * 5 * 64 + 1, device="cuda", dtype=torch.float16)
    check(base[1:].view(2, 5, 64))


def test_an_other_of_any_order_is_added_element_by_element():
    """DeepSpeed reads one in NCHW order as if it were NHWC."""
    x = image(2, 16, 6, 6)
    check(x, torch.randn(2, 16, 6, 6, device="cuda").half())
    check(x, torch.randn(2, 16, 6, 12, device="cuda").half()[..., ::2])


def test_what_cant_be_added_is_refused():
    x, bias = image(2, 8, 4, 4), torch.randn(8, device="cuda").half()
    for arguments, words in (
        ((x.contiguous(), bias), "channels next to each other"),
        ((x, bias[:4]), "an element for each channel"),
        ((x, bias.float()), "another dtype"),
        ((x, bias.cpu()), "not on the GPU"),
        ((x.cpu(), bias), "not on the GPU"),
        ((x, bias, x[:1]), "another shape"),
        ((x[0, 0], bias), "2 dimensions"),
        ((x.double(), bias), "unsupported dtype"),
        ((x, bias, None, bias), "without other"),
    ):
        with pytest.raises(RuntimeError, match=words):
            nhwc_bias_add(*arguments)


def test_a_graph_captures_a_sum_and_nothing_waits():
    x, bias = image(2, 64, 8, 8), torch.randn(64, device="cuda").half()
    nhwc_bias_add(x, bias)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        nhwc_bias_add(x, bias, x, bias)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = nhwc_bias_add(x, bias)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(result, expected(x, bias))


def test_torch_compile_traces_through():
    op = SpatialInferenceBuilder().load()
    x, bias = image(2, 64, 8, 8), torch.randn(64, device="cuda").half()
    compiled = torch.compile(op.nhwc_bias_add, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, bias), expected(x, bias))


def test_more_than_2_to_the_31_elements():
    x = torch.ones(2, 2**26 + 1, 16, device="cuda", dtype=torch.float16)
    bias = torch.arange(16, device="cuda").half()
    assert torch.equal(nhwc_bias_add(x, bias)[-1, -1], bias + 1)
