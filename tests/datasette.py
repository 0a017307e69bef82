"""A Datasette that serves files as a person starts it, for the length of a block."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

START_S = 60.0  # on a busy machine


@contextlib.contextmanager
def serving(words: Sequence[str], cwd: Path) -> Iterator[str]:
    """``words``: what a person writes after ``datasette``. The address, once it answers."""
    with tempfile.TemporaryFile("w+") as said:
        # Its own start is slow enough; a free port and no browser are all that is added.
        process = subprocess.Popen([sys.executable, "-m", "datasette", *words, "--port", "0"], cwd=cwd, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield _address(process, said)
        finally:
            process.terminate()
            process.wait(20)


def _address(process: subprocess.Popen[bytes], said: Any) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        said.seek(0)
        for word in said.read().split():
            if word.startswith("http://127.0.0.1:"):
                return str(word)
        time.sleep(0.1)
    said.seek(0)
    raise AssertionError(f"Datasette does not serve: {said.read()}")


def answer(address: str, path: str, **query: str) -> Any:
    """A JSON document of Datasette's; an error of its is raised with its text."""
    url = f"{address}{path}?{urllib.parse.urlencode({'_shape': 'objects', **query})}"
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return json.loads(reply.read())
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.code} {error.read()[:500]!r}") from error
