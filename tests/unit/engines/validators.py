"""The programs that read the files in earnest: docker compose, and the schemas of Kubernetes' releases. Both come with the development
packages; compose is asked only to read (``config``), which needs no daemon."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

_RELEASES = ("1.30", "1.34")  # the oldest that clusters still run, and one of the newest


def compose_program() -> list[str]:
    """As a program of its own where the development packages have it, else docker's."""
    own = Path(sys.executable).with_name("docker-compose")
    if own.exists():
        return [str(own)]
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    pytest.skip("no docker compose for this machine")


def read_by_compose(path: Path, given: Mapping[str, str]) -> tuple[int, dict[str, Any], str]:
    """(exit status, the one service as compose takes it, what it said), with ``given`` as the whole environment beside the search path."""
    done = subprocess.run(
        [*compose_program(), "-f", str(path), "config", "--format", "json"], env={"PATH": "/usr/bin:/bin", "HOME": str(path.parent), **given},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout)["services"]["server"] if done.returncode == 0 else {}, done.stderr


def checked_by_kubernetes(documents: list[dict[str, Any]]) -> None:
    """Raises where a release's schema refuses a document; strict: a field that it does not know is refused too."""
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents:
        for release in _RELEASES:
            validate.validate(document, release, strict=True)
