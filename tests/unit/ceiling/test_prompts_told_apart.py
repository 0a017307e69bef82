"""Prompts that stop decode, told apart from decode (policy version 6), held against every recorded study of a real H200: what is expected
before a measurement, what one level says of another, and where drafts stop paying."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from recorded import RUNS, gpu

from optimizer.ceiling.pace import time_per_token
from optimizer.ceiling.predict import computed_ratio, inputs_of
from optimizer.ceiling.prefill import EFFICIENCY, PASS_US_PER_KERNEL, interruption, prefill_roof_ms
from optimizer.ceiling.waterfall import bucket_share
from optimizer.core.picture import baseline_inputs, ceiling_body
from optimizer.core.plan import Plan
from optimizer.core.since import PROMPTS_TOLD_APART
from optimizer.core.state import State, fold
from optimizer.journal import Journal
from optimizer.model.ceiling import Waterfall
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.measurement import LoadPoint
from optimizer.report.prose import _ceiling, _outcome
from optimizer.wiring import plans_by_entry

RECORDED = Path(__file__).parents[3] / "runs/recorded"
H200 = gpu("NVIDIA H200")
SHAPE = RUNS["tp1-7b-graph32"].shape


@cache
def at_ceiling(study: str, version: int, which: int) -> tuple[State, Plan]:
    """The study as it stood when its ceiling was told for the ``which``-th time, decided by the policy of ``version``."""
    with Journal.open(RECORDED / study / "journal.db", write=False) as journal:
        entries = journal.read()
        plan_at = plans_by_entry(journal, entries)
    seq = [entry.seq for entry in entries if entry.kind == "ceiling"][which]
    spec = {**entries[0].body["spec"], "policy_version": version}
    opened = entries[0].model_copy(update={"body": {**entries[0].body, "spec": spec}})
    return fold([opened, *entries[1 : seq - 1]]), plan_at(seq)


def told(study: str, version: int, which: int) -> dict[str, Any]:
    return ceiling_body(*at_ceiling(study, version, which))


def rate(study: str, which: int) -> float:
    return float(told(study, PROMPTS_TOLD_APART, which)["measured_tokens_per_s"])


@pytest.mark.parametrize(
    ("study", "healthy", "before", "error", "error_before"),
    [
        ("h200-7b-eager", (1, 2), 0, 0.02, 0.17),
        ("h200-7b-killed", (2, 3), 0, 0.09, 0.25),
        ("h200-7b-search-evidence", (1, 2), 0, 0.09, 0.41),
        ("h200-7b-mtp-low", (1, 2), 0, 0.17, 0.50),
    ],
)
def test_expected_before_a_healthy_launch(study: str, healthy: tuple[int, ...], before: int, error: float, error_before: float) -> None:
    """What the baseline's ceiling expects of a healthy launch, against those that came; the last on a host whose prompts take longer."""
    expected = told(study, PROMPTS_TOLD_APART, before)["expected_tokens_per_s"]
    without = told(study, PROMPTS_TOLD_APART - 1, before)["expected_tokens_per_s"]
    errors = [abs(expected / rate(study, which) - 1) for which in healthy]
    errors_before = [abs(without / rate(study, which) - 1) for which in healthy]
    assert max(errors) < error and max(errors) < max(errors_before) / 2
    assert max(errors_before) == pytest.approx(error_before, abs=0.02)


@pytest.mark.parametrize(("study", "which"), [("h200-7b-eager", 1), ("h200-7b-eager", 2), ("h200-7b-mtp-low", 1), ("h200-7b-mtp-low", 2)])
def test_the_efficiency_of_one_level_holds_at_another(study: str, which: int) -> None:
    """η of decode at 16 and 32 expects of a single request what it did; with prompts in it, a sixth to a third too little."""
    (side,) = told(study, PROMPTS_TOLD_APART, which)["side"]
    (older,) = told(study, PROMPTS_TOLD_APART - 1, which)["side"]
    assert side["expected_tokens_per_s"] == pytest.approx(side["measured_tokens_per_s"], rel=0.09)
    assert older["expected_tokens_per_s"] < 0.85 * older["measured_tokens_per_s"]


