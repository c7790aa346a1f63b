"""DeepSpeedCPUAdam against torch's Adam and AdamW."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepspeed.ops.adam import DeepSpeedCPUAdam

SHAPES = ((3, 5), (17,), (), (0,), (1023,))


def pair(torch_class, dtype=torch.float32, shapes=SHAPES, **options):
    """Our optimizer, torch's in float64, and their parameters."""
    ours = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    theirs = [torch.nn.Parameter(p.detach().double()) for p in ours]
    mode = torch_class is torch.optim.AdamW
    return (
        DeepSpeedCPUAdam(ours, adamw_mode=mode, **options),
        torch_class(theirs, foreach=False, **options),
        list(zip(ours, theirs)),
    )


def train(ours, theirs, params, steps):
    for _ in range(steps):
        for p, q in params:
            p.grad = torch.randn(p.shape).to(p.dtype)
            q.grad = p.grad.double()
        ours.step()
        theirs.step()


def assert_near(params, rtol=2e-6, atol=5e-7):
    for p, q in params:
        torch.testing.assert_close(p.double(), q, rtol=rtol, atol=atol)


@pytest.mark.parametrize("torch_class", [torch.optim.AdamW, torch.optim.Adam])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_ten_steps_match_torch_in_float64(simd, torch_class, decay):
    ours, theirs, params = pair(torch_class, lr=1e-2, weight_decay=decay)
    train(ours, theirs, params, 10)
    assert_near(params)


