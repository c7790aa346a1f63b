"""What the self-checks of the optimizers share: odd-sized inputs and a comparison in float64.

Knows the formulas that several ops share, and no op; torch is imported when a check runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def check_adam_step(op_name: str, step: Callable[..., None], device: str) -> None:
    """Run one AdamW step in float32 and with bfloat16 parameters, and compare with float64.

    Raises:
        SelfCheckError: a result is further away than rounding explains.
    """
    lr, beta1, beta2, eps, decay, count = 1e-2, 0.9, 0.99, 1e-8, 0.1, 3
    for low_precision in (False, True):
        lists = random_lists(4, low_precision, device)
        expected: list[list[torch.Tensor]] = [[], [], []]
        for tensors in zip(*lists):
            p, g, m, v = (tensor.double() for tensor in tensors)
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            denominator = v.sqrt() / (1 - beta2**count) ** 0.5 + eps
            p = p * (1 - lr * decay) - lr / (1 - beta1**count) * m / denominator
            for results, result in zip(expected, (p, m, v)):
                results.append(result)
        step(*lists, count, lr, beta1, beta2, eps, decay, True, True)
        compare(op_name, [lists[0], lists[2], lists[3]], expected)


def check_lion_step(op_name: str, step: Callable[..., None], device: str) -> None:
    """Run one Lion step in float32 and with bfloat16 parameters, and compare with float64.

    Raises:
        SelfCheckError: a result is further away than rounding explains.
    """
    lr, beta1, beta2, decay = 1e-2, 0.9, 0.99, 0.1
    for low_precision in (False, True):
        lists = random_lists(3, low_precision, device)
        expected: list[list[torch.Tensor]] = [[], []]
        for tensors in zip(*lists):
            p, g, m = (tensor.double() for tensor in tensors)
            sign = (beta1 * m + (1 - beta1) * g).sign()
            expected[0].append(p * (1 - lr * decay) - lr * sign)
            expected[1].append(beta2 * m + (1 - beta2) * g)
        step(*lists, lr, beta1, beta2, decay)
        compare(op_name, [lists[0], lists[2]], expected)
