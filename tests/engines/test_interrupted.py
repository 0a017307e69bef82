"""The tool stopped in the middle of its work on a real server, politely and not: nothing is lost, nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from .conftest import Engines, Launch, Tool, answers, argv_of, owners, wait_until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1300)]


def test_ctrl_c_while_measuring_brings_the_original_back(engines: Engines, tool: Tool, serve: Callable[[Launch], Launch]) -> None:
    launch = serve(engines.vllm("--max-num-seqs", "1"))
    process = tool.start(*tool.study("ctrlc", "200tps@16", "--port", str(launch.port)), name="run")
    told = tool.home / "run.err"

    def measuring() -> bool:
        assert process.poll() is None, told.read_text()
        return "(candidate): c=" in told.read_text()

    wait_until(measuring, 600, "a candidate is measured")
    process.send_signal(signal.SIGINT)
    done = tool.finish(process, 180, name="run")
    assert done.exit == 130, done.err
    assert done.json["ending"] == "interrupted"
    assert answers(launch)
    now = owners(launch.port)
    assert now and all(argv_of(pid) == list(launch.argv) for pid in now)
    assert tool.left("ctrlc") == {}
    assert tool("replay", "ctrlc", "--verify", "--json").json["identical"]


def test_kill_9_in_mid_launch_and_resume_decide_the_same(engines: Engines, tool: Tool) -> None:
    launch = engines.vllm("--max-num-seqs", "1")
    process = tool.start(*tool.study("killed", "200tps@16", "--launch", str(launch.file(tool.home)), "--finish", "restore"), name="run")
    told = tool.home / "run.err"

    def launching() -> bool:
        assert process.poll() is None, told.read_text()
        text = told.read_text()
        return "Launching (candidate)" in text and "Waiting until" in text.rpartition("Launching (candidate)")[2]

    wait_until(launching, 600, "a candidate is launched")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    assert tool.marked(), "the server that was being started and the guard live on"

    done = tool("resume", "killed", "--json")
    result = done.json
    assert (done.exit, result["ending"]) == (0, "met"), done.err
    assert result["promoted"] == [{"max_num_seqs": 16}]
    assert result["best"]["value"] >= 3 * result["baseline"]["value"]
    assert tool.left("killed") == {} and not owners(launch.port)
    assert tool("replay", "killed", "--verify", "--json").json["identical"]
