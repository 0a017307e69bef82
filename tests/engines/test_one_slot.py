"""A vLLM with one slot for sixteen users: interrupted while it is being tuned it is as it was, tuned for real it is replaced by the
best. Both studies tune one and the same server."""

from __future__ import annotations

import signal

import pytest

from .conftest import Engines, Launch, Servers, Tool, answers, argv_of, owners, rate_of, wait_until

pytestmark = [pytest.mark.engines, pytest.mark.measures, pytest.mark.timeout(1300)]


@pytest.fixture(scope="module")
def one_slot(engines: Engines) -> Launch:
    return engines.vllm("--max-num-seqs", "1")


def test_ctrl_c_while_measuring_brings_the_original_back(one_slot: Launch, tool: Tool, user_server: Servers) -> None:
    launch = user_server.again(one_slot)
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


def test_a_running_server_with_one_slot_is_tuned_and_replaced_by_the_best(one_slot: Launch, tool: Tool, user_server: Servers) -> None:
    launch = user_server.again(one_slot)
    before = owners(launch.port)
    target = round(2 * rate_of(launch))
    done = tool.run("slots", f"{target}tps@16", "--port", str(launch.port))
    result = done.json
    assert (done.exit, result["ending"]) == (0, "met"), done.err
    assert result["promoted"] == [{"max_num_seqs": 16}]
    assert result["launches"] <= 3  # at most two for the idea, one for the confirmation
    assert result["best"]["fresh_confirmation"] and result["best"]["value"] >= 3 * result["baseline"]["value"]
    causes = {row["id"]: row for row in result["hypotheses"]}
    assert causes["admission-cap-too-low"]["status"] == "supported"
    judged = [entry for entry in tool.entries("slots") if entry["kind"] == "judged"]
    assert judged[0]["body"]["hypothesis"] == "admission-cap-too-low", "the right cause comes first"

    # The winner serves where the original did, under its name, and nothing else of ours runs.
    assert answers(launch)
    now = owners(launch.port)
    assert now and now != before
    assert "16" in [argv_of(pid)[argv_of(pid).index("--max-num-seqs") + 1] for pid in now]
    final = [entry["body"]["step"]["key"] for entry in tool.entries("slots")
             if entry["kind"] == "intent" and entry["body"]["step"].get("purpose") == "final"]  # fmt: skip
    assert set(tool.left("slots").values()) == {f"slots:{final[-1]}"}
    verified = tool("replay", "slots", "--verify", "--json")
    assert verified.exit == 0 and verified.json["identical"], verified.out
    assert verified.json["decisions"] > 10