@pytest.mark.parametrize(
    ("study", "which"), [("h200-7b-eager", 1), ("h200-7b-killed", 2), ("h200-7b-oom", 1), ("h200-7b-placebo", 0), ("h200-7b-mtp-low", 1)]
)
def test_efficiency_is_that_of_decode_and_prompts_are_named(study: str, which: int) -> None:
    found = told(study, PROMPTS_TOLD_APART, which)
    assert 0.55 < found["efficiency"] < 0.62
    shares = {part["bucket"]: (part["share"], part["basis"]) for part in found["lost"]}
    assert shares["prefill"][0] > 0.1 and shares["prefill"][1] == "measured" and shares["kernel"][0] < 0.42
    assert found["expected_tokens_per_s"] == pytest.approx(found["measured_tokens_per_s"], rel=0.04)
    assert found["reachable_tokens_per_s"] < 1.05 * found["measured_tokens_per_s"]  # no setting is known that spares a prompt its pass
    assert any(note.startswith("Each prompt stops decode for") and "(measured)" in note for note in found["notes"])


@pytest.mark.parametrize(("study", "which", "gains"), [("h200-7b-killed", 1, (2.90,)), ("h200-7b-oom", 0, (3.29, 3.37))])
def test_what_graphs_then_gave_is_predicted(study: str, which: int, gains: tuple[float, ...]) -> None:
    inputs = baseline_inputs(*at_ceiling(study, PROMPTS_TOLD_APART, which))
    assert inputs is not None
    low, high = computed_ratio("graphs_on", inputs) or (0.0, 0.0)
    assert all(low < gain < high for gain in gains) and (low * high) ** 0.5 == pytest.approx(max(gains), rel=0.06) and high / low < 2
    assert isinstance(inputs.waterfall, Waterfall)
    share = bucket_share(inputs.waterfall, "eager")  # an estimate of prompts takes nothing away from what graphs may win
    assert share is not None and 1 / (1 - share) > max(gains) and share > inputs.waterfall.share("eager")


def test_where_drafts_stop_paying() -> None:
    """Measured: at an acceptance of 2.8 three drafts pay at 1, 16, 32 and 64; at 1.5 at none of 1 to 32."""
    pays, older = (told("h200-7b-mtp", version, 0) for version in (PROMPTS_TOLD_APART, PROMPTS_TOLD_APART - 1))
    assert older["break_even_concurrency"] == pytest.approx(37.2, abs=0.1) and "drafts_measured_to" not in older
    assert 50 < pays["break_even_concurrency"] < 80 and pays["drafts_measured_to"] == 32
    assert "stop paying at about 59 concurrent requests, which is beyond the 32 that were measured," in _ceiling(pays)
    assert "beyond" not in _ceiling(older)
    for version in (PROMPTS_TOLD_APART, PROMPTS_TOLD_APART - 1):
        assert told("h200-7b-mtp-low", version, 0)["break_even_concurrency"] == 0
    low, high = computed_ratio("drafts_off", baseline_inputs(*at_ceiling("h200-7b-mtp-low", PROMPTS_TOLD_APART, 0))) or (0.0, 0.0)  # type: ignore[arg-type]
    assert low < 1.50 < 1.56 < high


def evidence(**facts: Any) -> Evidence:
    names = {name.replace("__", "."): value for name, value in facts.items()}
    return Evidence(facts=tuple(Fact(name=name, value=value, source="server.log", basis="log") for name, value in names.items()))


def point(**metrics: float) -> LoadPoint:
    return LoadPoint(concurrency=16, requests_ok=64, requests_failed=0, prompt_tokens=64 * 128, output_tokens=64 * 256, window_s=16.0,
                     metrics={"output_tokens_per_s": 2600.0, **metrics})  # fmt: skip


def test_how_long_a_prompt_stops_decode() -> None:
    situation = RUNS["tp1-7b-graph32"].situation(16).model_copy(update={"prompt_tokens": 128.0, "output_tokens": 256.0})
    outside, inside = evidence(prefill__graph_used_share=0.0), evidence(prefill__graph_used_share=1.0)
    timed = {"itl_p50_ms": 5.1, "tpot_p50_ms": 6.1, "ttft_p50_ms": 25.0}
    assert interruption(SHAPE, H200, situation, outside, timed) == (pytest.approx(1.0 * 256 / 15), True)
    launched = 36 * 12 * PASS_US_PER_KERNEL / 1e3
    computed = prefill_roof_ms(SHAPE, H200, situation) / EFFICIENCY
    assert computed < 5 < launched
    for gaps in ({}, {"itl_p50_ms": 6.2}, {"itl_p50_ms": 0.1}):  # none, several tokens a chunk, tokens in bunches
        assert interruption(SHAPE, H200, situation, outside, {"tpot_p50_ms": 6.1, "ttft_p50_ms": 25.0, **gaps}) == (pytest.approx(launched), False)
    assert interruption(SHAPE, H200, situation, inside, {"ttft_p50_ms": 25.0}) == (pytest.approx(computed), False)
    assert interruption(SHAPE, H200, situation, evidence(graphs__prefill_captured=False), {}) == (pytest.approx(launched), False)
    assert interruption(SHAPE, H200, situation, Evidence(), {}) == (pytest.approx(computed), False)
    # A first token holds a prompt: none takes longer than that, and gaps that say so are not believed.
    assert interruption(SHAPE, H200, situation, outside, {**timed, "ttft_p50_ms": 12.0}) == (12.0, False)
    for unlike in ({"running": 4.0}, {"draft_tokens": 3}, {"graph_off_share": 1.0}):  # a queue; drafts; a host that launches every step
        assert interruption(SHAPE, H200, situation.model_copy(update=unlike), outside, timed)[1] is False


