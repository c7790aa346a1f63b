"""DeepSpeedCPULion over several steps, and the states of older versions."""

from __future__ import annotations

import copy

import pytest
import torch

from deepspeed.ops.lion import DeepSpeedCPULion

from ..reference import lion64


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_ten_steps_match_float64(simd, decay):
    param = torch.nn.Parameter(torch.randn(37, 5))
    optimizer = DeepSpeedCPULion([param], lr=1e-2, betas=(0.9, 0.99), weight_decay=decay)
    p, m = param.detach().double(), torch.zeros(37, 5).double()
    for _ in range(10):
        param.grad = torch.randn(37, 5)
        p, m = lion64(p, param.grad, m, 1e-2, 0.9, 0.99, decay)
        optimizer.step()
    torch.testing.assert_close(param.double(), p, rtol=2e-6, atol=5e-7)
    torch.testing.assert_close(optimizer.state[param]["exp_avg"].double(), m, rtol=2e-6, atol=5e-7)


def test_second_moment_saved_by_older_versions_is_accepted_and_dropped():
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = DeepSpeedCPULion([param])
    optimizer.step()
    assert set(optimizer.state[param]) == {"step", "exp_avg"}
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["exp_avg_sq"] = torch.zeros(3)
    optimizer.load_state_dict(saved)
    assert set(optimizer.state[param]) == {"step", "exp_avg"}
    optimizer.step()


def test_sparse_gradients_are_refused():
    weight = torch.nn.Parameter(torch.randn(10, 3))
    torch.nn.functional.embedding(torch.tensor([1, 2]), weight, sparse=True).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        DeepSpeedCPULion([weight]).step()


def test_attributes_callers_read():
    optimizer = DeepSpeedCPULion([torch.nn.Parameter(torch.ones(2))])
    assert optimizer.fp32_optimizer_states is True
    assert hasattr(optimizer.ds_opt_lion, "lion_update")
    assert optimizer.defaults == {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0}
