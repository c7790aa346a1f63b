"""DeepSpeedCPUAdagrad against torch's Adagrad, with dense and sparse gradients."""

from __future__ import annotations

import pytest
import torch

from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad


def pair(shape, dtype=torch.float32, **options):
    param = torch.nn.Parameter(torch.randn(shape).to(dtype))
    other = torch.nn.Parameter(param.detach().double())
    options = {"lr": 1e-2, **options}
    ours, theirs = (
        DeepSpeedCPUAdagrad([param], **options),
        torch.optim.Adagrad([other], foreach=False, **options),
    )
    return param, other, ours, theirs


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_ten_steps_match_torch_in_float64(simd, decay):
    param, other, ours, theirs = pair((37, 5), weight_decay=decay)
    for _ in range(10):
        param.grad = torch.randn(37, 5)
        other.grad = param.grad.double()
        ours.step()
        theirs.step()
    torch.testing.assert_close(param.double(), other, rtol=2e-6, atol=5e-7)


def sparse_gradient(indices, shape, sparse_dims=1, dtype=torch.float32):
    indices = torch.tensor(indices).reshape(sparse_dims, -1)
    values = torch.randn(indices.shape[1], *shape[sparse_dims:]).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


@pytest.mark.parametrize("indices", [[4, 1, 9], [3, 3, 0, 3], []])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sparse_gradients_update_the_rows_they_hold(indices, dtype):
    param, other, ours, theirs = pair((10, 6), dtype)
    for _ in range(3):
        before = param.detach().clone()
        param.grad = sparse_gradient(indices, (10, 6), dtype=dtype)
        # Summed in the gradient's own dtype, as autograd would have.
        other.grad = param.grad.coalesce().double()
        ours.step()
        theirs.step()
        changed = (param != before).any(1).nonzero().flatten().tolist()
        assert changed == sorted(set(indices))
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(param.double(), other, rtol=tolerance, atol=5e-7)
    assert ours.state[param]["step"] == 3


def test_sparse_in_both_dimensions_and_strided_parameters():
    param, other, ours, theirs = pair((4, 6))
    param.data = param.data.t().contiguous().t()
    param.grad = sparse_gradient([[0, 3, 0], [1, 5, 1]], (4, 6), 2)
    other.grad = param.grad.double()
    ours.step()
    theirs.step()
    torch.testing.assert_close(param.double(), other, rtol=2e-6, atol=5e-7)


def test_dense_and_sparse_gradients_in_one_group():
    weights = [torch.nn.Parameter(torch.randn(5, 2)) for _ in range(3)]
    twins = [torch.nn.Parameter(w.detach().double()) for w in weights]
    for weight, twin, sparse in zip(weights, twins, (True, False, True)):
        weight.grad = sparse_gradient([2], (5, 2)) if sparse else torch.randn(5, 2)
        twin.grad = weight.grad.double()
    DeepSpeedCPUAdagrad(weights, lr=1e-2).step()
    torch.optim.Adagrad(twins, lr=1e-2, foreach=False).step()
    for weight, twin in zip(weights, twins):
        torch.testing.assert_close(weight.double(), twin, rtol=2e-6, atol=5e-7)


def test_embedding_backward_feeds_the_step():
    weight = torch.nn.Parameter(torch.randn(10, 3))
    before = weight.detach().clone()
    torch.nn.functional.embedding(torch.tensor([7, 7, 2]), weight, sparse=True).sum().backward()
    DeepSpeedCPUAdagrad([weight]).step()
    assert (weight != before).any(1).nonzero().flatten().tolist() == [2, 7]


def test_decay_with_sparse_gradients_is_refused_before_anything_is_written():
    weights = [torch.nn.Parameter(torch.ones(5, 2)) for _ in range(2)]
    weights[0].grad = torch.ones(5, 2)
    weights[1].grad = sparse_gradient([2], (5, 2))
    optimizer = DeepSpeedCPUAdagrad(weights, weight_decay=0.1)
    with pytest.raises(RuntimeError, match="weight_decay would touch rows"):
        optimizer.step()
    assert all(torch.equal(w, torch.ones(5, 2)) for w in weights)
    assert [optimizer.state[w]["step"] for w in weights] == [0, 0]


def test_state_of_torch_adagrad_can_be_loaded():
    param, other, ours, theirs = pair((7,))
    for _ in range(2):
        other.grad = torch.randn(7).double()
        theirs.step()
    param.data.copy_(other)
    ours.load_state_dict(theirs.state_dict())
    assert ours.state[param]["step"] == 2 and set(ours.state[param]) == {"step", "exp_avg_sq"}
    param.grad = torch.randn(7)
    other.grad = param.grad.double()
    ours.step()
    theirs.step()
    torch.testing.assert_close(param.double(), other, rtol=2e-6, atol=5e-7)


def test_state_of_torch_adagrad_with_a_falling_rate_is_refused():
    theirs = torch.optim.Adagrad([torch.nn.Parameter(torch.ones(2))], lr_decay=0.1)
    ours = DeepSpeedCPUAdagrad([torch.nn.Parameter(torch.ones(2))])
    with pytest.raises(RuntimeError, match="lr_decay"):
        ours.load_state_dict(theirs.state_dict())


def test_attributes_callers_read():
    optimizer = DeepSpeedCPUAdagrad([torch.nn.Parameter(torch.ones(2))])
    assert optimizer.fp32_optimizer_states is True
    assert hasattr(optimizer.ds_opt_adagrad, "adagrad_update")
    assert optimizer.defaults["lr"] == 1e-2 and optimizer.defaults["eps"] == 1e-10
