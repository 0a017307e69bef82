"""A study is asked while it runs and after it ended, as a person would; a second one learns from the first that lies beside it."""

from __future__ import annotations

import json

import pytest

from .fastbox import FastBox, entries, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KEPT = {"disable_cuda_graph": None}


def test_a_running_and_a_closed_study_answer_and_the_next_one_knows_its_result(box: FastBox) -> None:
    running = box.start(*box.study("first", "--finish", "restore"))
    wait_until(lambda: "Measuring" in box.told(running), 90, "the first study measures")
    early = box("why-not", "first", "num_continuous_decode_steps", "--json")
    assert early.exit == 0, early.err
    assert early.json["answer"] == "refused" and early.json["rule"]["kind"] == "dead" and early.json["closed"] is False
    assert box("why", "first", "1", "--json").json["chain"][0]["kind"] == "opened"
    done = box.finish(running, 120)
    assert done.exit == 0, done.err

    kept = box("why-not", "first", "--disable-cuda-graph", "--json").json
    interval = kept["measured"][-1]["interval"]
    assert kept["answer"] == "kept" and interval["low"] > 1 and interval["n_candidate"] >= 1
    said = box("why-not", "first", "disable_cuda_graph")
    assert said.exit == 0 and f"×{interval['ratio']:.3f}" in said.out and "was kept" in said.out
    untested = box("why-not", "first", "NCCL_PROTO=LL", "--json").json
    assert untested["answer"] in ("refused", "ruled_out", "never_tested") and untested["asked"] == 'env.NCCL_PROTO="LL"'
    price = box("why-not", "first", "--max-prefill-tokens=4096", "--json").json
    assert price["answer"] == "never_tested" and price["cost"]["launches"] >= 1 and price["cost"]["minutes"] > 0
    promoted = next(entry.seq for entry in entries(box.runs / "first") if entry.kind == "promoted")
    chain = box("why", "first", str(promoted), "--json").json["chain"]
    assert [link["kind"] for link in chain[:4]] == ["promoted", "judged", "chosen", "ranked"]
    wrong = box("why-not", "first", "disable_cuda_grpah", "--json")
    assert wrong.exit == 2 and "disable_cuda_graph" in wrong.json["error"]["hint"]
    assert box("why", "first", "99999").exit == 2

    second = box(*box.study("second", "--finish", "restore"))
    assert second.exit == 0, second.err
    opened = entries(box.runs / "second")[0].body["spec"]["prior_art"]
    assert [item["name"] for item in opened] == ["first"] and opened[0]["after"] > opened[0]["before"]
    ranked = next(entry.body for entry in entries(box.runs / "second") if entry.kind == "ranked")
    row = next(row for row in ranked["hypotheses"] if row["id"] == "prior-art")
    assert row["testable"] and row["probability"] > 0.9 and row["ratio"][1] == pytest.approx(opened[0]["after"] / opened[0]["before"], rel=0.15)
    chosen = next(entry.body for entry in entries(box.runs / "second") if entry.kind == "chosen")
    assert KEPT.items() <= chosen["changes"].items()
    named = [chosen["hypothesis"], *(item["hypothesis"] for item in chosen.get("cures", []))]
    assert "cuda-graph-disabled" in named, "the cause has its name, whichever of the two is worth more"
    asked = box("why-not", "second", "prior-art", "--json").json
    assert asked["answer"] in ("kept", "refused", "never_tested", "in_force") and "Study first" in asked["text"]
    assert box("replay", "second", "--verify", "--json").json["identical"]
    # The journal carries what it knew: the first study may go.
    for path in (box.runs / "first").iterdir():
        if path.is_file():
            path.unlink()
    assert box("replay", "second", "--verify", "--json").json["identical"]
    box.assert_clean()


def test_prior_art_by_file_is_read_strictly_and_may_be_refused(box: FastBox) -> None:
    described = box.here / "known.yaml"
    described.write_text(
        "prior_art: bench-of-a-friend\nbox_class: {engine: sglang, count: 1, gpu: NVIDIA H200}\nmodel: dense-7b-mtp\n"
        "settings: {disable_cuda_graph: null, cuda_graph_max_bs: 32}\nresults: [{concurrency: 8, before: 100, after: 200}]\nsource: https://example.org\n"
    )
    planned = box("plan", *box.study("x")[1:], "--prior", str(described))
    assert planned.exit == 0, planned.err
    (item,) = planned.json["prior_art"]
    assert item["name"] == "bench-of-a-friend" and isinstance(item["used"], bool)
    described.write_text(described.read_text().replace("count: 1", "count: many"))
    bad = box("plan", *box.study("x")[1:], "--prior", str(described))
    assert bad.exit == 2 and "known.yaml:2" in bad.err + bad.out
    assert json.loads(bad.out)["error"]["kind"] == "KnowledgeError"
    none = box("plan", *box.study("x")[1:], "--prior", "none")
    assert none.exit == 0 and none.json["prior_art"] == []
