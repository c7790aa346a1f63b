"""The GPU ops under test; everything here is skipped where there is no GPU."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "tests/ops/gpu" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="there is no GPU"))


@pytest.fixture(scope="session")
def adam_op() -> object:
    from deepspeed.ops.op_builder import FusedAdamBuilder

    return FusedAdamBuilder().load()


@pytest.fixture(scope="session")
def lion_op() -> object:
    from deepspeed.ops.op_builder import FusedLionBuilder

    return FusedLionBuilder().load()


@pytest.fixture(scope="session")
def lamb_op() -> object:
    from deepspeed.ops.op_builder import FusedLambBuilder

    return FusedLambBuilder().load()
