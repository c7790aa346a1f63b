"""The native functions of op cpu_lion against float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..memory import need_gigabytes
from ..reference import DTYPES, SIZES, assert_near, lion64, random_tensors

HYPER = (1e-2, 0.9, 0.99)  # lr, betas


def away_from_zero(tensors, beta1):
    """Replace gradients that leave the sign of the direction to rounding."""
    _, g, m = tensors
    direction = beta1 * m.double() + (1 - beta1) * g.double()
    g[direction.abs() < 1e-6] = 4.0
    return tensors


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_step_matches_float64(simd, lion_op, dtypes, decay):
    for size, offset in itertools.product(SIZES, (0, 1)):
        tensors = away_from_zero(random_tensors(size, dtypes, offset, squares=False), 0.9)
        expected = lion64(*tensors, *HYPER, decay)
        lion_op.lion_step(*([x] for x in tensors), 1, *HYPER, decay)
        assert_near([tensors[0], tensors[2]], expected, steps=2)


def test_every_step_has_the_size_of_the_learning_rate(simd, lion_op):
    param, grad, state = torch.zeros(1000), torch.randn(1000), torch.zeros(1000)
    lion_op.lion_step([param], [grad], [state], 1, 0.5, 0.9, 0.99, 0.0)
    assert torch.equal(param, -0.5 * grad.sign())


def test_zero_direction_moves_nothing_and_nan_stays(simd, lion_op):
    grad = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-30] * 11)
    param, state = torch.ones(66), torch.zeros(66)
    lion_op.lion_step([param], [grad], [state], 1, 0.5, 0.9, 0.99, 0.0)
    expected = torch.tensor([1.0, 1.0, float("nan"), 0.5, 1.5, 0.5] * 11)
    torch.testing.assert_close(param, expected, rtol=0, atol=0, equal_nan=True)


def test_update_needs_a_known_id(lion_op):
    tensors = random_tensors(22, (torch.float32,) * 3)
    with pytest.raises(RuntimeError, match="no optimizer with id 900201"):
        lion_op.lion_update(900_201, 1, *HYPER, 0.0, *tensors)
    assert lion_op.create_lion(900_201, *HYPER, 0.0, False) == 0
    expected = lion64(*tensors, *HYPER, 0.0)
    assert lion_op.lion_update(900_201, 1, *HYPER, 0.0, *tensors) == 0
    assert_near([tensors[0], tensors[2]], expected)
    assert lion_op.destroy_lion(900_201) == 0


def test_wrong_arguments_are_refused_before_anything_is_written(lion_op):
    params = [torch.ones(8), torch.ones(8)]
    with pytest.raises(RuntimeError, match=r"exp_avgs\[1\] has 9 elements"):
        lion_op.lion_step(
            params, [torch.ones(8)] * 2, [torch.ones(8), torch.ones(9)], 1, *HYPER, 0.0
        )
    assert torch.equal(params[0], torch.ones(8))
    with pytest.raises(RuntimeError, match="step is 0"):
        lion_op.lion_step([], [], [], 0, *HYPER, 0.0)
    with pytest.raises(RuntimeError, match="beta2 is 1"):
        lion_op.lion_step([], [], [], 1, 1e-2, 0.9, 1.0, 0.0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_step_traces_as_one_graph(lion_op, dynamic):
    def train(p, g, m):
        torch.ops.deepspeed_cpu_lion.lion_step([p], [g], [m], 1, *HYPER, 0.1)
        return p + 1

    compiled = torch.compile(train, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    eager, traced = (random_tensors(17, (torch.float32,) * 3) for _ in range(2))
    assert torch.equal(compiled(*traced), train(*eager))
    assert all(map(torch.equal, eager, traced))


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
    dtypes=st.sampled_from(DTYPES),
    lr=st.floats(1e-6, 0.1),
    beta1=st.floats(0.0, 0.99),
    beta2=st.floats(0.0, 0.999),
    decay=st.floats(0.0, 0.5),
)
def test_any_step_matches_float64(lion_op, sizes, dtypes, lr, beta1, beta2, decay):
    rows = [
        away_from_zero(random_tensors(n, dtypes, n % 2, squares=False, seed=i), beta1)
        for i, n in enumerate(sizes)
    ]
    expected = [lion64(*row, lr, beta1, beta2, decay) for row in rows]
    lion_op.lion_step(*(list(c) for c in zip(*rows)), 1, lr, beta1, beta2, decay)
    for row, reference in zip(rows, expected):
        assert_near([row[0], row[2]], reference, steps=10)


@pytest.mark.large
def test_more_than_two_to_the_31_elements(lion_op):
    need_gigabytes(14)
    size = 2**31 + 3
    p, g, m = (torch.ones(size, dtype=torch.bfloat16) for _ in range(3))
    expected = lion64(p[-5:].clone(), g[-5:], m[-5:].clone(), *HYPER, 0.1)
    lion_op.lion_step([p], [g], [m], 1, *HYPER, 0.1)
    assert_near([p[-5:], m[-5:]], expected)
    for piece in p.split(2**28):
        assert bool((piece == p[-1]).all())
