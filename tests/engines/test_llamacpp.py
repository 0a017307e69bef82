"""llama.cpp tuned for real: a server with one slot is diagnosed, relaunched with slots for all, measured and brought back."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from optimizer.engines.llamacpp import ENGINE

from .conftest import Engines, Servers, Tool, answers, argv_of, owners

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1300)]

RECORDED = Path(__file__).parents[1] / "recordings/llamacpp-2026.10-cpu/help.txt"


def test_the_installed_build_is_the_recorded_one(llamacpp: Engines) -> None:
    argv = list(llamacpp.llamacpp().argv)
    text = subprocess.run(ENGINE.help_argv(argv), capture_output=True, timeout=60, text=True, check=True).stdout
    assert {flag.name for flag in ENGINE.flags(text).flags} == {flag.name for flag in ENGINE.flags(RECORDED.read_text()).flags}
    refused = subprocess.run([*argv, "--no-such-flag"], capture_output=True, timeout=60, text=True, check=False)
    assert refused.returncode == 1 and "invalid argument" in refused.stdout + refused.stderr


def test_a_running_server_is_diagnosed_and_left_alone(llamacpp: Engines, tool: Tool, serve: Servers) -> None:
    launch = serve(llamacpp.llamacpp("--parallel", "2"))
    before = owners(launch.port)
    found = tool("diagnose", "--host", "localhost", "--port", str(launch.port), "--json")
    assert found.exit == 0, found.err
    facts = {fact["fact"]: fact for fact in found.json["facts"]}
    assert facts["engine.name"]["value"] == "llamacpp" and facts["scheduler.max_running"]["value"] == 2
    assert facts["model.max_context_tokens"]["value"] == 4096 and facts["startup.outcome"]["value"] == "ok"
    planned = tool("plan", "--host", "localhost", "--port", str(launch.port), "--json")
    assert planned.json["given"]["parallel"] == 2 and planned.json["unknown_flags"] == []
    assert owners(launch.port) == before and tool.marked() == {}


@pytest.mark.measures
def test_one_slot_for_sixteen_users_is_found_and_cured(llamacpp: Engines, tool: Tool, serve: Servers) -> None:
    """Time to first token, which a slot for everybody cuts by an order of magnitude; the rate on two cores hardly moves. On a busy
    machine the confirmation may be refused as too noisy: then the study says so and brings the original back."""
    launch = serve(llamacpp.llamacpp("--parallel", "1"))
    # Longer than the others' windows: what waited since the start is no sample, and one slot takes a while to get through it.
    done = tool.run("slots", "ttft<1500ms@16", "--port", str(launch.port), prompt_tokens=64, output_tokens=32, warmup_max_s=10, window_s=12,
                    confirm_window_s=15)  # fmt: skip
    result = done.json
    assert done.exit in (0, 3), done.err
    causes = {row["id"]: row for row in result["hypotheses"]}
    assert causes["admission-cap-too-low"]["status"] == "supported", done.err
    assert {"parallel": 16, "kv_unified": True} in result["promoted"]
    assert result["baseline"]["value"] > 4 * result["best"]["value"]
    assert answers(launch)
    now = owners(launch.port)
    words = [argv_of(pid) for pid in now]
    if done.exit == 0:
        assert result["best"]["fresh_confirmation"]
        assert all(line[line.index("--parallel") + 1] == "16" for line in words)
    else:
        assert "not" in json.dumps(result["ending"]) and all(line[line.index("--parallel") + 1] == "1" for line in words)
        assert tool.left("slots") == {}
    assert tool("replay", "slots", "--verify", "--json").json["identical"]
