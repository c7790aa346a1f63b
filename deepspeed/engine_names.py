"""The names of DeepSpeed's training engine, which this distribution does not contain.

Libraries import some of them to ask ``isinstance(model, DeepSpeedEngine)``; the answer is no, and
making one is an error. Any other name is an error as soon as it is looked up.
"""

from __future__ import annotations

#: Names of the engine that people's programs use; any other unknown name is a plain typo.
_ENGINE_NAMES = frozenset(
    {
        "InferenceEngine",
        "PipelineEngine",
        "PipelineModule",
        "add_config_arguments",
        "checkpointing",
        "comm",
        "init_distributed",
        "init_inference",
        "initialize",
        "moe",
        "pipe",
        "runtime",
        "tp_model_init",
        "utils",
        "zero",
    }
)


def _sentence(name: str) -> str:
    return (
        f"{name} belongs to DeepSpeed's training engine, which this distribution of the ops does "
        f"not contain. Install the engine in an environment of its own: `pip install deepspeed` "
        f"from PyPI."
    )


def absent(qualified: str, name: str) -> AttributeError:
    """The error for looking up ``name``: the engine's, or nobody's."""
    if name in _ENGINE_NAMES:
        return AttributeError(_sentence(qualified))
    return AttributeError(f"module 'deepspeed' has no attribute {name!r}")


class _EnginePart:
    """A class of the engine, to be asked about, not to be made."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(_sentence(f"deepspeed.{type(self).__name__}"))


class DeepSpeedEngine(_EnginePart):
    """No object is one: see the module's docstring."""


class DeepSpeedOptimizer(_EnginePart):
    """No object is one: see the module's docstring."""
