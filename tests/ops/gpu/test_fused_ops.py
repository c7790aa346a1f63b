"""The native functions of the GPU optimizers against float64, on sizes and layouts that are odd."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.ops.reference import adam64, assert_near, lion64, random_tensors

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
#: Around vectors and chunks of every type, and several chunks.
SIZES = (0, 1, 7, 127, 0, 2047, 2048, 4095, 4096, 4097, 8191, 8193, 16384, 100_003, 0)
KINDS = [(F32, F32), (F64, F64), (F16, F16), (BF16, BF16), (F16, F32), (BF16, F32)]
HYPER = (1e-2, 0.9, 0.99, 1e-8, 0.1)


def lists_of(kind, count: int, sizes=SIZES, offset: int = 0, squares: bool = True):
    """``count`` lists (parameters, gradients, states …) on the GPU, one tensor a size."""
    param, state = kind
    dtypes = (param, param, *[state] * (count - 2))
    rows = [random_tensors(n, dtypes, offset, squares, seed=i) for i, n in enumerate(sizes)]
    # Moved with what lies in front, so that the addresses stay odd.
    return [[_moved(row[s], offset) for row in rows] for s in range(count)]


def _moved(tensor: Tensor, offset: int) -> Tensor:
    room = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device="cuda")
    return room[offset:].copy_(tensor)


def near(results: list[list[Tensor]], expected: list[list[Tensor]]) -> None:
    for row, reference in zip(zip(*results), zip(*expected)):
        if row[0].dtype == F64:
            for result, wanted in zip(row, reference):
                torch.testing.assert_close(result, wanted, rtol=1e-12, atol=1e-13, equal_nan=True)
        else:
            assert_near(list(row), list(reference))


def adam(op, lists, step=3, adamw=True, bias=True, hyper=HYPER):
    lr, beta1, beta2, eps, decay = hyper
    references = [
        adam64(*row, step, lr, beta1, beta2, eps, decay, adamw, bias) for row in zip(*lists)
    ]
    op.adam_step(*lists, step, *hyper, adamw, bias)
    near([lists[0], lists[2], lists[3]], [list(column) for column in zip(*references)])


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_adam_matches_float64(adam_op, kind, offset):
    for adamw in (True, False):
        adam(adam_op, lists_of(kind, 4, offset=offset), adamw=adamw, bias=adamw)


@pytest.mark.parametrize("count", [1, 37, 99, 100, 101, 111, 1000])
def test_any_number_of_tensors_is_one_update(adam_op, count):
    sizes = [(i * 37) % 5000 for i in range(count)]
    adam(adam_op, lists_of((F32, F32), 4, sizes))


def test_empty_lists_and_only_empty_tensors_do_nothing(adam_op, lion_op):
    adam_op.adam_step([], [], [], [], 1, *HYPER, True, True)
    adam(adam_op, lists_of((F32, F32), 4, (0, 0)))
    lion_op.lion_step([], [], [], *HYPER[:3], 0.0)


def test_infinities_and_nans_propagate(adam_op, lion_op):
    for value in (float("nan"), float("inf")):
        lists = lists_of((F32, F32), 4, (5000,))
        lists[1][0][1234] = value
        adam(adam_op, lists)
        lists = lists_of((F32, F32), 3, (5000,), squares=False)
        lists[1][0][1234] = value
        lion(lion_op, lists)


def test_deepspeeds_function_takes_its_order_of_lists(adam_op):
    lists = lists_of((F32, F32), 4)
    expected = [[t.clone() for t in column] for column in lists]
    adam_op.adam_step(*expected, 5, *HYPER, False, True)
    p, g, m, v = lists
    lr, beta1, beta2, eps, decay = HYPER
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    adam_op.multi_tensor_adam(65536, flag, [g, p, m, v], lr, beta1, beta2, eps, 5, 0, 1, decay)
    for column, wanted in zip(lists, expected):
        assert all(map(torch.equal, column, wanted))


def lion(op, lists, hyper=(1e-2, 0.9, 0.99, 0.1)):
    lr, beta1, beta2, decay = hyper
    for g, m in zip(lists[1], lists[2]):
        # A sum that cancels has the sign of its rounding: keep away from it.
        g[(beta1 * m.double() + (1 - beta1) * g.double()).abs() < 1e-6] = 1.0
    references = [lion64(*row, lr, beta1, beta2, decay) for row in zip(*lists)]
    op.lion_step(*lists, *hyper)
    near([lists[0], lists[2]], [list(column) for column in zip(*references)])


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("offset", [0, 1])
def test_lion_matches_float64(lion_op, kind, offset):
    lion(lion_op, lists_of(kind, 3, offset=offset, squares=False))


def test_lion_leaves_what_has_no_direction(lion_op):
    p = torch.randn(5000, device="cuda")
    zeros = torch.zeros(5000, device="cuda")
    before = p.clone()
    lion_op.lion_step([p], [zeros], [zeros.clone()], 0.1, 0.9, 0.99, 0.0)
    assert torch.equal(p, before)


def lamb64(p, g, m, v, step, hyper, bounds, scale=1.0, inside=False, bias=True):
    lr, beta1, beta2, eps, decay = hyper
    p, g, m, v = (x.double() for x in (p, g, m, v))
    g = g / scale
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    u = m / ((v + eps).sqrt() if inside else v.sqrt() + eps) + decay * p
    norm_p, norm_u = p.norm(), u.norm()
    trust = (norm_p / norm_u).clamp(*bounds) if norm_p > 0 and norm_u > 0 else norm_p.new_ones(())
    correction = (1 - beta2**step) ** 0.5 / (1 - beta1**step) if bias else 1.0
    return [p - lr * correction * trust * u, m, v, trust]


def lamb(op, lists, bounds=(0.01, 10.0), scale=1.0, inside=False, bias=True, hyper=HYPER):
    references = [lamb64(*row, 3, hyper, bounds, scale, inside, bias) for row in zip(*lists)]
    trust = torch.empty(len(lists[0]), device="cuda")
    op.lamb_step(
        *(*lists, [], trust, 3, *hyper, bounds[1], bounds[0], scale, None, inside, bias),
    )
    expected = [list(column) for column in zip(*references)]
    torch.testing.assert_close(trust.double(), torch.stack(expected[3]), rtol=1e-6, atol=0.0)
    near([lists[0], lists[2], lists[3]], expected[:3])


@pytest.mark.parametrize("kind", [(F32, F32), (F64, F64)], ids=str)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_lamb_matches_float64(lamb_op, kind, inside, bias):
    # A denominator near 0 makes u as large as m's rounding: keep v away from it.
    lists = lists_of(kind, 4)
    lists[3] = [v + 0.1 for v in lists[3]]
    lamb(lamb_op, lists, inside=inside, bias=bias, scale=8.0)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_lamb_takes_low_precision_parameters_and_gradients(lamb_op, dtype):
    lists = lists_of((F32, F32), 4)
    lists[1] = [g.to(dtype) for g in lists[1]]
    lists[3] = [v + 0.1 for v in lists[3]]
    lamb(lamb_op, lists)
    # And parameters, with states in float32.
    lists = lists_of((dtype, F32), 4)
    lists[3] = [v + 0.1 for v in lists[3]]
    lamb(lamb_op, lists)


def test_lamb_coefficients_are_clamped_and_1_without_a_norm(lamb_op):
    def tensor(value):
        return torch.full((5000,), value, device="cuda")

    zero = [tensor(0.0)]
    for p, g, wanted in ((1e3, 1e-3, 10.0), (1e-6, 1.0, 0.01), (0.0, 1.0, 1.0), (1.0, 0.0, 1.0)):
        trust = torch.empty(1, device="cuda")
        m, v = [tensor(0.0)], [tensor(0.0)]
        lr, beta1, beta2, eps, _ = HYPER
        lamb_op.lamb_step(
            *([tensor(p)], [tensor(g)], m, v, [], trust, 1, lr, beta1, beta2, eps, 0.0),
            *(10.0, 0.01, 1.0, None, False, True),
        )
        assert trust.item() == pytest.approx(wanted)
    assert zero[0].sum() == 0


def test_lamb_repeats_bit_for_bit_and_writes_copies(lamb_op):
    results = []
    for _ in range(2):
        lists = lists_of((F32, F32), 4, (1_000_003, 5, 300_000))
        copies = [torch.empty_like(p) for p in lists[0]]
        trust = torch.empty(3, device="cuda")
        lamb_op.lamb_step(*lists, copies, trust, 3, *HYPER, 10.0, 0.01, 1.0, None, False, True)
        assert all(map(torch.equal, copies, lists[0]))
        results.append([*lists[0], *lists[2], *lists[3], trust])
    assert all(map(torch.equal, *results))


def test_deepspeeds_lamb_function(lamb_op):
    p, g, m, v = (column[0] for column in lists_of((F32, F32), 4, (5001,)))
    v += 0.1
    lr, beta1, beta2, eps, decay = HYPER
    wanted = lamb64(p, g, m, v, 2, HYPER, (0.01, 10.0), scale=4.0, inside=True)
    copy = torch.empty_like(p)
    trust = lamb_op.lamb(p, copy, m, v, g, lr, beta1, beta2, 10.0, 0.01, eps, 4.0, 2, 0, 1, decay)
    assert trust.shape == (1,) and torch.equal(copy, p)
    assert_near([p, m, v], wanted[:3])


def test_a_gpu_scale_divides_as_a_host_scale_does(lamb_op):
    results = []
    for host, device in ((4.0, None), (1.0, torch.tensor(4.0, device="cuda"))):
        lists = lists_of((F32, F32), 4, (5000,))
        trust = torch.empty(1, device="cuda")
        lamb_op.lamb_step(*lists, [], trust, 3, *HYPER, 10.0, 0.01, host, device, False, True)
        results.append(lists[0][0])
    assert torch.equal(*results)


def refused(call, *words: str) -> None:
    with pytest.raises(RuntimeError) as error:
        call()
    for word in words:
        assert word in str(error.value)


def test_what_cannot_be_updated_is_refused_and_nothing_is_written(adam_op):
    def step(change, *words):
        lists = lists_of((F32, F32), 4, (300, 5000))
        before = [[t.clone() for t in column] for column in lists]
        change(lists)
        refused(lambda: adam_op.adam_step(*lists, 1, *HYPER, True, True), *words)
        assert torch.equal(lists[0][0], before[0][0])

    def put(stream, tensor):
        def change(lists):
            lists[stream][1] = tensor

        return change

    step(put(1, torch.randn(5000)), "grads[1]", "not on a GPU")
    step(put(1, torch.randn(4999, device="cuda")), "grads[1]", "4999 elements")
    step(put(0, torch.randn(5000, device="cuda").half()), "params[1]", "another dtype")
    step(put(2, torch.randn(10000, device="cuda")[::2]), "exp_avgs[1]", "order")
    step(put(0, torch.ones(5000, dtype=torch.int32, device="cuda")), "params[1]", "dtype")
    step(lambda lists: lists[3].pop(), "exp_avg_sqs holds 1")
    step(lambda lists: lists.__setitem__(1, [g.half() for g in lists[1]]), "different dtypes")
    lists = lists_of((F32, F32), 4, (300,))
    refused(lambda: adam_op.adam_step(*lists, 0, *HYPER, True, True), "step is 0")
    refused(lambda: adam_op.adam_step(*lists, 1, 1e-3, 1.0, 0.9, 1e-8, 0.0, True, True), "beta1")


def test_channels_last_is_updated_in_place(adam_op):
    tensors = [torch.randn(3, 5, 7, 9, device="cuda") for _ in range(4)]
    tensors[3].square_()
    dense = [[t.clone()] for t in tensors]
    channels = [[t.clone(memory_format=torch.channels_last)] for t in tensors]
    for lists in (dense, channels):
        adam_op.adam_step(*lists, 1, *HYPER, True, True)
    assert channels[0][0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(dense[0][0], channels[0][0])


def test_work_goes_to_the_current_stream(adam_op):
    lists = lists_of((F32, F32), 4, (1 << 24,))
    expected = [[t.clone() for t in column] for column in lists]
    adam_op.adam_step(*expected, 1, *HYPER, True, True)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    gradient = lists[1][0].clone()
    with torch.cuda.stream(stream):
        # The gradient arrives on this stream, late; on any other the step would miss it.
        lists[1][0].zero_()
        torch.cuda._sleep(50_000_000)
        lists[1][0].copy_(gradient)
        adam_op.adam_step(*lists, 1, *HYPER, True, True)
    stream.synchronize()
    assert torch.equal(lists[0][0], expected[0][0])


def test_no_call_waits_for_the_gpu(adam_op, lion_op, lamb_op):
    lists = lists_of((F32, F32), 4, (1 << 20,))
    trust = torch.empty(1, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        adam_op.adam_step(*lists, 1, *HYPER, True, True)
        lion_op.lion_step(*lists[:3], *HYPER[:3], 0.0)
        lamb_op.lamb_step(*lists, [], trust, 3, *HYPER, 10.0, 0.01, 1.0, None, False, True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_graph_replays_the_values_it_captured(adam_op):
    lists = lists_of((F32, F32), 4, [1000 + 37 * i for i in range(250)])
    eager = [[t.clone() for t in column] for column in lists]
    graph = torch.cuda.CUDAGraph()
    warm = [[t.clone() for t in column] for column in lists]
    adam_op.adam_step(*warm, 1, *HYPER, True, True)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        adam_op.adam_step(*lists, 1, *HYPER, True, True)
    # Whatever the call kept on the host is overwritten by now, if it kept anything.
    junk = [torch.randn(1000).tolist() for _ in range(100)]
    for _ in range(3):
        graph.replay()
        adam_op.adam_step(*eager, 1, *HYPER, True, True)
    torch.cuda.synchronize()
    assert len(junk) == 100 and all(map(torch.equal, lists[0], eager[0]))


def test_torch_compile_traces_through(adam_op):
    def update(p, g, m, v):
        adam_op.adam_step([p], [g], [m], [v], 1, *HYPER, True, True)
        return p + 1

    compiled = torch.compile(update, fullgraph=True)
    p, g, m, v = (column[0] for column in lists_of((F32, F32), 4, (5000,)))
    twin = [t.clone() for t in (p, g, m, v)]
    torch.testing.assert_close(compiled(p, g, m, v), update(*twin))
    torch.testing.assert_close(p, twin[0])


@pytest.mark.parametrize("numel", [2**31 + 5])
def test_more_than_2_to_the_31_elements(adam_op, lion_op, numel):
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB of GPU memory")
    p, g, m, v = (torch.zeros(numel, dtype=BF16, device="cuda") for _ in range(4))
    places = [0, numel // 2, 2**31 - 1, 2**31, numel - 1]
    g[places] = 1.0
    adam_op.adam_step([p], [g], [m], [v], 1, 0.5, 0.9, 0.99, 1e-8, 0.0, True, True)
    assert p[places].tolist() == [-0.5] * len(places)
    assert all(bool((p[a + 1 : b] == 0).all()) for a, b in pairwise(places))
    lion_op.lion_step([p], [g], [m], 0.5, 0.9, 0.99, 0.0)
    assert p[places].tolist() == [-1.0] * len(places)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_tensors_of_another_gpu_than_the_current_one(adam_op):
    with torch.cuda.device(0):
        lists = [[t.to("cuda:1") for t in column] for column in lists_of((F32, F32), 4)]
        adam(adam_op, lists)
