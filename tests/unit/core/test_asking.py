"""``why-not``: whatever is asked about a study, the answer names the measurement, the evidence or the price."""

from dataclasses import replace

import pytest

from optimizer.core import asking
from optimizer.core.state import fold
from optimizer.errors import UsageError
from optimizer.model.flags import Flag, FlagTable
from optimizer.model.space import Constraint, DeadSetting, Param, Space
from optimizer.report.asking_view import why_not_text
from optimizer.report.journal_view import why_document

from .model_box import PLAN, ModelBox
from .test_judging_and_pruning import CAPPED, HIDDEN, hidden, idea
from .test_state_machine import EAGER, run, speed

DEAD = DeadSetting(engine="sglang", params=("num_continuous_decode_steps",), kind="no_reader", why="No code reads it.", source="https://example.org/none")
GRAPHS = Space(id="test/graphs", engine="any",
               params=(Param(name="cuda_graph_max_bs", flag=("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"), type="int", grid=(8, 16, 32)),))  # fmt: skip
KNOWN = replace(PLAN, dead=(DEAD,), spaces=(*PLAN.spaces, GRAPHS))


def ask(log, plan, text):
    entries = log.read()
    state = fold(entries)
    found = asking.why_not(entries, state, plan, asking.parse(text, state, plan))
    return found, why_not_text(found)


@pytest.fixture(scope="module")
def met():
    return run(ModelBox(EAGER, speed), plan=KNOWN)[1]


def test_what_was_kept_says_so_with_its_interval(met):
    for text in ("disable_cuda_graph", "disable_cuda_graph=none", "--disable-cuda-graph"):
        found, said = ask(met, KNOWN, text)
        assert found["answer"] == "kept" and found["measured"][-1]["kept"], text
        interval = found["measured"][-1]["interval"]
        assert interval["low"] < interval["ratio"] < interval["high"] and interval["n_candidate"] == 1
        assert f"×{interval['ratio']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]" in said
        assert "entry" in said


def test_the_cause_behind_it_says_the_same(met):
    found, said = ask(met, KNOWN, "cuda-graph-disabled")
    assert found["kind"] == "cause" and found["answer"] == "kept" and said.startswith("cuda-graph-disabled was cured")
    assert found["evidence"][0]["for"] or found["evidence"][0]["against"]


def test_what_does_nothing_is_refused_with_its_source_though_nobody_proposed_it(met):
    for text in ("num_continuous_decode_steps", "--num-continuous-decode-steps", "--num-continuous-decode-steps=8", "num_continuous_decode_steps=8"):
        found, said = ask(met, KNOWN, text)
        assert found["answer"] == "refused" and found["rule"]["kind"] == "dead" and found["cost"] is None, text
        assert "No code reads it." in said and "https://example.org/none" in said


def test_what_the_server_would_make_of_a_value_is_said_before_it_is_launched(met):
    even = Constraint(id="T1", engine="sglang", effect="overridden", when={"setting": "cuda_graph_max_bs", "eq": 16},
                      sets={"cuda_graph_max_bs": 32}, why="It rounds up.", source="made up")  # fmt: skip
    plan = replace(KNOWN, constraints=(even,))
    found, said = ask(met, plan, "cuda_graph_max_bs=16")
    assert [(item["rule"], item["sets"]) for item in found["foreseen"]] == [("T1", {"cuda_graph_max_bs": 32})]
    assert "the server itself makes it cuda_graph_max_bs=32: It rounds up. (rule T1; made up)" in said
    for text in ("cuda_graph_max_bs=8", "cuda_graph_max_bs"):
        assert ask(met, plan, text)[0]["foreseen"] == []


def test_what_was_never_tested_has_a_price_in_this_studys_own_times(met):
    found, said = ask(met, KNOWN, "--cuda-graph-max-bs=32")
    cost = found["cost"]
    state = fold(met.read())
    assert found["answer"] == "never_tested" and found["asked"] == "cuda_graph_max_bs=32"
    # Every step of this box takes a minute: launch, start and measurement. Nothing else of the study is in it, and no confirmation.
    assert cost["minutes_per_launch"] == pytest.approx(3.0, abs=0.06) and state.minutes / 3 > 3.5
    assert cost["measured_launches"] == 2 and state.launches_baseline + state.launches_after == 3
    assert cost["minutes"] == pytest.approx(cost["launches"] * cost["minutes_per_launch"], rel=0.05)
    assert "was never tested" in said and f"about {cost['launches']:g} launches and {cost['minutes']:g} minutes here" in said


def test_a_larger_claim_is_cheaper_to_test(met):
    big, _ = ask(met, replace(KNOWN, playbooks=(*KNOWN.playbooks, idea("big", {"cuda_graph_max_bs": 32}, (2.0, 4.0), prior_db=-10.0))), "cuda_graph_max_bs")
    small, _ = ask(met, replace(KNOWN, playbooks=(*KNOWN.playbooks, idea("small", {"cuda_graph_max_bs": 32}, (1.05, 1.07), prior_db=-10.0))), "cuda_graph_max_bs")
    assert big["cost"]["launches"] == 1.0 < small["cost"]["launches"]


