"""Op cpu_adagrad: Adagrad steps on CPU tensors."""

from __future__ import annotations

from .builder import TorchCPUOpBuilder
from .optimizer_check import compare, random_lists


class CPUAdagradBuilder(TorchCPUOpBuilder):
    BUILD_VAR = "DS_BUILD_CPU_ADAGRAD"
    NAME = "cpu_adagrad"
    functions = (
        "create_adagrad",
        "destroy_adagrad",
        "adagrad_update",
        "adagrad_step",
        "simd_level",
    )

    def absolute_name(self) -> str:
        return f"deepspeed.ops.adagrad.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/adagrad/cpu_adagrad.cpp", "csrc/adagrad/cpu_adagrad_kernels.cpp"]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/adagrad"]

    def self_check(self, op: object) -> None:
        """One step in float32 and with bfloat16 parameters, against float64."""
        lr, eps, decay = 1e-2, 1e-10, 0.1
        for low_precision in (False, True):
            lists = random_lists(3, low_precision)
            expected: list[list] = [[], []]
            for tensors in zip(*lists):
                p, g, v = (tensor.double() for tensor in tensors)
                g = g + decay * p
                v = v + g * g
                expected[0].append(p - lr * g / (v.sqrt() + eps))
                expected[1].append(v)
            op.adagrad_step(*lists, 1, lr, eps, decay)
            compare(self.NAME, [lists[0], lists[2]], expected)
