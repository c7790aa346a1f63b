"""What the self-checks of the optimizers share: odd-sized inputs and a comparison in float64.

Knows no op and no formula; torch is imported when a check runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import SelfCheckError

if TYPE_CHECKING:
    import torch

#: Around the widths of vectors and blocks, where a wrong loop tail would show.
SIZES = (1, 7, 15, 16, 17, 22, 127, 513, 1023, 40_001)


def random_lists(
    streams: int, low_precision: bool, device: str = "cpu"
) -> list[list[torch.Tensor]]:
    """``streams`` lists of tensors on ``device`` with the sizes :data:`SIZES`, the same each time.

    The first two lists (parameters and gradients) are bfloat16 if ``low_precision``, the others
    (states) are float32. The last list is not negative, as sums of squares are.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    lists = []
    for index in range(streams):
        dtype = torch.bfloat16 if low_precision and index < 2 else torch.float32
        tensors = [torch.randn(size, generator=generator) for size in SIZES]
        if index == streams - 1:
            tensors = [tensor.square() for tensor in tensors]
        lists.append([tensor.to(device, dtype) for tensor in tensors])
    return lists


def compare(
    op_name: str,
    got: Sequence[Sequence[torch.Tensor]],
    expected: Sequence[Sequence[torch.Tensor]],
) -> None:
    """Check lists of results against float64 references.

    Raises:
        SelfCheckError: a result is further away than rounding explains.
    """
    import torch

    for stream, (results, references) in enumerate(zip(got, expected)):
        for result, reference in zip(results, references):
            rtol = 2e-6 if result.dtype == torch.float32 else torch.finfo(result.dtype).eps
            error = (result.double() - reference).abs()
            allowed = rtol * reference.abs() + 2e-7
            if not bool((error <= allowed).all()):
                raise SelfCheckError(
                    f"Op {op_name}: list {stream}, size {result.numel()}, {result.dtype}: results "
                    f"are off by up to {float(error.max()):.3g} from the float64 reference.",
                    "Rebuild the op: run `ds_report --cache clear`, then load it again.",
                )
