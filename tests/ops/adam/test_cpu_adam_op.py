"""The native functions of op cpu_adam against float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..memory import need_gigabytes
from ..reference import DTYPES, SIZES, adam64, assert_near, random_tensors

HYPER = (1e-2, 0.9, 0.99, 1e-8)  # lr, betas, eps


def step(op, tensors, step, hyper=HYPER, decay=0.1, adamw=True, bias_correction=True):
    lists = [[tensor] for tensor in tensors]
    op.adam_step(*lists, step, *hyper, decay, adamw, bias_correction)
    return [tensors[0], tensors[2], tensors[3]]


@pytest.fixture
def optimizer_id(adam_op):
    adam_op.create_adam(900_001, *HYPER, 0.0, True, False)
    yield 900_001
    adam_op.destroy_adam(900_001)


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_step_matches_float64(simd, adam_op, dtypes):
    p, g, s = dtypes
    for size, offset in itertools.product(SIZES, (0, 1)):
        tensors = random_tensors(size, (p, g, s, s), offset)
        expected = adam64(*tensors, 3, *HYPER, 0.1, True, True)
        assert_near(step(adam_op, tensors, 3), expected)


@pytest.mark.parametrize("adamw", [True, False])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.3, -0.3])
def test_ten_steps_match_float64_in_each_mode(simd, adam_op, adamw, bias_correction, decay):
    tensors = random_tensors(1023, (torch.float32,) * 4)
    tensors[2].zero_(), tensors[3].zero_()
    p, m, v = (tensors[i].double() for i in (0, 2, 3))
    for t in range(1, 11):
        tensors[1].normal_()
        p, m, v = adam64(p, tensors[1], m, v, t, *HYPER, decay, adamw, bias_correction)
        got = step(adam_op, tensors, t, HYPER, decay, adamw, bias_correction)
    assert_near(got, [p, m, v], steps=10)


def test_step_number_may_jump_forwards_and_backwards(adam_op, optimizer_id):
    tensors = random_tensors(127, (torch.float32,) * 4)
    for t in (1, 1000, 5, 10**9):
        expected = adam64(*tensors, t, *HYPER, 0.0, True, True)
        adam_op.adam_update(optimizer_id, t, *HYPER, 0.0, True, *tensors)
        assert_near([tensors[0], tensors[2], tensors[3]], expected)


def test_update_uses_the_mode_its_id_was_created_with(adam_op):
    for number, adamw in ((900_002, True), (900_003, False)):
        adam_op.create_adam(number, *HYPER, 0.3, adamw, False)
    for number, adamw in ((900_002, True), (900_003, False), (900_002, True)):
        tensors = random_tensors(33, (torch.float32,) * 4)
        expected = adam64(*tensors, 2, *HYPER, 0.3, adamw, True)
        assert adam_op.adam_update(number, 2, *HYPER, 0.3, True, *tensors) == 0
        assert_near([tensors[0], tensors[2], tensors[3]], expected)
    for number in (900_002, 900_003, 900_003):
        assert adam_op.destroy_adam(number) == 0


def test_unknown_id_is_an_error(adam_op):
    with pytest.raises(RuntimeError, match="no optimizer with id 77123"):
        adam_op.adam_update(77123, 1, *HYPER, 0.0, True, *random_tensors(3, (torch.float32,) * 4))


def test_many_tensors_in_one_call_match_one_call_each(simd, adam_op):
    dtypes = [DTYPES[i % len(DTYPES)] for i in range(3 * len(SIZES))]
    rows = [
        random_tensors(size, (p, g, s, s), seed=i)
        for i, (size, (p, g, s)) in enumerate(zip(SIZES * 3, dtypes))
    ]
    alone = [[tensor.clone() for tensor in row] for row in rows]
    for row in alone:
        step(adam_op, row, 4)
    adam_op.adam_step(*(list(column) for column in zip(*rows)), 4, *HYPER, 0.1, True, True)
    for row, single in zip(rows, alone):
        for tensor, expected in zip(row, single):
            assert torch.equal(tensor, expected)


def test_result_does_not_depend_on_the_number_of_threads(adam_op):
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            tensors = random_tensors(123_457, (torch.float32,) * 4, offset=1)
            results.append(step(adam_op, tensors, 2))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_not_finite_gradients_reach_their_own_element_only(simd, adam_op, value):
    tensors = random_tensors(70, (torch.float32,) * 4)
    tensors[1][37] = value
    expected = adam64(*tensors, 3, *HYPER, 0.1, True, True)
    got = step(adam_op, tensors, 3)
    assert_near(got, expected)
    assert got[0].isnan().nonzero().flatten().tolist() == [37]


def test_infinite_parameter_without_decay_leaves_the_states_finite(simd, adam_op):
    for adamw in (True, False):
        tensors = random_tensors(70, (torch.float32,) * 4)
        tensors[0][3] = float("inf")
        p, m, v = step(adam_op, tensors, 3, decay=0.0, adamw=adamw)
        assert p[3] == float("inf") and m.isfinite().all() and v.isfinite().all()


def test_empty_lists_and_empty_tensors_are_no_error(adam_op):
    adam_op.adam_step([], [], [], [], 1, *HYPER, 0.0, True, True)
    rows = [random_tensors(size, (torch.float32,) * 4) for size in (0, 5, 0, 0, 3, 0)]
    expected = [adam64(*row, 1, *HYPER, 0.0, True, True) for row in rows]
    adam_op.adam_step(*(list(c) for c in zip(*rows)), 1, *HYPER, 0.0, True, True)
    for row, reference in zip(rows, expected):
        assert_near([row[0], row[2], row[3]], reference)


@pytest.mark.parametrize(
    ("stream", "wrong", "message"),
    [
        (1, None, "grads holds 1 tensors but params holds 2"),
        (1, torch.ones(9), r"grads\[1\] has 9 elements but params has 8"),
        (2, torch.ones(8).double(), r"exp_avgs\[1\] is of an unsupported dtype; convert it"),
        (0, torch.ones(16)[::2], r"params\[1\] is not contiguous"),
        (1, torch.ones(8).to_sparse(), r"grads\[1\] is not a dense"),
        (3, torch.ones(8, device="meta"), r"exp_avg_sqs\[1\] is not on the CPU"),
        (3, "exp_avgs", r"exp_avg_sqs\[1\] shares memory with exp_avgs"),
    ],
)
def test_wrong_tensors_are_refused_before_anything_is_written(adam_op, stream, wrong, message):
    lists = [[torch.ones(8), torch.ones(8)] for _ in range(4)]
    if wrong is None:
        lists[stream].pop()
    else:
        lists[stream][1] = lists[2][1][:] if isinstance(wrong, str) else wrong
    with pytest.raises(RuntimeError, match=message):
        adam_op.adam_step(*lists, 1, *HYPER, 0.0, True, True)
    for tensors in lists:
        assert torch.equal(tensors[0], torch.ones(8))


@pytest.mark.parametrize(
    ("t", "hyper", "message"),
    [
        (0, HYPER, "step is 0"),
        (-3, HYPER, "step is -3"),
        (1, (1e-2, 1.0, 0.99, 1e-8), "beta1 is 1"),
        (1, (1e-2, 0.9, -0.1, 1e-8), "beta2 is -0.1"),
        (1, (1e-2, float("nan"), 0.9, 1e-8), "beta1 is nan"),
    ],
)
def test_wrong_numbers_are_refused(adam_op, t, hyper, message):
    with pytest.raises(RuntimeError, match=message):
        step(adam_op, random_tensors(3, (torch.float32,) * 4), t, hyper)


# -- rollback --------------------------------------------------------------------------------


@pytest.mark.parametrize("adamw", [True, False])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_rollback_undoes_a_step_in_its_mode(simd, adam_op, adamw, bias_correction):
    adam_op.create_adam(900_004, *HYPER, 0.1, adamw, False)
    tensors = random_tensors(1023, (torch.float32,) * 4)
    before = [tensor.clone() for tensor in tensors]
    arguments = (900_004, 5, *HYPER, 0.1, bias_correction)
    adam_op.adam_update(*arguments, *tensors)
    assert adam_op.adam_rollback(*arguments, *tensors) == 0
    for tensor, original in zip(tensors, before):
        torch.testing.assert_close(tensor, original, rtol=1e-5, atol=2e-6)
    adam_op.destroy_adam(900_004)


def test_rollback_to_a_zero_state_leaves_no_negative_squares(simd, adam_op, optimizer_id):
    tensors = random_tensors(4099, (torch.float32,) * 4)
    tensors[3].zero_()
    arguments = (optimizer_id, 1, *HYPER, 0.0, True)
    adam_op.adam_update(*arguments, *tensors)
    assert adam_op.adam_rollback(*arguments, *tensors) == 0
    assert (tensors[3] >= 0).all()


def test_rollback_keeps_not_finite_values(simd, adam_op, optimizer_id):
    tensors = random_tensors(64, (torch.float32,) * 4)
    tensors[0][5], tensors[0][6], tensors[3][7] = float("nan"), float("inf"), float("nan")
    assert adam_op.adam_rollback(optimizer_id, 2, *HYPER, 0.0, True, *tensors) == 0
    assert tensors[0][5].isnan() and tensors[0][6] == float("inf") and tensors[3][7].isnan()


@pytest.mark.parametrize("hyper", [HYPER, (1e-2, 0.0, 0.9, 1e-8), (1e-2, 0.9, 0.0, 1e-8)])
def test_rollback_says_when_it_cannot(adam_op, optimizer_id, hyper):
    dtype = torch.bfloat16 if hyper is HYPER else torch.float32
    tensors = random_tensors(8, (dtype, dtype, torch.float32, torch.float32))
    before = [tensor.clone() for tensor in tensors]
    assert adam_op.adam_rollback(optimizer_id, 2, *hyper, 0.0, True, *tensors) == -1
    assert all(map(torch.equal, tensors, before))


# -- torch.compile, properties, size -----------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_step_traces_as_one_graph(adam_op, dynamic):
    def train(p, g, m, v):
        torch.ops.deepspeed_cpu_adam.adam_step([p], [g], [m], [v], 1, *HYPER, 0.1, True, True)
        return p + 1

    compiled = torch.compile(train, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    eager, traced = (random_tensors(17, (torch.float32,) * 4) for _ in range(2))
    assert torch.equal(compiled(*traced), train(*eager))
    assert all(map(torch.equal, eager, traced))


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
    dtypes=st.sampled_from(DTYPES),
    t=st.integers(1, 10**6),
    lr=st.floats(1e-6, 0.1),
    beta1=st.floats(0.0, 0.999),
    beta2=st.floats(0.0, 0.9999),
    decay=st.floats(0.0, 0.5),
    adamw=st.booleans(),
    bias_correction=st.booleans(),
)
def test_any_step_matches_float64(
    adam_op, sizes, dtypes, t, lr, beta1, beta2, decay, adamw, bias_correction
):
    p, g, s = dtypes
    rows = [random_tensors(n, (p, g, s, s), offset=n % 2, seed=t) for n in sizes]
    hyper = (lr, beta1, beta2, 1e-2)
    expected = [adam64(*row, t, *hyper, decay, adamw, bias_correction) for row in rows]
    adam_op.adam_step(*(list(c) for c in zip(*rows)), t, *hyper, decay, adamw, bias_correction)
    for row, reference in zip(rows, expected):
        assert_near([row[0], row[2], row[3]], reference, steps=10)


@pytest.mark.large
def test_more_than_two_to_the_31_elements(adam_op):
    need_gigabytes(18)
    size = 2**31 + 3
    p, g, m, v = (torch.ones(size, dtype=torch.bfloat16) for _ in range(4))
    tail = [x[-5:].clone() for x in (p, g, m, v)]
    expected = adam64(*tail, 1, *HYPER, 0.1, True, True)
    adam_op.adam_step([p], [g], [m], [v], 1, *HYPER, 0.1, True, True)
    assert_near([p[-5:], m[-5:], v[-5:]], expected)
    for piece in p.split(2**28):
        assert bool((piece == p[-1]).all())
