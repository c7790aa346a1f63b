"""Op utils: one flat tensor from many, and views back.

Only ``flatten`` copies, so only it is native; the views are torch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from .builder import TorchCPUOpBuilder
from .errors import SelfCheckError

if TYPE_CHECKING:
    import torch


class UtilsBuilder(TorchCPUOpBuilder):
    BUILD_VAR = "DS_BUILD_UTILS"
    NAME = "utils"
    functions = ("flatten",)

    def absolute_name(self) -> str:
        return f"deepspeed.ops.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/utils/flatten.cpp"]

    def include_paths(self) -> list[str]:
        return ["csrc/common"]

    def bind(self, ops: SimpleNamespace) -> object:
        return UtilsOp(ops.flatten)

    def self_check(self, op: UtilsOp) -> None:
        """Flatten odd sizes, and take the views back, bit for bit."""
        import torch

        tensors = [torch.arange(n, dtype=torch.int16) * 3 - n for n in (1, 7, 0, 129, 70_001)]
        flat = op.flatten(tensors)
        views = op.unflatten(flat, tensors)
        same = torch.equal(flat, torch.cat(tensors)) and all(map(torch.equal, views, tensors))
        if not same or op.cast_to_byte_tensor(flat).data_ptr() != flat.data_ptr():
            raise SelfCheckError(
                f"Op {self.NAME}: flatten() does not return the elements in order.",
                "Rebuild the op: run `ds_report --cache clear`, then load it again.",
            )


class UtilsOp:
    """What ``UtilsBuilder().load()`` returns."""

    def __init__(self, native_flatten: object) -> None:
        self._native_flatten = native_flatten

    def flatten(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The elements of all tensors, in order, in one new 1-D tensor; differentiable.

        Args:
            tensors: at least one tensor; any shapes, one dtype, one device.

        Raises:
            RuntimeError: the list is empty, or dtypes, devices or layouts don't fit.
        """
        import torch

        tensors = list(tensors)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            kinds = {(tensor.dtype, tensor.device, tensor.layout) for tensor in tensors}
            # The same operation made of pieces autograd knows. Mixed lists, which cat() would
            # convert silently, are left to the op to refuse.
            if len(kinds) == 1:
                return torch.cat([tensor.reshape(-1) for tensor in tensors])
        return self._native_flatten(tensors)

    def unflatten(
        self, flat: torch.Tensor, tensors: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Consecutive pieces of ``flat`` as views shaped like ``tensors``; differentiable.

        Args:
            flat: 1-D, with as many elements as all of ``tensors`` together.
            tensors: give the shapes; their values are not read.

        Raises:
            RuntimeError: the sizes don't add up, or ``flat`` isn't 1-D.
        """
        sizes = [tensor.numel() for tensor in tensors]
        if flat.dim() != 1 or flat.numel() != sum(sizes):
            raise RuntimeError(
                f"unflatten: flat has shape {tuple(flat.shape)} but the tensors hold "
                f"{sum(sizes)} elements; pass the 1-D result of flatten() of such tensors"
            )
        pieces = flat.split(sizes) if sizes else ()
        return tuple(piece.view(like.shape) for piece, like in zip(pieces, tensors))

    def cast_to_byte_tensor(
        self, src_tensor: torch.Tensor | Sequence[torch.Tensor]
    ) -> torch.Tensor | list[torch.Tensor]:
        """The bytes of a tensor, or of each tensor of a list, as a 1-D uint8 view.

        Tensors whose elements are one byte wide are returned as they are.

        Raises:
            RuntimeError: a tensor isn't contiguous, so that its bytes can't be viewed in order.
        """
        import torch

        if not isinstance(src_tensor, torch.Tensor):
            return [self.cast_to_byte_tensor(tensor) for tensor in src_tensor]
        if src_tensor.element_size() <= 1:
            return src_tensor
        if not src_tensor.is_contiguous():
            raise RuntimeError(
                "cast_to_byte_tensor: the tensor is not contiguous; pass .contiguous(), whose "
                "bytes are a copy"
            )
        return src_tensor.detach().view(-1).view(torch.uint8)
