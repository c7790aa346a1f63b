"""The ops under test, and the SIMD levels they choose between."""

from __future__ import annotations

import pytest
import torch
from deepspeed.ops.op_builder import (
    CPUAdagradBuilder,
    CPUAdamBuilder,
    CPULionBuilder,
    UtilsBuilder,
)

from .reference import LEVELS


@pytest.fixture(scope="session")
def adam_op() -> object:
    return CPUAdamBuilder().load()


@pytest.fixture(scope="session")
def adagrad_op() -> object:
    return CPUAdagradBuilder().load()


@pytest.fixture(scope="session")
def lion_op() -> object:
    return CPULionBuilder().load()


@pytest.fixture(scope="session")
def utils_op() -> object:
    return UtilsBuilder().load()


@pytest.fixture(params=LEVELS)
def simd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, adam_op: object) -> str:
    """Runs the test once per SIMD level this CPU has."""
    monkeypatch.setenv("DS_CPU_SIMD", request.param)
    if adam_op.simd_level() != request.param:
        pytest.skip(f"this CPU has no {request.param}")
    return request.param


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    torch.manual_seed(0)
