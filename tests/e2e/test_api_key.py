"""A server that asks its clients for an API key is tuned like any other, on the fast box. The key comes from the server's own
command line and is then nowhere to be found: not in the journal, the attachments, the logs, the reports or on the screen."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest

from .fastbox import FastBox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KEY = "canary-0f4b-key-of-the-server"


def holding(folder: Path, word: bytes) -> list[str]:
    """Files that hold a word, plainly or compressed."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for opened in (bytes, gzip.decompress, zlib.decompress):
                try:
                    if word in opened(data):
                        found.append(f"{path} ({opened.__name__})")
                except (OSError, zlib.error, EOFError):
                    continue
    return found


def test_a_server_that_runs_with_a_key(box: FastBox) -> None:
    box.argv = (*box.argv, "--api-key", KEY)
    box.serve()
    done = box(*box.study("keyed", launch=False))
    assert done.json["ending"] == "met", done.err
    assert KEY not in done.out + done.err
    assert KEY not in box("journal", "keyed", "--json").out
    assert holding(box.runs, KEY.encode()) == []
    assert box("replay", "keyed", "--verify").exit == 0
    assert all(KEY in argv for argv in box.serving_argv())  # what serves in the end asks for it as before


def test_a_launch_that_names_its_key(box: FastBox) -> None:
    (box.here / "launch.json").write_text(json.dumps({"argv": [*box.argv, "--api-key", KEY], "cwd": str(box.home)}))
    done = box(*box.study("described"))
    assert done.json["ending"] == "met", done.err
    assert KEY not in done.out + done.err and holding(box.runs, KEY.encode()) == []