def test_text_that_is_held_back_is_timed_by_its_answers() -> None:
    """Drafts whose text comes in two pieces: no time per token, but answers of 256 tokens in 1,614 ms."""
    situation = RUNS["tp1-7b-graph32"].situation(16).model_copy(
        update={"output_tokens": 256.0, "draft_tokens": 3, "accept_len": 2.8, "interruption_ms": 16.0}
    )  # fmt: skip
    answers = point(e2e_p50_ms=1614.0)
    assert time_per_token(SHAPE, H200, situation, answers) == pytest.approx((1614 - 16 * 16) / 256)
    assert time_per_token(SHAPE, H200, situation, point(tpot_p50_ms=6.0)) == pytest.approx(6.0 - 15 * 16 / 256)
    assert time_per_token(SHAPE, H200, situation.model_copy(update={"running": 4.0}), answers) is None  # answers that wait say nothing
    assert time_per_token(SHAPE, H200, situation.model_copy(update={"interruption_ms": None}), answers) is None
    roof = time_per_token(SHAPE, H200, situation.model_copy(update={"interruption_ms": 1e3}), point(tpot_p50_ms=6.0))
    assert roof is not None and 1.0 < roof < 2.0  # never faster than the roofline of a round


def test_a_load_that_is_not_said_to_be_steady_stays_as_it_was() -> None:
    timed = point(itl_p50_ms=5.1, tpot_p50_ms=6.1, ttft_p50_ms=25.0)
    found = [
        inputs_of(Evidence(), SHAPE, H200, timed, prompt_tokens=128, output_tokens=256, interrupted=interrupted) for interrupted in (False, True)
    ]
    assert found[0].situation.interruption_ms is None and found[0].per_token_ms == 6.1 and found[0].prompts_share == 0
    assert found[1].situation.interruption_ms is not None and 0 < found[1].prompts_share < 0.3


def test_a_side_level_that_is_not_valid_is_said_to_be() -> None:
    with Journal.open(RECORDED / "h200-7b-mtp-low" / "journal.db", write=False) as journal:
        first, later = (entry.body for entry in journal.read() if entry.kind == "outcome" and entry.seq in (9, 23))
    assert "213.3 tok/s at c=1, TTFT p50 51.53 ms (not valid: 10 chunks in 6 s, needed 25)" in _outcome(first)
    assert "not valid" not in _outcome(later)


@pytest.mark.parametrize(("study", "which", "gain"), [("h200-7b-placebo", 0, 1.19), ("h200-7b-oom", 1, 1.21)])
def test_drafts_make_decode_faster_and_not_prompts(study: str, which: int, gain: float) -> None:
    """Measured beside ``h200-7b-mtp`` at 16 and 32, at an acceptance of 2.8."""
    (low, high), older = (computed_ratio("drafts_on", baseline_inputs(*at_ceiling(study, version, which))) or (0.0, 0.0)  # type: ignore[arg-type]
                          for version in (PROMPTS_TOLD_APART, PROMPTS_TOLD_APART - 1))  # fmt: skip
    assert low < gain < high < 0.9 * older[1]


def test_what_was_not_measured_brings_no_target_out_of_reach() -> None:
    """Where NCCL's tokens came in bunches, what prompts stop is an estimate: it lowers what drafts may bring, never the most that they may."""
    estimated, older = (computed_ratio("drafts_on", baseline_inputs(*at_ceiling("h200x2-27b-unresolved", version, 0))) or (0.0, 0.0)  # type: ignore[arg-type]
                        for version in (PROMPTS_TOLD_APART, PROMPTS_TOLD_APART - 1))  # fmt: skip
    assert estimated[0] < older[0] and estimated[1] == pytest.approx(older[1], rel=0.05)
