"""A deployment of prefill, decode and router tuned as one, over real processes: found or described, measured through its router,
stopped, relaunched and brought back as one; and whatever happens to one member happens to the launch."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .fastbox import entries, wait_until
from .pdbox import PDBox, worker_logs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Made = Callable[..., PDBox]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    boxes: list[PDBox] = []

    def make(**options: Any) -> PDBox:
        boxes.append(PDBox(tmp_path, **options))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()


def launches(box: PDBox, study: str) -> list[dict[str, Any]]:
    return [entry.body["outcome"]["body"] for entry in entries(box.runs / study) if entry.kind == "outcome" and entry.body["step"] == "launch"]


def test_a_deployment_that_runs_is_tuned_and_comes_back(made: Made) -> None:
    box = made()
    box.serve()
    before = box.serving()
    assert set(before) == {"prefill", "decode", "router"}
    done = box(*box.study("found", "--finish", "restore", launch=False))
    assert done.decision[0] == "met", done.err
    # The setting is the decode side's: the prefill side keeps its words.
    member = {one["name"]: one for one in launches(box, "found")[0]["members"]}
    assert "--disable-cuda-graph" not in member["decode"]["argv"] and "--disable-cuda-graph" in member["prefill"]["argv"]
    assert member["router"]["port"] != box.port and member["decode"]["port"] == box.ports["decode"]
    assert box.serving() == before and box.answers()
    assert box.environment_of("decode")["CUDA_VISIBLE_DEVICES"] == "1" and box.environment_of("prefill")["CUDA_VISIBLE_DEVICES"] == "0"
    box.assert_clean(serving=True)
    blobs = worker_logs(box.runs / "found")
    assert all("prefill.server.log" in names and "server.log" in names for names in blobs.values()) and len(blobs) >= 2
    verified = box("replay", "found", "--verify", "--json")
    assert verified.json["identical"], verified.out
    script = (box.runs / "found/launch.sh").read_text()
    assert script.count("--disaggregation-mode") == 2 and "launch_router" in script
