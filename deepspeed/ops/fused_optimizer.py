"""What the GPU optimizers share: which parameters they take, and DeepSpeed's ``step()``.

Knows no formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from deepspeed.ops.native_optimizer import NativeOptimizer

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class FusedOptimizer(NativeOptimizer):
    """A :class:`NativeOptimizer` of float32, float16, bfloat16 or float64 parameters on GPUs.

    All parameters of a group that have one dtype, GPU and count are updated in one launch, without
    the host waiting. States have the parameter's dtype and memory format.

    A capturable optimizer keeps counts on the GPU, one tensor for parameters of one kind and count,
    and takes the learning rate from there: a CUDA graph of :meth:`step` counts and follows it. It
    also takes over torch.amp.GradScaler's unscaling and skipping of steps with infinities. A graph
    is for the parameters that had gradients when it was captured: capture anew for others.

    Attributes:
        set_grad_none: what :meth:`zero_grad` does by default.
        capturable: whether counts are kept on the GPU.
    """

    _MEMORY_FORMAT = torch.preserve_format
    _KEPT: tuple[str, ...] = ("set_grad_none", "capturable")

    set_grad_none = True
    capturable = False

    def _load_op(self) -> None:
        """Load the native op."""
        raise NotImplementedError

    def _check_param(self, param: Tensor) -> None:
        if not param.is_cuda:
            raise RuntimeError(
                f"{type(self).__name__} updates GPU tensors, but a parameter is on "
                f"{param.device}; move it with .cuda(), or use the optimizer of its device"
            )
        if param.dtype not in _DTYPES:
            raise RuntimeError(
                f"{type(self).__name__} can't update a parameter of dtype {param.dtype}; convert "
                f"it to float32, float16, bfloat16 or float64"
            )
        self._check_plain(param)

    def _state_dtype(self, param: Tensor) -> torch.dtype:
        return param.dtype

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear the gradients: set them to None, or to zeros.

        Args:
            set_to_none: None for what the constructor's ``set_grad_none`` says.
        """
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        grads: Any = None,
        output_params: Any = None,
        scale: Any = None,
        grad_norms: Any = None,
        **ignored: Any,
    ) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: reevaluates the model and returns the loss; runs with gradients enabled.
            grads, output_params, scale, grad_norms: DeepSpeed's old interface; must be None.
            grad_scaler: ignored. Not named in the signature: there it would keep torch's GradScaler
                from handing over ``grad_scale`` and ``found_inf``.

        Returns:
            What the closure returned, or None.

        Raises:
            RuntimeError: an old argument is used; a parameter isn't on a GPU or of another dtype;
                a gradient is sparse.
            TypeError: an argument does not exist.
        """
        unknown = set(ignored) - {"grad_scaler"}
        if unknown:
            raise TypeError(f"step() got unexpected arguments: {', '.join(sorted(unknown))}")
        if any(value is not None for value in (grads, output_params, scale, grad_norms)):
            raise RuntimeError(
                f"{type(self).__name__}.step() takes gradients from the parameters; call "
                f"loss.backward(), then step() without grads, output_params, scale and grad_norms"
            )
        return super().step(closure)

    def _update(
        self,
        group: dict[str, Any],
        step: int,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[dict[str, Any]],
    ) -> None:
        try:
            super()._update(group, step, params, grads, states)
        except RuntimeError:
            kinds = self._by_kind(params, grads, states)
            if len(kinds) < 2:
                raise
            self._separate_counts(kind[-1] for kind in kinds)
            for kind in kinds:
                super()._update(group, kind[-1][0]["step"] if self.capturable else step, *kind)
        if not self.capturable:
            group["step"] = max(group.get("step", 0), step)

    @staticmethod
    def _by_kind(params: list[Tensor], *others: list[Any]) -> list[tuple[list[Any], ...]]:
        """The parameters that can be updated in one launch, with what belongs to them."""
        kinds: dict[object, tuple[list[Any], ...]] = {}
        for row in zip(params, *others):
            key = row[0].device, row[0].dtype
            columns = kinds.setdefault(key, tuple([] for _ in row))
            for column, value in zip(columns, row):
                column.append(value)
        return list(kinds.values())

    # -- counts on the GPU -----------------------------------------------------------------

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler passes ``grad_scale`` and ``found_inf`` instead of waiting."""
        return self.capturable

    def _step_group(self, group: dict[str, Any]) -> None:
        # Parameters first updated in one call may share a count; later ones lag behind them.
        self._new_counts: dict[object, Tensor] = {}
        if self.capturable:
            self._part_counts([(p, p.grad is not None) for p in group["params"]])
        super()._step_group(group)

    def _part_counts(self, params: list[tuple[Tensor, bool]]) -> None:
        """Give those that won't be updated a count apart from those that will.

        Raises:
            RuntimeError: a CUDA graph is being captured, which would record the copy.
        """
        states = [(state, moves) for p, moves in params if (state := self.state.get(p))]
        moving = {id(state["step"]) for state, moves in states if moves}
        kept: dict[int, Tensor] = {}
        for state, moves in states:
            count = state["step"]
            if not moves and id(count) in moving:
                if id(count) not in kept:
                    self._refuse_to_capture()
                    kept[id(count)] = count.clone()
                state["step"] = kept[id(count)]

    def _separate_counts(self, batches: Iterable[list[dict[str, Any]]]) -> None:
        """Give each batch of states a count of its own: every launch counts."""
        if not self.capturable:
            return
        used: set[int] = set()
        for states in batches:
            count = states[0]["step"]
            if id(count) in used:
                self._refuse_to_capture()
                count = count.clone()
                for state in states:
                    state["step"] = count
            used.add(id(count))

    def _refuse_to_capture(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{type(self).__name__}: parameters that shared a count do so no longer, which a "
                f"CUDA graph can't record; call step() once with the same gradients, then capture"
            )

    def _first_count(self, param: Tensor) -> Any:
        return self._count_of(param, 0, self._new_counts) if self.capturable else 0

    def _next_count(self, count: Any) -> Any:
        return count if self.capturable else count + 1  # the op counts on the GPU

    @staticmethod
    def _count_of(param: Tensor, count: int, shared: dict[object, Tensor]) -> Tensor:
        """``count`` on the GPU of ``param``: one tensor for all of its kind in ``shared``."""
        key = param.device, param.dtype, count
        if key not in shared:
            shared[key] = torch.full((), float(count), dtype=torch.float32, device=param.device)
        return shared[key]

    @staticmethod
    def _on_device(value: Any, device: torch.device) -> Tensor | None:
        """A number or tensor as a float32 tensor on ``device``; None for None."""
        if value is None:
            return None
        if isinstance(value, Tensor) and value.device.type != "cpu":
            return value.to(device, torch.float32)
        # Not a copy from the host, for which it would wait.
        return torch.full((), float(value), dtype=torch.float32, device=device)

    def _amp_scaling(self, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """GradScaler's ``grad_scale`` and ``found_inf`` for this step; None outside of it."""
        given = (getattr(self, name, None) for name in ("grad_scale", "found_inf"))
        scale, found = (self._on_device(value, device) for value in given)
        return scale, found

    # -- state dictionaries, copies --------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state, with a count of its own for each parameter: other optimizers count each."""
        saved = super().state_dict()
        if self.capturable:
            saved["state"] = {
                key: {**state, "step": state["step"].clone()} if "step" in state else state
                for key, state in saved["state"].items()
            }
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state saved by this optimizer, DeepSpeed's, or torch's of the same formula.

        DeepSpeed counts only a group's last parameter; the others' 0 is replaced by its count.

        Raises:
            ValueError: the state lacks a tensor this optimizer needs.
            RuntimeError: it was saved with an option that isn't supported, such as amsgrad.
        """
        rates = [group["lr"] for group in self.param_groups]
        saved = [state.get("step") for state in state_dict["state"].values()]
        super().load_state_dict(state_dict)
        for group, rate in zip(self.param_groups, rates):
            states = [self.state[p] for p in group["params"] if self.state.get(p)]
            highest = max((int(state["step"]) for state in states), default=0)
            for state in states:
                # Counts on a GPU can be 0 after a step that was skipped.
                if state["step"] == 0 and not any(isinstance(step, Tensor) for step in saved):
                    state["step"] = highest
            if self.capturable:
                if isinstance(rate, Tensor) and isinstance(group["lr"], Tensor):
                    group["lr"] = group["lr"].to(rate.device)
                shared: dict[object, Tensor] = {}
                for param in group["params"]:
                    if state := self.state.get(param):
                        state["step"] = self._count_of(param, int(state["step"]), shared)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "defaults" in state:  # unpickled or copied, not called by load_state_dict()
            self._load_op()
