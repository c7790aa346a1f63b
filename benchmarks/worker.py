"""A worker process of one side: commands go in as lines, answers come back as lines of JSON."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from timing import PROJECT, Side


class Process:
    """A running worker of one side."""

    def __init__(self, side: Side, script: Path, library: str, **environment: str) -> None:
        self.name = side.name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [side.python, str(script), "--library", library],
            env=side.environ(**environment),
            cwd=script.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )

    def ask(self, command: str) -> dict:
        """Send one command and return the answer.

        Raises:
            RuntimeError: the worker died; the message ends with what it printed.
        """
        try:
            print(command, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._errors.seek(0)
            tail = "\n".join(self._errors.read().splitlines()[-20:])
            raise RuntimeError(f"{self.name} died at `{command}`:\n{tail}")
        return json.loads(answer)

    def seconds(self, steps: int) -> float:
        """Seconds per step, over ``steps`` of them."""
        return self.ask(f"run {steps}")["seconds"]

    def close(self) -> None:
        """End the worker."""
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()


def compare_work(case: str, changes: dict[str, float], tolerance: float) -> None:
    """Raise unless the first step changed the parameters equally far on every side."""
    ours = changes[PROJECT]
    for name, change in changes.items():
        if not abs(change - ours) <= tolerance * ours:
            raise RuntimeError(f"{case}: the first step of {name} changed {change}, ours {ours}")
