"""The native functions of op cpu_adagrad against float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..reference import DTYPES, SIZES, adagrad64, assert_near, random_tensors

HYPER = (1e-2, 1e-10)  # lr, eps


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_step_matches_float64_and_leaves_the_gradient_alone(simd, adagrad_op, dtypes, decay):
    for size, offset in itertools.product(SIZES, (0, 1)):
        p, g, v = random_tensors(size, dtypes, offset)
        grad = g.clone()
        expected = adagrad64(p, g, v, *HYPER, decay)
        adagrad_op.adagrad_step([p], [g], [v], 1, *HYPER, decay)
        assert_near([p, v], expected, steps=2)
        assert torch.equal(g, grad)


def test_update_needs_a_known_id(adagrad_op):
    tensors = random_tensors(22, (torch.float32,) * 3)
    with pytest.raises(RuntimeError, match="no optimizer with id 900101"):
        adagrad_op.adagrad_update(900_101, 1, *HYPER, 0.0, *tensors)
    assert adagrad_op.create_adagrad(900_101, *HYPER, 0.0, False) == 0
    expected = adagrad64(*tensors, *HYPER, 0.0)
    assert adagrad_op.adagrad_update(900_101, 1, *HYPER, 0.0, *tensors) == 0
    assert_near([tensors[0], tensors[2]], expected)
    assert adagrad_op.destroy_adagrad(900_101) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_finite_gradients_reach_their_own_element_only(simd, adagrad_op, value):
    p, g, v = random_tensors(70, (torch.float32,) * 3)
    g[37] = value
    expected = adagrad64(p, g, v, *HYPER, 0.1)
    adagrad_op.adagrad_step([p], [g], [v], 1, *HYPER, 0.1)
    assert_near([p, v], expected)
    assert p.isnan().nonzero().flatten().tolist() == [37]


def test_wrong_tensors_are_refused_before_anything_is_written(adagrad_op):
    params = [torch.ones(8), torch.ones(8)]
    with pytest.raises(RuntimeError, match=r"exp_avg_sqs\[1\] has 9 elements"):
        adagrad_op.adagrad_step(
            params, [torch.ones(8)] * 2, [torch.ones(8), torch.ones(9)], 1, *HYPER, 0.0
        )
    assert torch.equal(params[0], torch.ones(8))
    with pytest.raises(RuntimeError, match="step is 0"):
        adagrad_op.adagrad_step([], [], [], 0, *HYPER, 0.0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_step_traces_as_one_graph(adagrad_op, dynamic):
    def train(p, g, v):
        torch.ops.deepspeed_cpu_adagrad.adagrad_step([p], [g], [v], 1, *HYPER, 0.1)
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
    decay=st.floats(0.0, 0.5),
)
def test_any_step_matches_float64(adagrad_op, sizes, dtypes, lr, decay):
    rows = [random_tensors(n, dtypes, offset=n % 2, seed=i) for i, n in enumerate(sizes)]
    expected = [adagrad64(*row, lr, 1e-2, decay) for row in rows]
    adagrad_op.adagrad_step(*(list(c) for c in zip(*rows)), 1, lr, 1e-2, decay)
    for row, reference in zip(rows, expected):
        assert_near([row[0], row[2]], reference, steps=10)