def test_what_evidence_ruled_out_names_the_fact(met):
    found, said = ask(met, KNOWN, "admission-cap-too-low")
    assert found["answer"] == "ruled_out" and not found["measured"]
    assert any(hit["fact"] == "queue.depth_p95" and hit["db"] < 0 for hit in found["evidence"][0]["against"])
    assert "queue.depth_p95 = 0" in said and "never tested" in said and "The test would cost" in said
    same, _ = ask(met, KNOWN, "max_running_requests")  # the setting that would cure it
    assert same["answer"] == "ruled_out" and same["evidence"][0]["id"] == "admission-cap-too-low"


def test_what_is_in_force_says_its_value():
    _, log = run(ModelBox({**EAGER, "max_running_requests": 64}, speed), plan=KNOWN)
    found, said = ask(log, KNOWN, "max_running_requests=64")
    assert found["answer"] == "in_force" and "is in force already. Now: 64" in said


def test_a_verdict_of_an_older_baseline_is_said_to_be_stale_and_the_newer_one_counts():
    _, log = run(ModelBox(CAPPED, hidden, noise=0.005), plan=HIDDEN, target="600tps@16")
    found, said = ask(log, HIDDEN, "graphs")
    assert [item["kept"] for item in found["measured"]] == [False, True]
    assert found["measured"][0]["stale"] is not None and found["measured"][1]["stale"] is None
    assert found["answer"] == "kept" and "stale since entry" in said


def test_a_setting_that_lost_is_ruled_out_or_unshown_with_numbers():
    _, log = run(ModelBox(CAPPED, lambda values: 100.0, noise=0.005), plan=HIDDEN, target="600tps@16", best_effort=True)
    found, said = ask(log, HIDDEN, "disable_cuda_graph")
    assert found["answer"] in ("ruled_out", "not_shown") and found["measured"][-1]["interval"]["high"] < 1.5
    assert "excluded" in said


def test_a_hand_over_is_no_setting():
    _, log = run(ModelBox({}, lambda values: 100.0, kernel=True))
    found, said = ask(log, PLAN, "arch-fallback-kernel")
    assert found["answer"] == "handed_over" and "is a cause that no setting cures" in said and "It needs another kernel." in said


def test_a_running_study_answers_at_every_entry():
    """The journal is asked while it grows: no prefix of it makes the answer fail, and what is being tested says so."""
    _, log = run(ModelBox({**EAGER, "max_running_requests": 4}, speed), plan=KNOWN)
    entries, answers = log.read(), set()
    for length in range(1, len(entries) + 1):
        state = fold(entries[:length])
        for text in ("disable_cuda_graph", "admission-cap-too-low", "num_continuous_decode_steps", "cuda_graph_max_bs=16"):
            found = asking.why_not(entries[:length], state, KNOWN, asking.parse(text, state, KNOWN))
            assert why_not_text(found)
            answers.add(found["answer"])
    assert {"being_tested", "kept", "refused", "never_tested"} <= answers


def test_names_are_understood_as_people_write_them(met):
    state = fold(met.read())
    asked = {
        "--cuda-graph-max-bs 16": ("cuda_graph_max_bs", 16), "--cuda-graph-max-bs-decode=16": ("cuda_graph_max_bs", 16), "NCCL_PROTO=LL": ("env.NCCL_PROTO", "LL"),
        "env.NCCL_PROTO=LL": ("env.NCCL_PROTO", "LL"), "mem_fraction_static=0.9": ("mem_fraction_static", 0.9), "disable_cuda_graph=true": ("disable_cuda_graph", True),
    }  # fmt: skip
    for text, (name, value) in asked.items():
        question = asking.parse(text, state, KNOWN)
        assert (question.name, question.value, question.valued) == (name, value, True), text


@pytest.mark.parametrize("text", ["cuda_graph_maxbs", "--nonsense-flag", "no such thing", "=5", ""])
def test_what_nobody_knows_is_an_error_with_a_hint(met, text):
    with pytest.raises(UsageError) as caught:
        asking.parse(text, fold(met.read()), KNOWN)
    assert caught.value.hint
    if text == "cuda_graph_maxbs":
        assert "cuda_graph_max_bs" in caught.value.hint


def test_a_flag_of_this_build_is_known_without_any_playbook(met):
    state = replace(fold(met.read()), flags=FlagTable(flags=(Flag(name="--some-new-flag"),), known=True))
    assert asking.parse("--some-new-flag=3", state, KNOWN).name == "some_new_flag"


def test_why_leads_from_a_promotion_to_the_measurement_and_the_facts(met):
    entries = met.read()
    promoted = next(entry.seq for entry in entries if entry.kind == "promoted")
    found = why_document("s", entries, promoted)
    kinds = [item["kind"] for item in found["chain"]]
    assert kinds[:4] == ["promoted", "judged", "chosen", "ranked"] and kinds[-1] in ("opened", "outcome", "intent", "note")
    judged = found["chain"][1]
    assert judged["interval"]["verdict"] == "supported" and judged["interval"]["low"] > 1
    assert found["chain"][0]["interval"] == judged["interval"] and found["chain"][2]["interval"] is None  # a choice comes before any
    assert any("graphs.disable_flag = True" in line for item in found["chain"] for line in item["support"])
    assert all(later["seq"] < earlier["seq"] for earlier, later in zip(found["chain"], found["chain"][1:], strict=False))
    with pytest.raises(UsageError):
        why_document("s", entries, 10_000)


def test_every_entry_has_a_why(met):
    for entry in met.read():
        assert why_document("s", met.read(), entry.seq)["chain"][0]["seq"] == entry.seq
