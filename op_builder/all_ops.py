"""Every op there is: the ``*Builder`` classes of this folder, found by reflection, and those other
distributions add through the entry-point group ``deepspeed.op_builders``.

A module that can't be imported is kept in :data:`IMPORT_FAILURES` and reported; the others live.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import ModuleType

from .builder import OpBuilder

ENTRY_POINT_GROUP = "deepspeed.op_builders"

_DEFINES_BUILDER = re.compile(r"^class \w+Builder\(", re.MULTILINE)

#: Module or entry point → what stopped it from being imported.
IMPORT_FAILURES: dict[str, str] = {}


def _is_op(value: object) -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, OpBuilder)
        and value.__name__.endswith("Builder")
        and not inspect.isabstract(value)
        and isinstance(value.NAME, str)
        and bool(value.NAME)
    )


def _ops_of(module: ModuleType) -> dict[str, type[OpBuilder]]:
    return {n: v for n, v in vars(module).items() if _is_op(v) and v.__module__ == module.__name__}


def _op_modules() -> list[str]:
    """The modules of this folder whose text defines a builder; the others aren't imported."""
    folder = Path(__file__).parent
    texts = ((path.stem, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py")))
    return [name for name, text in texts if _DEFINES_BUILDER.search(text)]


def _own_builders() -> dict[str, type[OpBuilder]]:
    found: dict[str, type[OpBuilder]] = {}
    for name in _op_modules():
        try:
            found.update(_ops_of(importlib.import_module(f"{__package__}.{name}")))
        except Exception as error:  # whatever a broken module raises must not take down the rest
            IMPORT_FAILURES[name] = f"{type(error).__name__}: {error}"
    return found


def _added_builders() -> list[type[OpBuilder]]:
    found: list[type[OpBuilder]] = []
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            value = point.load()
        except Exception as error:
            IMPORT_FAILURES[point.name] = f"{type(error).__name__}: {error}"
            continue
        if _is_op(value):
            found.append(value)
        else:
            IMPORT_FAILURES[point.name] = f"{point.value} is no OpBuilder subclass with a NAME"
    return found


def _instantiate(classes: Iterable[type[OpBuilder]]) -> dict[str, OpBuilder]:
    ops: dict[str, OpBuilder] = {}
    for builder in classes:
        name = f"{builder.__module__}.{builder.__name__}"
        if builder.NAME in ops:
            IMPORT_FAILURES[name] = f"the name {builder.NAME} is taken by another op"
            continue
        try:
            ops[builder.NAME] = builder()
        except Exception as error:
            IMPORT_FAILURES[name] = f"{type(error).__name__}: {error}"
    return ops


#: This distribution's builder classes, by class name.
BUILDERS: dict[str, type[OpBuilder]] = _own_builders()

#: Op name → builder instance.
ALL_OPS: dict[str, OpBuilder] = _instantiate([*BUILDERS.values(), *_added_builders()])
