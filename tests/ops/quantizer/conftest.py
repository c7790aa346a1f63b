"""The quantizer under test, on each kind of device there is."""

from __future__ import annotations

import pytest
import torch
from deepspeed.ops.op_builder import QuantizerBuilder


@pytest.fixture(scope="session")
def op() -> object:
    return QuantizerBuilder().load()


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return request.param