def test_interleaved_groups_with_different_betas_match_torch():
    ours, theirs, params = pair(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    for optimizer, side in ((ours, 0), (theirs, 1)):
        torch.manual_seed(5)
        extra = [torch.nn.Parameter(torch.randn(40)) for _ in range(2)]
        extra = [torch.nn.Parameter(e.detach().double()) if side else e for e in extra]
        for param, betas in zip(extra, ((0.5, 0.9), (0.0, 0.99))):
            optimizer.add_param_group({"params": [param], "betas": betas, "weight_decay": 0.2})
    params += [
        (p, q)
        for mine, other in zip(ours.param_groups[1:], theirs.param_groups[1:])
        for p, q in zip(mine["params"], other["params"])
    ]
    train(ours, theirs, params, 10)
    assert_near(params)


def test_without_bias_correction_the_first_step_is_smaller():
    param = torch.nn.Parameter(torch.zeros(3))
    param.grad = torch.ones(3)
    DeepSpeedCPUAdam([param], lr=1.0, bias_correction=False, eps=0.0).step()
    torch.testing.assert_close(param.detach(), torch.full((3,), -0.1 / 0.001**0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_training_stays_near_float64(dtype):
    ours, theirs, params = pair(torch.optim.AdamW, dtype, lr=1e-2, weight_decay=0.1)
    train(ours, theirs, params, 5)
    eps = torch.finfo(dtype).eps
    assert_near(params, rtol=5 * eps, atol=5 * eps)


def test_sparse_gradients_are_refused():
    weight = torch.nn.Parameter(torch.randn(10, 3))
    torch.nn.functional.embedding(torch.tensor([1, 2]), weight, sparse=True).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        DeepSpeedCPUAdam([weight]).step()


def test_attributes_callers_read():
    optimizer = DeepSpeedCPUAdam([torch.nn.Parameter(torch.ones(2))], adamw_mode=False)
    assert optimizer.adam_w_mode is False and optimizer.fp32_optimizer_states is True
    assert hasattr(optimizer.ds_opt_adam, "adam_update")
    group = optimizer.param_groups[0]
    assert group["betas"] == (0.9, 0.999) and group["bias_correction"] is True
    assert copy.deepcopy(optimizer).adam_w_mode is False


# -- state dictionaries of torch -------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
def test_training_may_move_from_torch_and_back(fused):
    ours, theirs, params = pair(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    train(ours, theirs, params, 3)
    theirs32 = torch.optim.AdamW(
        [torch.nn.Parameter(p.detach().clone()) for p, _ in params],
        lr=1e-2,
        weight_decay=0.1,
        fused=fused,
        foreach=False,
    )
    theirs32.load_state_dict(copy.deepcopy(ours.state_dict()))
    moved = [(p, q) for p, (_, q) in zip(theirs32.param_groups[0]["params"], params)]
    train(theirs32, theirs, moved, 2)
    back = DeepSpeedCPUAdam([p for p, _ in moved])
    back.load_state_dict(theirs32.state_dict())
    assert {type(back.state[p]["step"]) for p, _ in moved} == {int}
    assert {back.state[p]["step"] for p, _ in moved} == {5}
    assert back.param_groups[0]["lr"] == 1e-2
    train(back, theirs, moved, 3)
    assert_near(moved)


def test_torch_states_with_amsgrad_or_maximize_are_refused():
    for option in ("amsgrad", "maximize"):
        params = [torch.nn.Parameter(torch.ones(2))]
        params[0].grad = torch.ones(2)
        theirs = torch.optim.AdamW(params, **{option: True})
        theirs.step()
        with pytest.raises(RuntimeError, match=option):
            DeepSpeedCPUAdam(params).load_state_dict(theirs.state_dict())
        saved = theirs.state_dict()
        saved["param_groups"][0].pop("amsgrad")
        if option == "amsgrad":
            with pytest.raises(RuntimeError, match=option):
                DeepSpeedCPUAdam(params).load_state_dict(saved)


def test_state_saved_with_the_other_kind_of_decay_is_refused():
    theirs = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], weight_decay=0.1)
    saved = theirs.state_dict()
    if "decoupled_weight_decay" not in saved["param_groups"][0]:
        pytest.skip("this torch doesn't record the kind of decay")
    with pytest.raises(ValueError, match="adamw_mode=False"):
        DeepSpeedCPUAdam([torch.nn.Parameter(torch.ones(2))]).load_state_dict(saved)
    other = DeepSpeedCPUAdam([torch.nn.Parameter(torch.ones(2))], adamw_mode=False)
    other.load_state_dict(saved)


# -- subgroups -------------------------------------------------------------------------------------


def subgroup(dtype=torch.float32, **options):
    param = torch.nn.Parameter(torch.randn(130).to(dtype))
    param.grad = torch.randn(130).to(dtype)
    return param, DeepSpeedCPUAdam([param], lr=1e-2, weight_decay=0.1, **options)


def test_subgroups_keep_their_state_under_their_number():
    param, optimizer = subgroup()
    twin = torch.nn.Parameter(param.detach().clone())
    twin.grad = param.grad.clone()
    plain = DeepSpeedCPUAdam([twin], lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        optimizer.step_subgroup(7)
        plain.step()
    assert torch.equal(param, twin) and set(optimizer.state) == {7}
    assert optimizer.state[7]["step"] == 3
    assert optimizer.step_subgroup(8, lambda: 42) == 42
    assert optimizer.state[8]["step"] == 1 and optimizer.state[7]["step"] == 3


@pytest.mark.parametrize("adamw_mode", [True, False])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("strided", [True, False])
def test_rollback_returns_to_where_the_step_began(adamw_mode, bias_correction, strided):
    param, optimizer = subgroup(adamw_mode=adamw_mode, bias_correction=bias_correction)
    if strided:
        param.data = param.data.view(10, 13).t()
        param.grad = param.grad.view(13, 10)
    optimizer.step_subgroup(0)
    before = param.detach().clone()
    states = copy.deepcopy(optimizer.state[0])
    optimizer.step_subgroup(0)
    assert optimizer.rollback_subgroup(0, lambda: 3) == 3
    torch.testing.assert_close(param.detach(), before, rtol=1e-5, atol=1e-6)
    assert optimizer.state[0]["step"] == 1
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(optimizer.state[0][name], states[name], rtol=1e-4, atol=1e-6)


def test_rollback_without_a_step_is_an_error():
    _, optimizer = subgroup()
    with pytest.raises(RuntimeError, match="no step to roll back"):
        optimizer.rollback_subgroup(0)
    assert 0 not in optimizer.state
    optimizer.step_subgroup(0)
    optimizer.rollback_subgroup(0)
    with pytest.raises(RuntimeError, match="no step to roll back"):
        optimizer.rollback_subgroup(0)


def test_rollback_that_cannot_be_done_changes_nothing():
    param, optimizer = subgroup(torch.bfloat16)
    optimizer.step_subgroup(0)
    before = param.detach().clone()
    with pytest.raises(RuntimeError, match="can't be undone"):
        optimizer.rollback_subgroup(0)
    assert torch.equal(param, before) and optimizer.state[0]["step"] == 1


def test_two_parameters_cannot_share_a_subgroup():
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    for param in params:
        param.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="2 parameters have gradients"):
        DeepSpeedCPUAdam(params).step_subgroup(0)


@settings(deadline=None, max_examples=25)
@given(
    shapes=st.lists(st.sampled_from([(), (0,), (1,), (5, 3), (130,), (2, 64)]), max_size=8),
    present=st.lists(st.lists(st.booleans(), min_size=8, max_size=8), min_size=1, max_size=6),
    lr=st.floats(1e-5, 0.1),
    decay=st.floats(0.0, 0.2),
    torch_class=st.sampled_from([torch.optim.Adam, torch.optim.AdamW]),
)
def test_any_schedule_of_gradients_matches_torch(shapes, present, lr, decay, torch_class):
    shapes = shapes or [(3,)]
    ours, theirs, params = pair(torch_class, shapes=shapes, lr=lr, weight_decay=decay, eps=1e-4)
    for row in present:
        for (p, q), here in zip(params, row):
            p.grad = torch.randn(p.shape) if here else None
            q.grad = p.grad.double() if here else None
        ours.step()
        theirs.step()
    assert_near(params, rtol=5e-6, atol=2e-6)
