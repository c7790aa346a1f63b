"""What the optimizers share: collecting tensors for one native call, and state dictionaries.

Knows torch's optimizer protocol; knows no formula and no device. A subclass names its states and
makes the native call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_gradient_of = operator.attrgetter("grad")


class NativeOptimizer(Optimizer):
    """An optimizer whose native op updates all parameters of a group in one call.

    Parameters may have any shape and strides. Each has its own ``step`` (an int); parameters with
    the same count are updated together.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        defaults: the groups' default hyperparameters.
    """

    #: The state tensors, in the order the native op takes them.
    _STATES: tuple[str, ...] = ()
    #: Names other optimizers save these states under.
    _STATE_ALIASES: dict[str, str] = {}
    #: States older versions saved, accepted and dropped.
    _OBSOLETE_STATES: tuple[str, ...] = ()
    #: How states are laid out.
    _MEMORY_FORMAT = torch.contiguous_format
    #: Options of torch's optimizers that would change the result and aren't implemented.
    _UNSUPPORTED: tuple[str, ...] = ("amsgrad", "maximize", "differentiable")
    #: Attributes that pickling and copying keep.
    _KEPT: tuple[str, ...] = ()

    # -- what a subclass provides ----------------------------------------------------------

    def _check_param(self, param: Tensor) -> None:
        """Raise for a parameter this optimizer can't update."""
        raise NotImplementedError

    def _state_dtype(self, param: Tensor) -> torch.dtype:
        """The dtype of ``param``'s states."""
        raise NotImplementedError

    def _native_step(
        self,
        group: dict[str, Any],
        step: int,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[list[Tensor]],
    ) -> None:
        """Update dense, contiguous tensors in place; ``states`` holds a list per state name."""
        raise NotImplementedError

    def _check_sparse(self, group: dict[str, Any]) -> None:
        """Raise RuntimeError if parameters of ``group`` can't have sparse gradients."""
        raise RuntimeError(
            f"{type(self).__name__} does not support sparse gradients; use "
            f"torch.optim.SparseAdam, or sparse=False in the embedding"
        )

    def _sparse_step(
        self, group: dict[str, Any], step: int, param: Tensor, grad: Tensor, *states: Tensor
    ) -> None:
        """Update the rows a sparse gradient touches."""
        raise NotImplementedError

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise ValueError or RuntimeError for hyperparameters that can't be used."""
        for key in self._UNSUPPORTED:
            if group.get(key):
                raise RuntimeError(
                    f"{type(self).__name__} does not support {key}=True; set {key}=False or use "
                    f"the optimizer of torch.optim"
                )
        for key in ("lr", "eps", "weight_decay"):
            if key in group and not float(group[key]) >= 0.0:
                raise ValueError(f"{key} is {group[key]}; choose a value that is not negative")
        for beta in group.get("betas", ()):
            if not 0.0 <= float(beta) < 1.0:
                raise ValueError(f"betas are {group['betas']}; choose values in [0, 1)")

    # -- the step --------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: reevaluates the model and returns the loss; runs with gradients enabled.

        Returns:
            What the closure returned, or None.

        Raises:
            AssertionError: a parameter isn't on the CPU.
            TypeError: a parameter isn't float32, float16 or bfloat16.
            RuntimeError: a gradient is sparse and can't be used, or a state has a wrong size.
        """
        loss = self._evaluate(closure)
        with torch.no_grad():
            for group in self.param_groups:
                self._step_group(group)
        return loss

    @staticmethod
    def _evaluate(closure: Callable[[], Any] | None) -> Any:
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def _step_group(self, group: dict[str, Any]) -> None:
        # Thousands of small parameters are common; what this does per parameter is a good part of
        # such a step. So nothing is checked here that the native op checks anyway.
        params, grads = self._with_gradients(group)
        states = self._states_of(params)
        if not all(states):
            for param, state in zip(params, states):
                if not state:
                    self._prepare_state(param, state)
        counts = {state["step"] for state in states}
        if len(counts) == 1:
            return self._update(group, self._next_count(counts.pop()), params, grads, states)
        # Chosen before any is updated: an update moves parameters on to the next count.
        batches = {count: ([], [], []) for count in counts}
        for row in zip(params, grads, states):
            for column, value in zip(batches[row[2]["step"]], row):
                column.append(value)
        for count, batch in batches.items():
            self._update(group, self._next_count(count), *batch)

    def _first_count(self, param: Tensor) -> Any:
        """The ``step`` of a parameter that was never updated."""
        return 0

    def _next_count(self, count: Any) -> Any:
        return count + 1

    @staticmethod
    def _with_gradients(group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters that have a gradient, and the gradients."""
        params = group["params"]
        grads = list(map(_gradient_of, params))
        if any(map(operator.is_, grads, repeat(None))):
            rows = [row for row in zip(params, grads) if row[1] is not None]
            return [row[0] for row in rows], [row[1] for row in rows]
        return params, grads

    def _states_of(self, params: list[Tensor]) -> list[dict[str, Any]]:
        """The state of each parameter; made where there is none."""
        states = self.state
        # A look-up calls Tensor.__hash__. In a single group the order is that of the first step.
        if len(states) == len(params) and all(map(operator.is_, states, params)):
            return list(states.values())
        return list(map(states.__getitem__, params))

    def _update(
        self,
        group: dict[str, Any],
        step: int,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[dict[str, Any]],
    ) -> None:
        tensors = [[state[name] for state in states] for name in self._STATES]
        try:
            self._native_step(group, step, params, grads, tensors)
        except RuntimeError:
            # The op checks everything before it writes anything. What it refused may be a matter
            # of copying, or deserve a better error.
            if not self._update_irregular(group, step, params, grads, tensors):
                raise
        # The native op writes behind autograd's back; a graph that saved a parameter must notice.
        torch.autograd.graph.increment_version(params)
        # Counts follow the update, so that a refused step counts for nothing.
        for state in states:
            state["step"] = step

    def _update_irregular(
        self,
        group: dict[str, Any],
        step: int,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[list[Tensor]],
    ) -> bool:
        """Update parameters some of which have strides or sparse gradients; False if none has."""
        for param in params:
            self._check_param(param)
        rows = list(zip(params, grads, *states))
        sparse = [row for row in rows if row[1].layout is not torch.strided]
        dense = [row for row in rows if row[1].layout is torch.strided]
        if not sparse and all(tensor.is_contiguous() for row in dense for tensor in row):
            return False
        if sparse:
            self._check_sparse(group)
        copies = [[tensor.contiguous() for tensor in row] for row in dense]
        if copies:
            columns = [list(column) for column in zip(*copies)]
            self._native_step(group, step, columns[0], columns[1], columns[2:])
        for originals, row in zip(dense, copies):
            for place, (original, copy) in enumerate(zip(originals, row)):
                if place != 1 and copy is not original:
                    original.copy_(copy)
        for row in sparse:
            self._sparse_step(group, step, *row)
        return True

    def _check_plain(self, param: Tensor) -> None:
        if is_traceable_wrapper_subclass(param):
            raise TypeError(
                f"{type(self).__name__} updates plain tensors, but a parameter is a "
                f"{type(param).__name__}; pass its local tensor, such as DTensor.to_local()"
            )
        if any(stride == 0 and size > 1 for stride, size in zip(param.stride(), param.shape)):
            raise RuntimeError(
                f"{type(self).__name__} can't update an expanded parameter, several elements of "
                f"which are one; pass param.detach().clone()"
            )

    def _prepare_state(self, param: Tensor, state: dict[str, Any]) -> None:
        self._check_param(param)
        state["step"] = self._first_count(param)
        for name in self._STATES:
            state[name] = torch.zeros_like(
                param, dtype=self._state_dtype(param), memory_format=self._MEMORY_FORMAT
            )

    # -- groups, state dictionaries, copies ------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; keys it lacks come from the defaults.

        Raises:
            ValueError, RuntimeError: a hyperparameter can't be used.
        """
        self._check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state saved by this optimizer or by the torch optimizer of the same formula.

        States become float32 copies (or of the parameter's dtype, without
        ``fp32_optimizer_states``), and steps become ints.

        Raises:
            ValueError: the state lacks a tensor this optimizer needs.
            RuntimeError: it was saved with an option that isn't supported, such as amsgrad.
        """
        saved: dict[str, Any] = {}

        def check(_: Optimizer, final: dict[str, Any]) -> None:
            self._check_state_dict(final)
            saved.update(final)

        # The last of the hooks sees what the others made of the dictionary.
        handle = self.register_load_state_dict_pre_hook(check)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        ids = [index for group in saved["param_groups"] for index in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for index, param in zip(ids, params):
            if saved["state"].get(index):
                self._restore_state(param, saved["state"][index])

    def _check_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group in state_dict["param_groups"]:
            self._check_group({**self.defaults, **group})
        for index, state in state_dict["state"].items():
            if not state:
                continue
            if "max_exp_avg_sq" in state:
                raise RuntimeError(
                    f"the state dictionary was saved with amsgrad=True, which "
                    f"{type(self).__name__} does not support; train on with torch.optim"
                )
            missing = {"step", *self._STATES} - {self._STATE_ALIASES.get(k, k) for k in state}
            if missing:
                raise ValueError(
                    f"the state of parameter {index} lacks {', '.join(sorted(missing))}; load a "
                    f"dictionary saved by {type(self).__name__} or an optimizer of its formula"
                )

    def _restore_state(self, param: Tensor, saved: dict[str, Any]) -> None:
        """Take the saved tensors again: torch has cast them to the parameter's dtype."""
        state = self.state[param]
        state["step"] = int(saved["step"])
        for key, value in saved.items():
            name = self._STATE_ALIASES.get(key, key)
            if name in self._STATES:
                state.pop(key, None)
                dtype = self._state_dtype(param)
                copy = torch.empty(value.shape, dtype=dtype, device=param.device)
                state[name] = copy.copy_(value.detach())
        for name in self._OBSOLETE_STATES:
            state.pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: getattr(self, name) for name in self._KEPT}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)
