"""Op cpu_lion: Lion steps on CPU tensors."""

from __future__ import annotations

from .builder import TorchCPUOpBuilder
from .optimizer_check import check_lion_step


class CPULionBuilder(TorchCPUOpBuilder):
    BUILD_VAR = "DS_BUILD_CPU_LION"
    NAME = "cpu_lion"
    functions = ("create_lion", "destroy_lion", "lion_update", "lion_step", "simd_level")

    def absolute_name(self) -> str:
        return f"deepspeed.ops.lion.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/lion/cpu_lion.cpp", "csrc/lion/cpu_lion_kernels.cpp"]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/lion"]

    def self_check(self, op: object) -> None:
        def step(params: list, grads: list, exp_avgs: list, *constants: float) -> None:
            op.lion_step(params, grads, exp_avgs, 1, *constants)

        check_lion_step(self.NAME, step, "cpu")
