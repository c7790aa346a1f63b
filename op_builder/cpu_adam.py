"""Op cpu_adam: Adam and AdamW steps on CPU tensors."""

from __future__ import annotations

from .builder import TorchCPUOpBuilder
from .optimizer_check import check_adam_step


class CPUAdamBuilder(TorchCPUOpBuilder):
    BUILD_VAR = "DS_BUILD_CPU_ADAM"
    NAME = "cpu_adam"
    functions = (
        "create_adam",
        "destroy_adam",
        "adam_update",
        "adam_rollback",
        "adam_step",
        "simd_level",
    )

    def absolute_name(self) -> str:
        return f"deepspeed.ops.adam.{self.NAME}_op"

    def sources(self) -> list[str]:
        return ["csrc/adam/cpu_adam.cpp", "csrc/adam/cpu_adam_kernels.cpp"]

    def include_paths(self) -> list[str]:
        return ["csrc/common", "csrc/adam"]

    def self_check(self, op: object) -> None:
        check_adam_step(self.NAME, op.adam_step, "cpu")
