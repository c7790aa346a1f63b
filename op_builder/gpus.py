"""The GPUs this process can see, asked without CUDA being initialized in it.

Initializing CUDA, even without a context, makes it unusable in every process forked later. So the
management library (NVML) is asked, and where it can't tell, the driver in a process of its own. If
torch has initialized CUDA already, torch knows.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from functools import cache

from .errors import ToolchainError
from .process import ask

Capability = tuple[int, int]

# cuInit, then the attributes COMPUTE_CAPABILITY_MAJOR (75) and _MINOR (76) of each device. Error
# 100 is CUDA_ERROR_NO_DEVICE, also when CUDA_VISIBLE_DEVICES hides them all.
_ASK_DRIVER = """\
import ctypes, json, sys
driver, found = ctypes.CDLL("libcuda.so.1"), []
def require(code):
    if code: sys.exit(0 if code == 100 and not print("[]") else f"CUDA error {code}")
require(driver.cuInit(0))
count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
require(driver.cuDeviceGetCount(ctypes.byref(count)))
for ordinal in range(count.value):
    require(driver.cuDeviceGet(ctypes.byref(device), ordinal))
    found.append([])
    for attribute in (75, 76):
        require(driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device))
        found[-1].append(value.value)
print(json.dumps(found))
"""


def visible_capabilities() -> tuple[Capability, ...]:
    """The capability (major, minor) of each visible GPU; none where there is no driver or no GPU.

    Raises:
        ToolchainError: the driver is there and doesn't answer.
    """
    known = _known_to_torch()
    return _visible(os.environ.get("CUDA_VISIBLE_DEVICES")) if known is None else known


def _known_to_torch() -> tuple[Capability, ...] | None:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():  # False in a forked child, too
        return None
    return tuple(cuda.get_device_capability(i) for i in range(cuda.device_count()))


@cache
def _visible(listed: str | None) -> tuple[Capability, ...]:
    try:
        ctypes.CDLL("libcuda.so.1")  # loading it initializes nothing
    except OSError:
        return ()
    found = _from_nvml(listed)
    return _from_driver() if found is None else found


def _from_nvml(listed: str | None) -> tuple[Capability, ...] | None:
    """What NVML says of the GPUs ``listed`` (CUDA_VISIBLE_DEVICES); None if it can't tell.

    NVML numbers GPUs by their place on the bus, CUDA those of one kind likewise; where kinds
    differ and only some are visible, only the driver knows which.
    """
    every = _all_from_nvml()
    if every is None or listed is None:
        return every
    words = [word.strip() for word in listed.split(",")]
    if not all(word.isdecimal() and int(word) < len(every) for word in words):
        return None
    return tuple(every[int(word)] for word in words) if len(set(every)) == 1 else None


def _all_from_nvml() -> tuple[Capability, ...] | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    try:
        count, found = ctypes.c_uint(), []
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return None
        for index in range(count.value):
            handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                return None
            if nvml.nvmlDeviceGetCudaComputeCapability(
                handle, ctypes.byref(major), ctypes.byref(minor)
            ):
                return None
            found.append((major.value, minor.value))
        return tuple(found)
    finally:
        nvml.nvmlShutdown()


def _from_driver() -> tuple[Capability, ...]:
    done = ask([sys.executable, "-c", _ASK_DRIVER], timeout=60)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise ToolchainError(
            f"The NVIDIA driver does not answer ({reason[0]}).",
            "See that `nvidia-smi` works, and that this user may open /dev/nvidia*.",
        )
    return tuple((major, minor) for major, minor in json.loads(done.stdout))
