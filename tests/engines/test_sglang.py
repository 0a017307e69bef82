"""SGLang tuned for real, started from a described launch on a box where nothing runs."""

from __future__ import annotations

import shlex

import pytest

from .conftest import Engines, Tool, owners

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


def test_two_slots_are_found_and_lifted(engines: Engines, tool: Tool) -> None:
    launch = engines.sglang("--max-running-requests", "2")
    done = tool.run("slots", "110tps@16", "--launch", str(launch.file(tool.home)), "--finish", "restore")
    result = done.json
    assert (done.exit, result["ending"]) == (0, "met"), done.err
    assert result["promoted"] == [{"max_running_requests": 16}]
    assert result["launches"] <= 3
    assert result["best"]["fresh_confirmation"] and result["best"]["value"] >= 2 * result["baseline"]["value"]
    causes = {row["id"]: row for row in result["hypotheses"]}
    assert causes["admission-cap-too-low"]["status"] == "supported"
    assert tool.marked() == {} and not owners(launch.port), "nothing ran before, so nothing runs now"
    script = shlex.split((tool.runs / "slots/launch.sh").read_text(), comments=True)
    assert script[script.index("--max-running-requests") + 1] == "16"
    verified = tool("replay", "slots", "--verify", "--json")
    assert verified.exit == 0 and verified.json["identical"], verified.out
