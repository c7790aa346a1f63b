"""The GPUs a process can see, as a driver library answers.

The library is a small one compiled here, so that any set of GPUs can be had on any machine; the
real one is asked by the tests that need a GPU.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import process_environment

DRIVER = """
static int capabilities[][2] = {@pairs@};
extern "C" int initialized = 0;
extern "C" int cuInit(unsigned) { initialized = 1; return @init@; }
extern "C" int cuDeviceGetCount(int* n) { *n = @count@; return 0; }
extern "C" int cuDeviceGet(int* device, int ordinal) { *device = 10 + ordinal; return 0; }
extern "C" int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = capabilities[device - 10][attribute - 75];
  return 0;
}
"""


def make_driver(folder: Path, capabilities: list[tuple[int, int]], init: int = 0) -> dict[str, str]:
    """Variables under which a process finds a driver that reports these GPUs."""
    folder.mkdir(exist_ok=True)
    pairs = ", ".join(f"{{{major}, {minor}}}" for major, minor in capabilities) or "{0, 0}"
    values = {"@pairs@": pairs, "@init@": str(init), "@count@": str(len(capabilities))}
    source = DRIVER
    for name, value in values.items():
        source = source.replace(name, value)
    (folder / "driver.cpp").write_text(source)
    argv = ["g++", "-shared", "-fPIC", str(folder / "driver.cpp")]
    subprocess.run([*argv, "-o", str(folder / "libcuda.so.1")], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


NVML = """
extern "C" int nvmlInit_v2() { return 0; }
extern "C" int nvmlShutdown() { return 0; }
extern "C" int nvmlDeviceGetCount_v2(unsigned* count) { *count = @count@; return 0; }
extern "C" int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** handle) {
  *handle = reinterpret_cast<void*>(i + 1ul);
  return 0;
}
extern "C" int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = @major@;
  *minor = @minor@;
  return 0;
}
"""


def make_nvml(folder: Path, count: int, capability: tuple[int, int]) -> dict[str, str]:
    """Variables under which a process finds an NVML that reports ``count`` equal GPUs."""
    source = NVML.replace("@count@", str(count))
    source = source.replace("@major@", str(capability[0])).replace("@minor@", str(capability[1]))
    (folder / "nvml.cpp").write_text(source)
    argv = ["g++", "-shared", "-fPIC", str(folder / "nvml.cpp")]
    subprocess.run([*argv, "-o", str(folder / "libnvidia-ml.so.1")], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


@pytest.fixture
def driver(tmp_path):
    return lambda *args, **kwargs: make_driver(tmp_path / "driver", *args, **kwargs)


def ask(mini: Path, variables: dict[str, str]) -> str:
    program = (
        "from deepspeed.ops.op_builder import OpBuilderError, gpus\n"
        "try: print(gpus.visible_capabilities())\n"
        "except OpBuilderError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=process_environment(mini, **variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_visible_gpu_is_reported(mini, driver):
    assert ask(mini, driver([(8, 0), (9, 0), (8, 0)])) == "((8, 0), (9, 0), (8, 0))"


def test_hidden_gpus_are_none(mini, driver):
    assert ask(mini, driver([(9, 0)], init=100)) == "()"


def test_a_driver_that_does_not_answer_is_an_error_with_its_code(mini, driver):
    text = ask(mini, driver([(9, 0)], init=3))
    assert text.startswith("The NVIDIA driver does not answer (CUDA error 3).")
    assert "nvidia-smi" in text


def test_nothing_that_is_asked_initializes_cuda_in_this_process(mini, driver):
    """A fork after cuInit can't use CUDA any more; the library here would end the process."""
    variables = driver([(9, 0)], init=0)
    program = (
        "import ctypes, os\n"
        "from deepspeed.ops.op_builder import gpus\n"
        "print(gpus.visible_capabilities())\n"
        "driver = ctypes.CDLL('libcuda.so.1')\n"
        "print(ctypes.c_int.in_dll(driver, 'initialized').value)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=process_environment(mini, **variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "((9, 0),)\n0\n", done.stderr


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, "((9, 0), (9, 0))"),
        ("1", "((9, 0),)"),
        ("0,1", "((9, 0), (9, 0))"),
        ("GPU-5ebe9f43", "((8, 0),)"),  # only the driver knows names
        ("-1", "((8, 0),)"),
    ],
)
def test_the_management_library_is_asked_first(mini, tmp_path, driver, listed, expected):
    """It and the driver give different answers here, so that one sees who was asked."""
    variables = {**driver([(8, 0)]), **make_nvml(tmp_path / "driver", 2, (9, 0))}
    if listed is not None:
        variables["CUDA_VISIBLE_DEVICES"] = listed
    assert ask(mini, variables) == expected
