"""The studies of real H200s under runs/recorded: today's code decides in each as it did there, and tells how it ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from optimizer.cli import main
from optimizer.core.closing import what_runs
from optimizer.core.state import State, fold
from optimizer.journal import Journal
from optimizer.wiring import Roots
from optimizer.wiring.asking import why, why_not
from optimizer.wiring.replaying import replay_study

RECORDED = Path(__file__).parents[3] / "runs" / "recorded"
ROOTS = Roots(runs=RECORDED, knowledge=RECORDED.parents[1])
GRAPHS: dict[str, object] = {"disable_cuda_graph": None, "disable_decode_cuda_graph": None}
DRAFTS_OFF: dict[str, object] = dict.fromkeys(
    ("speculative_algorithm", "speculative_draft_model_path", "speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_num_steps")
)
# study -> what it kept
KEPT: dict[str, list[dict[str, object]]] = {
    "h200-7b-eager": [{**GRAPHS, "max_running_requests": 16}],
    "h200-7b-killed": [{"max_running_requests": 16}, GRAPHS],
    "h200-7b-mtp": [],
    "h200-7b-mtp-low": [DRAFTS_OFF],
    "h200-7b-oom": [{"cuda_graph_max_bs": 32}],
    "h200-7b-placebo": [],
    "h200-7b-search-evidence": [{**GRAPHS, "max_running_requests": 16}],
    "h200x2-27b-allreduce": [{"disable_custom_all_reduce": None, "env.NCCL_P2P_DISABLE": None}],
    "h200x2-27b-unresolved": [],
}
NOT_MET = {"h200x2-27b-unresolved"}  # its cure was measured once and not resolved


def state_of(study: str) -> State:
    with Journal.open(ROOTS.named(study), write=False) as journal:
        return fold(journal.read())


def test_every_recorded_study_is_known_here() -> None:
    assert sorted(folder.parent.name for folder in RECORDED.glob("*/journal.db")) == sorted(KEPT)


@pytest.mark.parametrize("study", sorted(KEPT))
def test_it_is_decided_again_as_recorded(study: str) -> None:
    """A change of a decision needs a new policy version, so that journals of the old one are recomputed as they were."""
    verified = replay_study(study, ROOTS, verify=True, until=None)
    assert verified["identical"], verified["text"]
    driven = replay_study(study, ROOTS, verify=False, until=None)
    assert (driven["ending"], driven["promoted"], driven["launches"]) == ("not_met" if study in NOT_MET else "met", KEPT[study], state_of(study).launches_after)


def test_what_the_documents_say_of_them() -> None:
    """A server that was asked back is not said to run for want of a better one; what does not fit is refused, then ruled out; dead
    settings cost no launch; the kill is bridged by the launch that was under way."""
    assert what_runs(state_of("h200-7b-eager")) == "The original server runs on localhost."
    oom, placebo, killed = state_of("h200-7b-oom"), state_of("h200-7b-placebo"), state_of("h200-7b-killed")
    too_large = [item for item in oom.refusals if item.get("hypothesis") == "operator-wants-graphs-for-4096"]
    assert [item["kind"] for item in too_large] == ["infeasible"] and "outside the pool" in too_large[0]["why"]
    crashed = [arm.crashed for arm in oom.arms.values() if arm.crashed]
    assert len(crashed) == 1 and crashed[0].startswith("oom_capture")
    dead = {name for item in placebo.refusals for name in item["params"] if item.get("about") == "command_line"}
    assert {"num_continuous_decode_steps", "env.NCCL_PROTO", "env.NCCL_ALGO", "env.NCCL_MIN_NCHANNELS", "env.NCCL_NTHREADS"} <= dead
    assert (placebo.launches_baseline, placebo.launches_after) == (0, 0)
    # The same final settings as without the kill, although one launch more.
    assert killed.baseline == state_of("h200-7b-eager").baseline


@pytest.mark.parametrize(("study", "verdicts"), [("h200x2-27b-allreduce", ["supported"]), ("h200x2-27b-unresolved", ["unresolved", "unresolved"])])
def test_the_transport_is_read_from_the_log_of_nccl_and_its_protocol_costs_no_launch(study: str, verdicts: list[str]) -> None:
    """Two GPUs: the cause is named from what NCCL wrote and one launch turns it. Long answers in a steady window show what that
    gains; short ones, which prompts interrupt, do not, and it stays unresolved."""
    with Journal.open(ROOTS.named(study), write=False) as journal:
        entries = journal.read()
    first = next(entry.body for entry in entries if entry.kind == "ranked")["hypotheses"][0]
    read = {(item["fact"], item["source"], item["value"]) for item in first["for"]}
    assert (first["id"], round(first["probability"], 2)) == ("nccl-p2p-disabled", 0.99)
    assert ("nccl.transport", "server.log", "shm") in read
    turned = {flip["fact"]: (flip["before"], flip["after"]) for entry in entries if entry.kind == "flipped" for flip in entry.body["flips"]}
    assert (turned["nccl.transport"], turned["allreduce.custom"]) == (("shm", "p2p"), ("off_flag", "on"))
    assert [entry.body["judgement"]["verdict"] for entry in entries if entry.kind == "judged"] == verdicts
    for setting in ("env.NCCL_PROTO=LL", "env.NCCL_MIN_NCHANNELS=8"):
        answer = why_not(study, setting, ROOTS)
        causes = {row["id"]: row["probability"] for row in answer["evidence"]}
        assert answer["measured"] == [] and "ruled out by evidence alone" in answer["text"] and causes["nccl-proto-channel-mistuned"] < 0.01, setting


def test_drafts_that_cost_throughput_are_switched_off_and_the_single_request_is_said() -> None:
    state = state_of("h200-7b-mtp-low")
    with Journal.open(ROOTS.named("h200-7b-mtp-low"), write=False) as journal:
        judged = next(entry.body for entry in journal.read() if entry.kind == "judged")
    by_load = {item["concurrency"]: item["ratio"] for item in judged["side"]}
    assert judged["hypothesis"] == "spec-high-concurrency-loss" and by_load[32] > 1.4 and 0.9 < by_load[1] < 1.0
    assert (state.launches_baseline, state.launches_after) == (0, 2)


def test_what_cost_a_launch_is_not_said_to_have_cost_none() -> None:
    """Also after the baseline has changed, when the result no longer holds."""
    causes = {row["id"]: row for row in why_not("h200-7b-oom", "cuda_graph_max_bs=1024", ROOTS)["evidence"]}
    launched, refused = (causes[f"operator-wants-graphs-for-{largest}"] for largest in (1024, 4096))
    assert (launched["status"], launched["why_untested"]) == ("stale", "")
    assert refused["why_untested"].startswith("refused at entry 20: mem_fraction_static 0.9 -> 0.989 leaves")


@pytest.mark.parametrize("study", sorted(KEPT.keys() - {"h200-7b-search-evidence"}))  # which is of the form of eager's
def test_it_is_reported_in_every_form(study: str, tmp_path: Path) -> None:
    """Also where settings of the command line were refused, which belong to no cause."""
    for form in ("html", "md", "json", "csv"):
        done = CliRunner().invoke(main, ["--runs", str(RECORDED), "report", study, "--format", form, "--output", str(tmp_path / form)])
        assert done.exit_code == 0, done.output
        assert (tmp_path / form).stat().st_size > 200
    if study == "h200-7b-placebo":
        assert "num_continuous_decode_steps: No code reads it" in (tmp_path / "html").read_text(encoding="utf-8")


def test_a_name_that_was_never_on_the_command_line_is_not_said_to_have_been_taken_off_or_back() -> None:
    for study in ("h200-7b-eager", "h200-7b-killed"):
        answer = why(study, "disable_decode_cuda_graph", ROOTS)
        assert answer["answer"] == "absent" and "never was on it" in answer["text"] and "taken" not in answer["text"]
        assert "disable_cuda_graph" in answer["text"]
        assert why(study, "disable_cuda_graph", ROOTS)["answer"] == "changed"
