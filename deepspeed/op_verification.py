"""Proof that an op works here: build or load it, run it, compare its numbers with a reference.

Each op is proved in a forked child, so that one that crashes is a row in the report instead of the
report's end. The parent imports torch once and runs nothing of it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection

from .ops.op_builder import OpBuilder, OpBuilderError


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of one op: its reason is empty if it passed."""

    ok: bool
    seconds: float
    reason: str = ""


def _prove(builder: OpBuilder, answer: Connection) -> None:
    try:
        op = builder.load()
        builder.self_check(op)
        answer.send("")
    except OpBuilderError as error:
        answer.send(str(error))
    except BaseException as error:  # the child must always answer
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        answer.send(text)


def verify(builder: OpBuilder) -> Verification:
    """Load and check ``builder``'s op in a child process."""
    with warnings.catch_warnings():
        # torch works without numpy, and so do the ops.
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        # Once, before forking; where it can't be had, that is the child's answer.
        with contextlib.suppress(ImportError, OSError):
            import torch  # noqa: F401

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_prove, args=(builder, sender))
    started = time.monotonic()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads at fork; torch's, idle at this point, hold no lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sender.close()
    try:
        reason = receiver.recv()
    except EOFError:
        child.join()
        reason = _cause_of_death(child.exitcode)
    child.join()
    return Verification(not reason, time.monotonic() - started, reason)


def _cause_of_death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"It ended the process with {signal.Signals(-code).name}."
    return f"It ended the process with exit status {code}."
