"""A vLLM that needs nothing: studies end with it as it was, after they have refuted what was suspected. Both tune one and the same
server."""

from __future__ import annotations

import shutil

import pytest

from .conftest import REPOSITORY, Engines, Launch, Servers, Tool, answers, argv_of, owners

pytestmark = [pytest.mark.engines, pytest.mark.measures, pytest.mark.timeout(1300)]


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Launch:
    return engines.vllm()


def test_a_healthy_server_keeps_its_settings_and_useless_drafts_are_ruled_out(plain: Launch, tool: Tool, user_server: Servers) -> None:
    launch = user_server.again(plain)
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


def test_a_study_makes_the_test_before_it_gives_up(plain: Launch, tool: Tool, user_server: Servers) -> None:
    """A suspicion that the client is the limit is worth half a minute with a second one; here it is refuted on the spot."""
    knowledge = tool.home / "knowledge"
    for name in ("playbooks", "search_spaces"):
        shutil.copytree(REPOSITORY / name, knowledge / name)
    book = knowledge / "playbooks/any/client-bound-benchmark.yaml"
    text = book.read_text(encoding="utf-8")
    assert "prior_db" not in text
    book.write_text(text.replace("family: client\n", "family: client\nprior_db: -4\n"), encoding="utf-8")
    tool.knowledge = knowledge
    launch = user_server.again(plain)
    before = owners(launch.port)
    done = tool.run("asked", "3000tps@16", "--port", str(launch.port), "--launches", "3", "--prior", "none", "--best-effort", side_window_s=10)
    assert done.exit == 3, done.err
    entries = tool.entries("asked")
    made = [entry["body"]["step"] for entry in entries if entry["kind"] == "intent" and entry["body"]["step"]["kind"] == "check"]
    assert "second_client" in [step["test"] for step in made]
    first = next(step for step in made if step["test"] == "second_client")
    assert first["launch"] == "original" and first["minutes"] < first["saves_minutes"]
    ranked = [entry["body"]["hypotheses"] for entry in entries if entry["kind"] == "ranked"]
    suspicion = [next((row["probability"] for row in rows if row["id"] == "client-bound-benchmark"), 0.0) for rows in ranked]
    assert suspicion[0] > 0.1 and suspicion[-1] < suspicion[0] / 3, "the second client got no more out of it"
    answer = tool("why-not", "asked", "client-bound-benchmark", "--json").json
    assert answer["checks"][0]["test"] == "second_client" and "Two generators" in answer["text"]
    assert tool("replay", "asked", "--verify", "--json").json["identical"]
    assert owners(launch.port) and (owners(launch.port) == before or done.json["launches"] + done.json["launches_baseline"] > 1)
