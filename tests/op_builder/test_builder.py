"""The builder's contract: what DeepSpeed's callers and other distributions rely on."""

import platform

import pytest
import torch
from deepspeed.ops.op_builder import ALL_OPS, OpBuilder, TorchCPUOpBuilder, all_ops, builder_names
from deepspeed.ops.op_builder.compatibility import check
from deepspeed.ops.op_builder.layout import prebuilt_candidates

from deepspeed.ops import op_builder

OWN_OPS = {
    "cpu_adam": ("CPUAdamBuilder", "DS_BUILD_CPU_ADAM", "deepspeed.ops.adam.cpu_adam_op"),
    "cpu_adagrad": (
        "CPUAdagradBuilder",
        "DS_BUILD_CPU_ADAGRAD",
        "deepspeed.ops.adagrad.cpu_adagrad_op",
    ),
    "cpu_lion": ("CPULionBuilder", "DS_BUILD_CPU_LION", "deepspeed.ops.lion.cpu_lion_op"),
    "utils": ("UtilsBuilder", "DS_BUILD_UTILS", "deepspeed.ops.utils_op"),
    "fused_adam": ("FusedAdamBuilder", "DS_BUILD_FUSED_ADAM", "deepspeed.ops.adam.fused_adam_op"),
    "fused_lamb": ("FusedLambBuilder", "DS_BUILD_FUSED_LAMB", "deepspeed.ops.lamb.fused_lamb_op"),
    "fused_lion": ("FusedLionBuilder", "DS_BUILD_FUSED_LION", "deepspeed.ops.lion.fused_lion_op"),
    "quantizer": (
        "QuantizerBuilder",
        "DS_BUILD_QUANTIZER",
        "deepspeed.ops.quantizer.quantizer_op",
    ),
    "spatial_inference": (
        "SpatialInferenceBuilder",
        "DS_BUILD_SPATIAL_INFERENCE",
        "deepspeed.ops.spatial.spatial_inference_op",
    ),
}


class Tiny(TorchCPUOpBuilder):
    NAME = "tiny"
    BUILD_VAR = "DS_BUILD_TINY"

    def absolute_name(self) -> str:
        return "tiny_package.tiny_op"

    def sources(self) -> list[str]:
        return ["/nowhere/tiny.cpp"]


@pytest.mark.parametrize("name", OWN_OPS)
def test_names_are_deepspeeds(name):
    class_name, build_var, absolute_name = OWN_OPS[name]
    builder = ALL_OPS[name]
    assert type(builder).__name__ == class_name == getattr(builder_names, class_name)
    assert (name, build_var) == (builder.NAME, builder.BUILD_VAR)
    assert builder.absolute_name() == absolute_name
    assert getattr(op_builder, class_name) is type(builder)


@pytest.mark.parametrize("name", OWN_OPS)
def test_own_ops_are_stable_compatible_and_portable(name, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    builder = ALL_OPS[name]
    if issubclass(type(builder), TorchCPUOpBuilder) or torch.cuda.is_available():
        assert builder.is_compatible() is True and builder.error_log is None
    plan = builder.plan()
    assert plan.stable
    assert not any("-march" in flag or "native" in flag for flag in plan.flags)
    assert "-DTORCH_TARGET_VERSION=0x020a000000000000" in plan.flags


def test_load_returns_the_same_object_every_time():
    assert ALL_OPS["utils"].load() is op_builder.UtilsBuilder().load()


def test_names_that_are_no_builders_are_attribute_errors():
    with pytest.raises(AttributeError):
        _ = op_builder.NoSuchBuilder


def test_a_missing_source_is_a_reason_not_a_traceback(capsys):
    builder = Tiny()
    assert builder.is_compatible() is False
    assert "/nowhere/tiny.cpp" in builder.error_log
    assert capsys.readouterr() == ("", "")
    builder.is_compatible(verbose=True)
    assert "/nowhere/tiny.cpp" in capsys.readouterr().err


def test_check_survives_a_builder_that_raises():
    class Raising(Tiny):
        def is_compatible(self, verbose: bool = False) -> bool:
            raise KeyError("gone")

    result = check(Raising())
    assert not result and "KeyError" in result.cause


def test_check_gives_a_reason_for_an_overridden_no(tmp_path):
    source = tmp_path / "ok.cpp"
    source.write_text("")

    class No(Tiny):
        def sources(self) -> list[str]:
            return [str(source)]

        def is_compatible(self, verbose: bool = False) -> bool:
            return False

    result = check(No())
    assert not result and "is_compatible" in result.cause


def test_probes():
    builder = Tiny()
    assert builder.command_exists("sh") and builder.command_exists(["no-such-zz", "sh"])
    assert not builder.command_exists("no-such-program-zz")
    assert builder.has_function("cos", ("m",))
    assert not builder.has_function("no_such_function_zz", ("m",))


def test_cpu_arch_is_the_portable_baseline():
    flags = {"x86_64": "-march=x86-64", "aarch64": "-march=armv8-a"}
    assert Tiny().cpu_arch() == flags[platform.machine()]
    assert Tiny().simd_width() == "-D__SCALAR__"


def test_an_op_without_self_check_says_so():
    with pytest.raises(NotImplementedError, match="self_check"):
        Tiny().self_check(object())


def test_op_builder_cannot_be_instantiated_without_declarations():
    with pytest.raises(TypeError):
        OpBuilder()


def test_a_name_that_is_taken_is_reported_not_replaced():
    class Impostor(Tiny):
        NAME = "cpu_adam"

    own = type(ALL_OPS["cpu_adam"])
    ops = all_ops._instantiate([own, Impostor])
    assert type(ops["cpu_adam"]) is own
    (failure,) = [v for k, v in all_ops.IMPORT_FAILURES.items() if k.endswith("Impostor")]
    all_ops.IMPORT_FAILURES.clear()
    assert "cpu_adam" in failure


def test_a_name_without_a_package_has_no_prebuilt_binary():
    for name in ("", "one"):
        assert prebuilt_candidates(name) == []
