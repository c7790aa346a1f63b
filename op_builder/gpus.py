"""The GPUs this process can see, asked of the driver without creating a CUDA context.

torch would create one to answer, which costs memory on the GPU and makes a later fork unusable.
"""

from __future__ import annotations

import ctypes
import functools

from .errors import ToolchainError

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: also when CUDA_VISIBLE_DEVICES hides them all
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


@functools.cache
def visible_capabilities() -> tuple[tuple[int, int], ...]:
    """The capability (major, minor) of each visible GPU; none where there is no driver or no GPU.

    Raises:
        ToolchainError: the driver is there and doesn't answer.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    code = driver.cuInit(0)
    if code == _NO_DEVICE:
        return ()
    count = ctypes.c_int()
    _require(code or driver.cuDeviceGetCount(ctypes.byref(count)))
    return tuple(
        (_attribute(driver, device, _MAJOR), _attribute(driver, device, _MINOR))
        for device in range(count.value)
    )


def _attribute(driver: ctypes.CDLL, ordinal: int, attribute: int) -> int:
    device, value = ctypes.c_int(), ctypes.c_int()
    _require(driver.cuDeviceGet(ctypes.byref(device), ordinal))
    _require(driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device))
    return value.value


def _require(code: int) -> None:
    if code:
        raise ToolchainError(
            f"The NVIDIA driver does not answer (CUDA error {code}).",
            "See that `nvidia-smi` works; in a process forked after CUDA was used, use the spawn "
            "start method.",
        )
