"""The GPU optimizers against torch's and against their own formulas."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from deepspeed.ops.adam import FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import FusedLion

SHAPES = ((3, 5), (17,), (), (0,), (1023,), (130, 70), (0, 4))
ALL = [FusedAdam, FusedLion, FusedLamb]


def parameters(dtype: torch.dtype = torch.float32, shapes=SHAPES) -> list[Parameter]:
    torch.manual_seed(3)
    return [Parameter(torch.randn(shape, device="cuda").to(dtype)) for shape in shapes]


def twins(params: list[Parameter]) -> list[Parameter]:
    return [Parameter(p.detach().double()) for p in params]


def give_gradients(seed: int, *sides: list[Parameter]) -> None:
    """The same random gradients for every side, in each parameter's dtype."""
    torch.manual_seed(seed)
    for row in zip(*sides):
        grad = torch.randn(row[0].shape, device=row[0].device).to(row[0].dtype)
        for param in row:
            param.grad = grad.to(param.dtype, copy=True)


def near(ours: list[Parameter], theirs: list[Tensor], rtol=2e-6, atol=5e-7) -> None:
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p.double(), q.double(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("capturable", [False, True])
def test_ten_adam_steps_match_torch_in_float64(mode, capturable):
    ours = parameters()
    theirs = twins(ours)
    options = {"lr": 1e-2, "betas": (0.8, 0.95), "weight_decay": 0.1}
    optimizer = FusedAdam(ours, adam_w_mode=mode, capturable=capturable, **options)
    reference = (torch.optim.AdamW if mode else torch.optim.Adam)(theirs, foreach=False, **options)
    for seed in range(10):
        give_gradients(seed, ours, theirs)
        optimizer.step()
        reference.step()
    near(ours, theirs)
    assert optimizer.adam_w_mode == int(mode)


def test_every_parameter_counts_its_own_steps_once():
    """DeepSpeed counts only the last one, once for each dtype."""
    params = [*parameters(), *parameters(torch.bfloat16), *parameters(torch.float16)]
    optimizer = FusedAdam(params)
    for seed in range(3):
        give_gradients(seed, params)
        if seed == 1:
            params[0].grad = None
        optimizer.step()
    counts = [optimizer.state[p]["step"] for p in params]
    assert counts == [2] + [3] * (len(params) - 1)
    assert optimizer.param_groups[0]["step"] == 3


@pytest.mark.parametrize("make", ALL)
def test_low_precision_parameters_stay_close_to_float64(make):
    for dtype in (torch.bfloat16, torch.float16):
        ours = parameters(dtype)
        wide = twins(ours)
        optimizer, reference = make(ours, lr=1e-3), make(wide, lr=1e-3)
        for seed in range(3):
            give_gradients(seed, ours, wide)
            optimizer.step()
            reference.step()
        near(ours, wide, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
        wanted = torch.float32 if make is FusedLamb else dtype
        assert optimizer.state[ours[0]]["exp_avg"].dtype == wanted


def test_a_checkpoint_of_deepspeed_with_mixed_counts_goes_on_at_the_highest():
    params = parameters()
    optimizer = FusedAdam(params)
    give_gradients(0, params)
    for _ in range(5):
        optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    for index in range(len(params) - 1):
        saved["state"][index]["step"] = 0
    restored = FusedAdam([Parameter(p.detach().clone()) for p in params])
    restored.load_state_dict(saved)
    assert {state["step"] for state in restored.state.values()} == {5}


@pytest.mark.parametrize("capturable", [False, True])
def test_state_goes_to_torch_and_back(capturable):
    ours = parameters()
    theirs = [Parameter(p.detach().clone()) for p in ours]
    options = {"lr": 1e-2, "weight_decay": 0.1}
    optimizer = FusedAdam(ours, capturable=capturable, **options)
    reference = torch.optim.AdamW(theirs, foreach=False, **options)
    give_gradients(0, ours, theirs)
    optimizer.step()
    reference.step()
    # Each goes on from the other's state.
    state_ours, state_theirs = map(copy.deepcopy, (optimizer.state_dict(), reference.state_dict()))
    optimizer.load_state_dict(state_theirs)
    reference.load_state_dict(state_ours)
    give_gradients(1, ours, theirs)
    optimizer.step()
    reference.step()
    near(ours, theirs)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("duplicate", [lambda o: pickle.loads(pickle.dumps(o)), copy.deepcopy])
def test_pickles_and_copies_go_on_alike(make, capturable, duplicate):
    params = parameters()
    optimizer = make(params, lr=1e-2, capturable=capturable)
    give_gradients(0, params)
    optimizer.step()
    twin = duplicate(optimizer)
    others = twin.param_groups[0]["params"]
    give_gradients(1, params, others)
    optimizer.step()
    twin.step()
    near(params, others, rtol=0, atol=0)
    assert twin.state[others[0]]["step"] == 2


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("capturable", [False, True])
def test_strided_and_channels_last_parameters_are_updated(make, capturable):
    def layouts() -> list[Parameter]:
        torch.manual_seed(1)
        base = torch.randn(40, 60, device="cuda")
        image = torch.randn(4, 3, 8, 8, device="cuda")
        return [
            Parameter(base[:, ::2]),
            Parameter(base.clone().t()),
            Parameter(image.to(memory_format=torch.channels_last)),
            Parameter(image.clone()),
        ]

    odd = layouts()
    even = [Parameter(p.detach().clone(memory_format=torch.contiguous_format)) for p in odd]
    optimizers = make(odd, lr=1e-2, capturable=capturable), make(even, lr=1e-2)
    for seed in range(3):
        give_gradients(seed, odd, even)
        for optimizer in optimizers:
            optimizer.step()
    near(odd, even, rtol=1e-6, atol=1e-6)


def test_arguments_of_the_old_interface_are_refused():
    params = parameters()
    optimizer = FusedAdam(params)
    for name in ("grads", "output_params", "scale", "grad_norms"):
        with pytest.raises(RuntimeError, match="takes gradients from the parameters"):
            optimizer.step(**{name: 1.0})
    optimizer.step(grad_scaler="ignored")
    for make in ALL:
        with pytest.raises(RuntimeError, match="sparse"):
            embedding = torch.nn.Embedding(5, 3, sparse=True, device="cuda")
            embedding(torch.tensor([1], device="cuda")).sum().backward()
            make(embedding.parameters()).step()
        with pytest.raises(RuntimeError, match=r"not on a GPU|updates GPU tensors"):
            cpu = Parameter(torch.randn(3))
            cpu.grad = torch.randn(3)
            make([cpu]).step()
    for make in (FusedAdam, FusedLamb):
        with pytest.raises(RuntimeError, match="amsgrad"):
            make(params, amsgrad=True)


def test_zero_grad_does_what_the_constructor_says():
    params = parameters()
    for none in (True, False):
        optimizer = FusedAdam(params, set_grad_none=none)
        give_gradients(0, params)
        optimizer.zero_grad()
        assert all((p.grad is None) == none for p in params)
        give_gradients(0, params)
        optimizer.zero_grad(set_to_none=not none)
        assert all((p.grad is None) != none for p in params)


def test_closure_runs_with_gradients_and_its_loss_is_returned():
    for make in ALL:
        param = Parameter(torch.ones(3, device="cuda"))
        optimizer = make([param], lr=0.1)

        def closure(param=param, optimizer=optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = param.square().sum()
            loss.backward()
            return loss

        assert optimizer.step(closure).item() == 3.0
        assert not torch.equal(param, torch.ones(3, device="cuda"))


@pytest.mark.parametrize("make", ALL)
def test_a_captured_step_counts_and_follows_the_learning_rate(make):
    rate = torch.tensor(1e-2, device="cuda")
    ours, theirs = parameters(), parameters()
    optimizer = make(ours, lr=rate, weight_decay=0.1, capturable=True)
    reference = make(theirs, lr=1e-2, weight_decay=0.1)
    give_gradients(0, ours, theirs)
    optimizer.step()
    reference.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for lr in (1e-2, 3e-3, 1e-3):
        rate.fill_(lr)
        reference.param_groups[0]["lr"] = lr
        graph.replay()
        reference.step()
    near(ours, theirs, rtol=1e-5, atol=1e-6)
    assert {float(state["step"]) for state in optimizer.state.values()} == {4.0}


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("make", ALL)
def test_grad_scaler_skips_a_step_with_infinities(make, capturable):
    """Capturable, in the kernel and without waiting; else by GradScaler on the host."""
    ours, theirs = parameters(), parameters()
    optimizer = make(ours, lr=1e-2, capturable=capturable)
    reference = make(theirs, lr=1e-2)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for seed, bad in enumerate((False, True, False)):
        give_gradients(seed, ours, theirs)
        scale = scaler.scale(torch.ones((), device="cuda")).item()
        for p in ours:
            p.grad.mul_(scale)
        if bad:
            ours[0].grad.fill_(float("inf"))
        else:
            reference.step()
        torch.cuda.set_sync_debug_mode("error" if capturable else "default")
        try:
            scaler.step(optimizer)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        scaler.update()
    near(ours, theirs)
    assert float(optimizer.state[ours[0]]["step"]) == 2.0


def test_lamb_limits_the_norm_of_unscaled_gradients_where_the_scale_is_on_the_gpu():
    ours, theirs = parameters(), parameters()
    give_gradients(0, ours, theirs)
    for p in ours:
        p.grad.mul_(1024.0)
    optimizer = FusedLamb(ours, lr=1e-2, max_grad_norm=0.5, capturable=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scaler.scale(torch.ones((), device="cuda"))
    scaler.step(optimizer)
    FusedLamb(theirs, lr=1e-2, max_grad_norm=0.5).step()
    near(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", ALL)
def test_counts_on_the_gpu_are_each_parameters_own(make):
    params = [*parameters(), *parameters(torch.bfloat16)]
    optimizer = make(params, capturable=True)
    for seed in range(3):
        give_gradients(seed, params)
        if seed == 1:
            params[0].grad = None
        if seed == 0:
            params[1].grad = None
        optimizer.step()
    counts = [float(optimizer.state[p]["step"]) for p in params]
    assert counts[:2] == [2.0, 2.0]
    # A kernel counts; where there is nothing to update there may be none.
    assert {count for p, count in zip(params[2:], counts[2:]) if p.numel()} == {3.0}
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    give_gradients(3, params)
    optimizer.step()
    counts = [float(optimizer.state[p]["step"]) for p in params]
    assert {count for p, count in zip(params[2:], counts[2:]) if p.numel()} == {4.0}


def counts(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(state["step"]) for state in optimizer.state.values()]


@pytest.mark.parametrize("how", ["norms", "dtypes", "outputs"])
def test_counts_on_the_gpu_go_up_once_however_a_lamb_step_is_cut(how):
    params = parameters(shapes=((5,), (7,), (9,)))
    optimizer = FusedLamb(params, capturable=True, max_grad_norm=1.0)
    for step in (1, 2):
        give_gradients(step, params)
        grads = [p.grad for p in params]
        if how == "norms":
            optimizer.step(grad_norms=[[1.0, 2.0, 3.0]])
        elif how == "dtypes":
            optimizer.step(grads=[[grads[0], grads[1].half(), grads[2]]])
        else:
            optimizer.step(output_params=[[None, torch.empty_like(params[1]), None]])
        assert counts(optimizer) == [step] * 3


def test_a_parameter_that_changes_its_dtype_takes_its_count_along():
    params = parameters(shapes=((5,), (7,)))
    optimizer = FusedAdam(params, capturable=True)
    give_gradients(0, params)
    optimizer.step()
    params[0].data = params[0].data.bfloat16()
    for name in ("exp_avg", "exp_avg_sq"):
        optimizer.state[params[0]][name] = optimizer.state[params[0]][name].bfloat16()
    give_gradients(1, params)
    optimizer.step()
    assert counts(optimizer) == [2.0, 2.0]


def test_torch_counts_each_parameter_once_that_shared_a_count_here():
    params = parameters(shapes=((4,),) * 300)
    optimizer = FusedAdam(params, capturable=True)
    give_gradients(0, params)
    optimizer.step()
    theirs = [Parameter(p.detach().clone()) for p in params]
    reference = torch.optim.AdamW(theirs)
    reference.load_state_dict(optimizer.state_dict())
    reference.param_groups[0]["foreach"] = False
    give_gradients(1, params, theirs)
    reference.step()
    assert set(counts(reference)) == {2.0}


def test_a_count_of_0_after_a_skipped_step_stays():
    params = parameters(shapes=((5,), (7,)))
    optimizer = FusedAdam(params, capturable=True)
    give_gradients(0, params)
    params[1].grad = None
    optimizer.step()
    give_gradients(1, params)
    optimizer.found_inf = torch.ones((), device="cuda")
    optimizer.step()
    del optimizer.found_inf
    optimizer.load_state_dict(optimizer.state_dict())
    assert counts(optimizer) == [1.0, 0.0]


def test_the_norm_of_scaled_16_bit_gradients_does_not_overflow():
    ours, theirs = parameters(shapes=((1000,),)), parameters(shapes=((1000,),))
    give_gradients(0, theirs)
    grads = [(p.grad * 2048.0).half() for p in theirs]
    for p, g in zip(theirs, grads):
        p.grad = g.float() / 2048.0
    FusedLamb(ours, lr=1e-2, max_grad_norm=1.0).step(grads=grads, scale=2048.0)
    FusedLamb(theirs, lr=1e-2, max_grad_norm=1.0).step()
    near(ours, theirs, rtol=1e-5, atol=1e-6)


def test_grad_scaler_is_refused_with_gradients_it_has_not_seen():
    params = parameters()
    give_gradients(0, params)
    optimizer = FusedLamb(params, capturable=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    scaler.scale(torch.ones((), device="cuda"))
    with pytest.raises(RuntimeError, match="GradScaler checks"):
        scaler.step(optimizer, grads=[p.grad for p in params])


def test_counts_can_not_part_while_a_graph_is_captured():
    params = parameters(shapes=((5,), (7,)))
    optimizer = FusedAdam(params, lr=torch.tensor(1e-2, device="cuda"), capturable=True)
    give_gradients(0, params)
    optimizer.step()
    params[1].grad = None
    torch.cuda.synchronize()
    with (
        pytest.raises(RuntimeError, match=r"call step\(\) once with the same gradients"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        optimizer.step()


def lamb_reference(params, steps, lr, decay, max_norm=0.0) -> list[Tensor]:
    """FusedLamb's formula in float64, over the gradients of ``give_gradients``."""
    values = [p.detach().double() for p in params]
    moments = [[torch.zeros_like(v) for v in values] for _ in range(2)]
    for step in range(1, steps + 1):
        give_gradients(step, params)
        grads = [p.grad.double() for p in params]
        total = torch.stack([g.norm() for g in grads]).norm()
        clip = max(float((total + 1e-6) / max_norm), 1.0) if max_norm else 1.0
        for i, g in enumerate(grads):
            g = g / clip
            moments[0][i] = 0.9 * moments[0][i] + (1 - 0.9) * g
            moments[1][i] = 0.999 * moments[1][i] + (1 - 0.999) * g * g
            u = moments[0][i] / (moments[1][i].sqrt() + 1e-8) + decay * values[i]
            p_norm, u_norm = values[i].norm(), u.norm()
            trust = (p_norm / u_norm).clamp(0.01, 10.0) if p_norm > 0 and u_norm > 0 else 1.0
            correction = (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
            values[i] = values[i] - lr * correction * trust * u
    return values


@pytest.mark.parametrize("max_norm", [0.0, 0.5])
def test_lamb_steps_match_float64_also_with_a_limit_on_the_norm(max_norm):
    ours = parameters()
    wanted = lamb_reference(twins(ours), 5, 1e-2, 0.1, max_norm)
    optimizer = FusedLamb(ours, lr=1e-2, weight_decay=0.1, max_grad_norm=max_norm)
    for step in range(1, 6):
        give_gradients(step, ours)
        # DeepSpeed crashes where there is a limit and nobody gives the norms.
        optimizer.step()
    near(ours, wanted, rtol=1e-5, atol=1e-6)
    assert len(optimizer.get_lamb_coeffs()) == len(ours)
    assert all(coefficient.shape == (1,) for coefficient in optimizer.lamb_coeffs)


@pytest.mark.parametrize("nest", [lambda x: x, lambda x: [x], iter], ids=["list", "lists", "iter"])
def test_lamb_takes_gradients_and_outputs_from_outside(nest: Callable):
    ours, theirs = parameters(), parameters()
    optimizer, reference = FusedLamb(ours, lr=1e-2), FusedLamb(theirs, lr=1e-2)
    give_gradients(0, theirs)
    grads = [(p.grad * 8.0).half() for p in theirs]
    for p, g in zip(theirs, grads):
        p.grad = g.float() / 8.0
    outputs = [torch.empty_like(g) for g in grads]
    optimizer.step(grads=nest(grads), output_params=nest(outputs), scale=8.0)
    reference.step()
    near(ours, theirs, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(out, p.half()) for out, p in zip(outputs, ours))


def test_a_single_norm_is_for_every_parameter_of_the_group():
    """DeepSpeed updates only the first one then."""
    for norm in (4.0, torch.tensor(4.0, device="cuda"), [4.0] * len(SHAPES)):
        ours, theirs = parameters(), parameters()
        give_gradients(0, ours, theirs)
        FusedLamb(ours, lr=1e-2, max_grad_norm=1.0).step(grad_norms=[norm])
        for p in theirs:
            p.grad /= 4.0 + 1e-6
        FusedLamb(theirs, lr=1e-2).step()
        near(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_model_learns_with_each():
    for make, lr in ((FusedAdam, 1e-2), (FusedLion, 1e-3), (FusedLamb, 5e-2)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        ).cuda()
        x = torch.randn(256, 8, device="cuda")
        y = x.sin().sum(1, keepdim=True)
        optimizer = make(model.parameters(), lr=lr)
        losses = []
        for _ in range(200):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        assert losses[-1] < 0.2 * losses[0], make
