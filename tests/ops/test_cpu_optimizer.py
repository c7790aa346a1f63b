"""What all CPU optimizers do alike: collecting parameters, state dictionaries, copies."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch

from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.lion import DeepSpeedCPULion

CLASSES = (DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, DeepSpeedCPULion)


@pytest.fixture(params=CLASSES, ids=lambda cls: cls.__name__)
def cls(request):
    return request.param


def parameters(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [
        torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes
    ]
    for param in made:
        param.grad = torch.randn(param.shape, generator=generator).to(dtype)
    return made


def values(params):
    return [param.detach().clone() for param in params]


def states(optimizer):
    return [dict(optimizer.state[p]) for group in optimizer.param_groups for p in group["params"]]


def assert_same(params, others):
    assert all(torch.equal(p, q) for p, q in zip(params, others))


# -- the step ------------------------------------------------------------------------------------


def test_closure_runs_with_gradients_and_its_loss_is_returned(cls):
    (param,) = parameters((3,))
    optimizer = cls([param])

    def closure():
        optimizer.zero_grad()
        loss = (param * param).sum()
        loss.backward()
        return loss

    before = values([param])[0]
    with torch.no_grad():
        loss = optimizer.step(closure)
    assert loss.item() == pytest.approx(float((before * before).sum()))
    assert not torch.equal(param, before)
    assert cls(parameters((2,))).step() is None


def test_parameters_without_gradients_are_left_alone(cls):
    params = parameters((3,), (4,))
    params[0].grad = None
    before = values(params)
    optimizer = cls(params)
    optimizer.step()
    assert torch.equal(params[0], before[0]) and not torch.equal(params[1], before[1])
    assert params[0] not in optimizer.state


def test_each_parameter_counts_its_own_steps(cls):
    params = parameters((3,), (4,))
    together, alone = cls(params), [cls([p]) for p in parameters((3,), (4,))]
    grads = [p.grad for p in params]
    for present in ((True, True), (False, True), (True, False), (True, True), (True, True)):
        for param, grad, other, here in zip(params, grads, alone, present):
            param.grad = other.param_groups[0]["params"][0].grad = grad if here else None
            other.step()
        together.step()
    assert [state["step"] for state in states(together)] == [4, 4]
    assert_same(params, [other.param_groups[0]["params"][0] for other in alone])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x.view(4, 6, 1, 1).contiguous(memory_format=torch.channels_last),
    ],
    ids=["transposed", "strided", "channels_last"],
)
def test_strided_parameters_are_updated_in_place(cls, make, dtype):
    base = torch.randn(4, 6).to(dtype)
    param = torch.nn.Parameter(make(base))
    param.grad = torch.randn(param.shape).to(dtype)
    plain = torch.nn.Parameter(param.detach().clone(memory_format=torch.contiguous_format))
    plain.grad = param.grad.clone(memory_format=torch.contiguous_format)
    for _ in range(3):
        cls([param]).step()
        cls([plain]).step()
    assert torch.equal(param, plain)


def test_strided_gradients_and_states_are_read_right(cls):
    param, plain = (parameters((4, 6))[0] for _ in range(2))
    param.grad = torch.ones(()).expand(4, 6)
    plain.grad = torch.ones(4, 6)
    optimizers = [cls([param]), cls([plain])]
    for optimizer in optimizers:
        optimizer.step()
    state = optimizers[0].state[param]
    for name in set(state) - {"step"}:
        state[name] = state[name].t().contiguous().t()
    for optimizer in optimizers:
        optimizer.step()
    assert torch.equal(param, plain)
    for name in set(state) - {"step"}:
        assert torch.equal(state[name], optimizers[1].state[plain][name])


def test_parameter_that_is_not_on_the_cpu_is_an_assertion_error(cls):
    param = torch.nn.Parameter(torch.ones(3, device="meta"))
    param.grad = torch.ones(3, device="meta")
    with pytest.raises(AssertionError, match=r"a parameter is on meta; move it with \.cpu\(\)"):
        cls([param]).step()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_other_dtypes_are_a_type_error(cls, dtype):
    params = parameters((3,), dtype=dtype)
    with pytest.raises(TypeError, match="convert it to float32, float16 or bfloat16"):
        cls(params).step()


def test_refused_step_counts_for_nothing(cls):
    params = parameters((3,), (4,))
    optimizer = cls(params)
    optimizer.step()
    before = values(params)
    name = next(iter(set(optimizer.state[params[1]]) - {"step"}))
    optimizer.state[params[1]][name] = torch.zeros(5)
    with pytest.raises(RuntimeError, match="has 5 elements"):
        optimizer.step()
    assert_same(params, before)
    assert [state["step"] for state in states(optimizer)] == [1, 1]


def test_graph_that_saved_a_parameter_notices_the_step(cls):
    (param,) = parameters((3,))
    loss = (param * param).sum()
    cls([param]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_states_are_float32_unless_told_otherwise(cls, low):
    for flag, dtype in ((True, torch.float32), (False, low)):
        optimizer = cls(parameters((3,), dtype=low), fp32_optimizer_states=flag)
        optimizer.step()
        (state,) = states(optimizer)
        assert {v.dtype for k, v in state.items() if k != "step"} == {dtype}
        assert type(state["step"]) is int


def test_groups_use_their_own_hyperparameters_and_may_be_added_later(cls):
    a, b = parameters((3,), (4,))
    optimizer = cls([{"params": [a], "lr": 0.0}], lr=0.5)
    optimizer.add_param_group({"params": [b]})
    before = values([a, b])
    optimizer.step()
    assert torch.equal(a, before[0]) and not torch.equal(b, before[1])
    assert optimizer.param_groups[1]["lr"] == 0.5


def test_learning_rate_may_be_a_tensor_and_be_scheduled(cls):
    params, others = parameters((3,)), parameters((3,))
    optimizer, other = cls(params, lr=torch.tensor(0.25)), cls(others, lr=0.25)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5) for o in (optimizer, other)]
    for _ in range(3):
        for o, schedule in zip((optimizer, other), schedules):
            o.step()
            schedule.step()
    assert_same(params, others)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.25 / 8)


def test_gradient_scaler_skips_overflow_and_unscales(cls):
    params, others = parameters((3,)), parameters((3,))
    optimizer, other = cls(params), cls(others)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    params[0].grad.mul_(8.0)
    scaler.step(optimizer)
    other.step()
    scaler.update()
    assert_same(params, others)
    params[0].grad.fill_(float("inf"))
    scaler.step(optimizer)
    assert_same(params, others)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lr": -1.0}, ValueError),
        ({"lr": float("nan")}, ValueError),
        ({"weight_decay": -0.1}, ValueError),
        ({"eps": -1e-9}, ValueError),
        ({"betas": (1.0, 0.9)}, ValueError),
        ({"betas": (0.9, -0.1)}, ValueError),
        ({"amsgrad": True}, RuntimeError),
        ({"maximize": True}, RuntimeError),
    ],
)
def test_hyperparameters_that_cannot_be_used_are_refused(cls, options, error):
    (key,) = options
    optimizer = cls(parameters((2,)))
    if key in optimizer.defaults:
        with pytest.raises(error, match=key):
            cls(parameters((2,)), **options)
    if key in optimizer.defaults or error is RuntimeError:
        with pytest.raises(error, match=key):
            optimizer.add_param_group({"params": parameters((2,)), **options})
        assert len(optimizer.param_groups) == 1


# -- state dictionaries and copies ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("through", ["memory", "file"])
def test_training_goes_on_from_a_loaded_state_as_if_never_stopped(cls, dtype, through):
    params, others = (parameters((3, 5), (7,), dtype=dtype) for _ in range(2))
    first, second = cls(params, lr=0.1), cls(others)
    for _ in range(3):
        first.step()
    saved = first.state_dict()
    if through == "file":
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
    for param, other in zip(params, others):
        other.data.copy_(param.data)
    second.load_state_dict(saved)
    for optimizer in (first, second):  # were tensors shared, the second would see both steps
        optimizer.step()
    assert_same(params, others)
    for a, b in zip(states(first), states(second)):
        assert a.keys() == b.keys() and a["step"] == b["step"] == 4
        assert all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a if k != "step")


def test_loading_keeps_float32_states_of_16_bit_parameters_exact(cls):
    params = parameters((100,), dtype=torch.bfloat16)
    optimizer = cls(params)
    optimizer.step()
    (before,) = states(copy.deepcopy(optimizer))
    optimizer.load_state_dict(optimizer.state_dict())
    (after,) = states(optimizer)
    for name in set(before) - {"step"}:
        assert after[name].dtype == torch.float32 and torch.equal(before[name], after[name])


def test_loading_fills_in_group_keys_that_are_missing(cls):
    optimizer = cls(parameters((3,)))
    saved = optimizer.state_dict()
    for key in ("weight_decay", "bias_correction", "amsgrad"):
        saved["param_groups"][0].pop(key, None)
    optimizer.load_state_dict(saved)
    optimizer.step()
    assert optimizer.defaults.keys() <= optimizer.param_groups[0].keys()


def test_hooks_may_change_the_dictionary_that_is_loaded(cls):
    optimizer = cls(parameters((3,)))
    optimizer.step()

    def double_the_steps(_, saved):
        saved = copy.deepcopy(saved)
        saved["state"][0]["step"] = 20
        return saved

    optimizer.register_load_state_dict_pre_hook(double_the_steps)
    optimizer.load_state_dict(optimizer.state_dict())
    assert states(optimizer)[0]["step"] == 20


def test_state_of_another_kind_of_optimizer_is_refused_and_changes_nothing(cls):
    params = parameters((3,))
    optimizer, other = cls(params), torch.optim.SGD(params, momentum=0.9)
    optimizer.step()
    other.step()
    before = states(optimizer)
    with pytest.raises(ValueError, match="the state of parameter 0 lacks"):
        optimizer.load_state_dict(other.state_dict())
    assert states(optimizer) == before


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_train_on_independently(cls, duplicate):
    params = parameters((3,), (4,))
    optimizer = cls(params, lr=0.1, fp32_optimizer_states=False)
    optimizer.step()
    twin = duplicate(optimizer)
    copies = twin.param_groups[0]["params"]
    for param, other in zip(params, copies):
        other.grad = param.grad.clone()
    assert twin.opt_id != optimizer.opt_id and twin.fp32_optimizer_states is False
    before = values(params)
    twin.step()
    assert_same(params, before)
    optimizer.step()
    assert_same(params, copies)


def test_numbers_are_not_reused_and_freed_with_the_optimizer(cls):
    number = cls.optimizer_id
    optimizer = cls(parameters((2,)))
    assert (optimizer.opt_id, cls.optimizer_id) == (number, number + 1)
    destroyed = []
    weakref.finalize(optimizer, destroyed.append, True)
    del optimizer
    gc.collect()
    assert destroyed and cls(parameters((2,))).opt_id == number + 1


def test_failed_load_raises_the_real_error_only(cls, monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("no compiler")

    module = __import__(cls.__module__, fromlist=["_"])
    builder = next(name for name in vars(module) if name.endswith("Builder"))
    monkeypatch.setattr(vars(module)[builder], "load", fail)
    with pytest.raises(RuntimeError, match=r"^no compiler$"):
        cls(parameters((2,)))
    gc.collect()
    assert "Exception ignored" not in capsys.readouterr().err


@pytest.mark.parametrize("cls", [DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, DeepSpeedCPULion])
def test_expanded_parameter_is_refused_before_anything_moves(cls):
    good = torch.nn.Parameter(torch.ones(4))
    expanded = torch.nn.Parameter(torch.ones(4).expand(3, 4))
    optimizer = cls([good, expanded])
    for param in (good, expanded):
        param.grad = torch.ones(param.shape)
    with pytest.raises(RuntimeError, match="expanded"):
        optimizer.step()
    assert torch.equal(good, torch.ones(4))


def test_wrapper_subclass_is_refused():
    from torch.testing._internal.two_tensor import TwoTensor

    param = torch.nn.Parameter(TwoTensor(torch.ones(4), torch.ones(4)))
    param.grad = TwoTensor(torch.ones(4), torch.ones(4))
    with pytest.raises(TypeError, match="plain tensors"):
        DeepSpeedCPUAdam([param]).step()


def test_meta_tensor_first_in_a_list_does_not_hide_the_others():
    op = DeepSpeedCPUAdam([torch.nn.Parameter(torch.ones(1))]).ds_opt_adam
    lists = [[torch.ones(4, device="meta"), torch.ones(4)] for _ in range(4)]
    with pytest.raises(RuntimeError, match="not on the CPU"):
        op.adam_step(*lists, 1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, True)
