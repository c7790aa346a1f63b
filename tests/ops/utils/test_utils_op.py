"""flatten, unflatten and cast_to_byte_tensor, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
SHAPES = [(3, 5), (), (0,), (2, 0, 3), (1,), (70_001,), (17,), (4, 4, 4)]


def tensors_of(dtype, shapes=SHAPES):
    return [torch.randint(0, 100, shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_flatten_keeps_every_bit_in_order(utils_op, dtype):
    tensors = tensors_of(dtype)
    flat = utils_op.flatten(tensors)
    assert torch.equal(flat, torch.cat([t.reshape(-1) for t in tensors])) and flat.dtype == dtype
    assert flat.data_ptr() not in {t.data_ptr() for t in tensors}, "the result is a copy"


def test_flatten_of_odd_offsets_strides_and_lazy_conjugates(utils_op):
    base = torch.randn(101)
    tensors = [base[1:34], base[::3], base[1:].view(10, 10).t(), base[:1].expand(7)]
    expected = torch.cat([t.reshape(-1) for t in tensors])
    assert torch.equal(utils_op.flatten(tensors), expected)
    z = torch.randn(5, dtype=torch.complex64)
    assert torch.equal(utils_op.flatten([z.conj(), z]), torch.cat([z.conj(), z]))


def test_flatten_of_one_and_of_a_thousand_small_tensors(utils_op):
    assert torch.equal(utils_op.flatten([torch.arange(4)]), torch.arange(4))
    assert utils_op.flatten([torch.ones(0)]).shape == (0,)
    many = list(torch.arange(10_000.0).split(10))
    assert torch.equal(utils_op.flatten(many), torch.arange(10_000.0))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "the list is empty"),
        ([torch.ones(2), torch.ones(2).half()], r"tensors\[1\] differs in dtype"),
        ([torch.ones(2), torch.ones(2, device="meta")], r"tensors\[1\] is on another device"),
        ([torch.ones(2), torch.ones(2).to_sparse()], r"tensors\[1\] is not a dense"),
    ],
)
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_flatten_refuses_what_does_not_fit(utils_op, tensors, message, needs_gradient):
    if needs_gradient:
        tensors = [t.detach().requires_grad_() for t in tensors]
    with pytest.raises(RuntimeError, match=message):
        utils_op.flatten(tensors)


def test_gradients_flow_through_flatten_and_unflatten(utils_op):
    tensors = [t.double().requires_grad_() for t in tensors_of(torch.float64, [(3, 2), (), (4,)])]
    assert torch.autograd.gradcheck(lambda *ts: utils_op.flatten(ts).square(), tensors)
    flat = torch.randn(11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: utils_op.unflatten(x, tensors), [flat])
    with torch.no_grad():
        assert not utils_op.flatten(tensors).requires_grad


@pytest.mark.parametrize("dynamic", [False, True])
def test_flatten_traces_as_one_graph(utils_op, dynamic):
    def double(a, b):
        return torch.ops.deepspeed_utils.flatten([a, b]) * 2

    compiled = torch.compile(double, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for size in (2, 5):
        a, b = torch.randn(size, 3), torch.randn(4).t()
        assert torch.equal(compiled(a, b), double(a, b))


def test_unflatten_returns_views_of_the_right_shapes(utils_op):
    tensors = tensors_of(torch.float32)
    flat = utils_op.flatten(tensors)
    views = utils_op.unflatten(flat, tensors)
    assert all(torch.equal(v, t) and v.shape == t.shape for v, t in zip(views, tensors))
    views[0].zero_()
    assert not flat[:15].any()
    assert utils_op.unflatten(torch.ones(0), []) == ()


@pytest.mark.parametrize("flat", [torch.ones(5), torch.ones(2, 3)])
def test_unflatten_refuses_sizes_that_do_not_add_up(utils_op, flat):
    with pytest.raises(RuntimeError, match="but the tensors hold 6 elements"):
        utils_op.unflatten(flat, [torch.ones(2), torch.ones(4)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_bytes_are_a_view_of_the_same_memory(utils_op, dtype):
    for tensor in tensors_of(dtype):
        view = utils_op.cast_to_byte_tensor(tensor)
        assert view.dtype == torch.uint8 and view.dim() == 1
        assert view.numel() == tensor.numel() * tensor.element_size()
        assert view.data_ptr() == tensor.data_ptr()
    source = torch.zeros(4, dtype=dtype)
    view = utils_op.cast_to_byte_tensor(source)
    view.fill_(255)
    assert source.ne(0).all() or source.isnan().all()
    del source
    assert view.eq(255).all(), "the view keeps the memory alive"


def test_bytes_of_lists_parameters_and_byte_wide_tensors(utils_op):
    first, *_ = views = utils_op.cast_to_byte_tensor([torch.ones(2), torch.ones(3)])
    assert [v.numel() for v in views] == [8, 12] and isinstance(views, list)
    assert first.view(torch.float32).tolist() == [1.0, 1.0]
    assert utils_op.cast_to_byte_tensor(torch.nn.Parameter(torch.ones(2))).numel() == 8
    for dtype in (torch.uint8, torch.int8, torch.bool):
        tensor = torch.ones(2, 3).to(dtype)
        assert utils_op.cast_to_byte_tensor(tensor) is tensor


def test_bytes_of_strided_tensors_are_refused(utils_op):
    with pytest.raises(RuntimeError, match=r"not contiguous; pass \.contiguous\(\)"):
        utils_op.cast_to_byte_tensor(torch.ones(4, 4).t())


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 50_000), min_size=1, max_size=30),
    dtype=st.sampled_from(DTYPES),
)
def test_unflatten_undoes_flatten(utils_op, sizes, dtype):
    tensors = tensors_of(dtype, [(size,) for size in sizes])
    views = utils_op.unflatten(utils_op.flatten(tensors), tensors)
    assert all(map(torch.equal, views, tensors))
