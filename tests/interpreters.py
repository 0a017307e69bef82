"""Which Pythons this machine has, for tests of what runs on a box with the Python that it happens to have."""

import functools
import os
import subprocess
from pathlib import Path


@functools.cache
def interpreters() -> dict[tuple[int, int], str]:
    """Every working Python from 3.6 up, by version: on the path, or kept by a version manager. A box needs 3.8."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for minor in range(6, 16):
        for name in (f"python3.{minor}", *map(str, sorted(kept.glob(f"3.{minor}.*/bin/python3.{minor}")))):
            try:
                run = subprocess.run([name, "-I", "-c", "import ssl"], capture_output=True, check=False, timeout=20)
            except (FileNotFoundError, subprocess.TimeoutExpired):
                continue
            if run.returncode == 0:  # a version manager leaves commands behind that stand for nothing
                found[3, minor] = name
                break
    return found


def supported() -> dict[tuple[int, int], str]:
    """Those that a box may have."""
    return {version: python for version, python in interpreters().items() if version >= (3, 8)}
