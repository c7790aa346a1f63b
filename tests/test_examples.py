"""The examples run and do what they promise."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT


def test_digits_mlp_learns_and_follows_torchs_curve(tmp_path):
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "digits_mlp.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    # Its exit status says whether it passed 97 % and kept to the curve.
    assert done.returncode == 0, done.stdout + done.stderr
