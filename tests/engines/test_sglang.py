"""SGLang tuned for real: a server of several processes is found, stopped, relaunched, and brought back as it was on request."""

from __future__ import annotations

import shlex

import pytest

from .conftest import Engines, Servers, Tool, answers, argv_of, owners, rate_of

pytestmark = [pytest.mark.engines, pytest.mark.measures, pytest.mark.timeout(1300)]


def test_two_slots_are_found_and_lifted(engines: Engines, tool: Tool, serve: Servers) -> None:
    launch = serve(engines.sglang("--max-running-requests", "2"))
    before = owners(launch.port)
    # Mostly decode, short contexts: that is where a batch of 16 gains most over two slots here (measured 2.8 times).
    load = {"prompt_tokens": 24, "output_tokens": 96}
    target = round(1.5 * rate_of(launch, **load))
    done = tool.run("slots", f"{target}tps@16", "--port", str(launch.port), "--finish", "restore", **load)
    result = done.json
    assert (done.exit, result["ending"]) == (0, "met"), done.err
    assert result["promoted"] == [{"max_running_requests": 16}]
    assert result["launches"] <= 3  # at most two for the idea, one for the confirmation
    assert result["best"]["fresh_confirmation"] and result["best"]["value"] >= 2 * result["baseline"]["value"]
    causes = {row["id"]: row for row in result["hypotheses"]}
    assert causes["admission-cap-too-low"]["status"] == "supported"
    observed = next(entry["body"]["outcome"]["body"] for entry in tool.entries("slots") if entry["body"].get("step") == "observe")
    assert observed["flags"]["known"] and len(observed["flags"]["flags"]) > 300

    assert tool.left("slots") == {}
    assert answers(launch)
    now = owners(launch.port)
    assert now and now != before and all(argv_of(pid) == list(launch.argv) for pid in now)
    script = shlex.split((tool.runs / "slots/launch.sh").read_text().replace("\\\n", " "), comments=True)
    assert script[script.index("--max-running-requests") + 1] == "16"
    assert "PYTHONPATH" in (tool.runs / "slots/env.sh").read_text(), "the winner can be started by hand"
    verified = tool("replay", "slots", "--verify", "--json")
    assert verified.exit == 0 and verified.json["identical"], verified.out
