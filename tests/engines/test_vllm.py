"""vLLM tuned for real from a described launch: the tool dies with SIGKILL in the middle of it and is resumed; nothing is lost, nothing
is left, and drafts that pay are found."""

from __future__ import annotations

import os
import signal

import pytest

from .conftest import Engines, Tool, owners, wait_until

pytestmark = [pytest.mark.engines, pytest.mark.measures, pytest.mark.timeout(1300)]


def test_ngram_drafts_pay_on_a_model_that_repeats_itself_although_the_tool_is_killed_in_mid_launch(engines: Engines, tool: Tool) -> None:
    launch = engines.vllm(model="model-cycle")
    # Four in flight: the processor has room for the drafts' tokens there, and gains 2.6 times instead of 1.9 times at 16.
    # One launch settles it where rates are steady; a noisy machine needs several, and those must not run out.
    words = tool.study("cycle", "3000tps@4", "--launch", str(launch.file(tool.home)), "--finish", "restore", "--launches", "9",
                       output_tokens=128)  # fmt: skip
    process = tool.start(*words, name="run")
    told = tool.home / "run.err"

    def launching() -> bool:
        assert process.poll() is None, told.read_text()
        text = told.read_text()
        return "Launching (candidate)" in text and "Waiting until" in text.rpartition("Launching (candidate)")[2]

    wait_until(launching, 600, "a candidate is launched")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    assert tool.marked(), "the server that was being started and the guard live on"

    done = tool("resume", "cycle", "--json")
    result = done.json
    assert done.exit == 3, done.err
    assert result["ending"] == "not_met"
    causes = {row["id"]: row for row in result["hypotheses"]}
    assert causes["ngram-speculation-off"]["status"] == "supported", done.err
    assert {"speculative_config.method": "ngram"}.items() <= result["promoted"][0].items()
    assert result["best"]["value"] > 1.3 * result["baseline"]["value"]
    assert tool.left("cycle") == {} and not owners(launch.port)
    assert tool("replay", "cycle", "--verify", "--json").json["identical"]
