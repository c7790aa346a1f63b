"""Running another program to ask it something."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def ask(
    argv: Sequence[str],
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``argv`` without input and return what came of it.

    A program that is missing, can't be started or outlasts ``timeout`` seconds counts as one that
    failed, with the reason as its error output; nothing is raised.
    """
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=env,
            cwd=cwd,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))
