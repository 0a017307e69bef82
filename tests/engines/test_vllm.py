"""vLLM tuned for real: what was found running is diagnosed, stopped, relaunched, measured and left better or as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Engines, Launch, Tool, answers, argv_of, owners, rate_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1300)]

Serve = Callable[[Launch], Launch]


def test_a_running_server_with_one_slot_is_tuned_and_replaced_by_the_best(engines: Engines, tool: Tool, serve: Serve) -> None:
    launch = serve(engines.vllm("--max-num-seqs", "1"))
    before = owners(launch.port)

    found = tool("diagnose", "--host", "localhost", "--port", str(launch.port), "--json")
    assert found.exit == 0, found.err
    assert owners(launch.port) == before
    planned = tool("plan", "--host", "localhost", "--port", str(launch.port), "--json")
    assert planned.exit == 0, planned.err
    assert planned.json["engine"] == "vllm" and planned.json["running_server"] is True
    assert planned.json["given"]["max_num_seqs"] == 1 and planned.json["unknown_flags"] == []
    assert planned.json["would_restore"] == list(launch.argv)
    assert owners(launch.port) == before and tool.marked() == {}

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


def test_ngram_drafts_pay_on_a_model_that_repeats_itself(engines: Engines, tool: Tool) -> None:
    launch = engines.vllm(model="model-cycle")
    # Four in flight: the processor has room for the drafts' tokens there, and gains 2.6 times instead of 1.9 times at 16.
    done = tool.run("cycle", "3000tps@4", "--launch", str(launch.file(tool.home)), "--finish", "restore", "--launches", "9",
                    output_tokens=128)  # fmt: skip
    result = done.json
    assert done.exit == 3, done.err
    causes = {row["id"]: row for row in result["hypotheses"]}
    assert causes["ngram-speculation-off"]["status"] == "supported", done.err
    assert {"speculative_config.method": "ngram"}.items() <= result["promoted"][0].items()
    assert result["best"]["value"] > 1.3 * result["baseline"]["value"]
    assert tool.left("cycle") == {} and not owners(launch.port)
    assert tool("replay", "cycle", "--verify", "--json").json["identical"]


def test_a_healthy_server_keeps_its_settings_and_useless_drafts_are_ruled_out(engines: Engines, tool: Tool, serve: Serve) -> None:
    launch = serve(engines.vllm())
    before = owners(launch.port)
    done = tool.run("healthy", "3000tps@16", "--port", str(launch.port), "--launches", "9")
    result = done.json
    assert done.exit == 3, done.err
    assert result["ending"] in ("nothing_to_tune", "not_met")
    assert result["promoted"] == [], done.err
    causes = {row["id"]: row for row in result["hypotheses"]}
    assert causes.get("ngram-speculation-off", {"status": "pruned"})["status"] in ("pruned", "open")
    assert result["best"]["settings"] == {}
    # The original runs again, exactly as it was.
    assert answers(launch)
    now = owners(launch.port)
    assert now and [argv_of(pid) for pid in now] == [list(launch.argv)] * len(now)
    assert tool.left("healthy", launched=result["launches"] > 0) == {}
    assert before != now or result["launches"] == 0
    assert tool("replay", "healthy", "--verify", "--json").json["identical"]
