"""Goodput as the target of a study: parsed, measured, judged and ended by, also where no request of the server as found keeps the SLO."""

import math
import random
from typing import Any

import pytest

from optimizer.core import closing, goodput, verdicts
from optimizer.core.state import fold
from optimizer.errors import UsageError
from optimizer.model.entry import EntryKind
from optimizer.model.measurement import LoadPoint, Measurement
from optimizer.model.outcome import Done
from optimizer.model.target import parse_target
from optimizer.model.workload import Workload
from optimizer.report.prose import result_text, sentence
from optimizer.runner.hosts import fitted
from optimizer.runner.recorded import verify

from .model_box import PLAN, ModelBox, spec
from .test_state_machine import EAGER, run

LIMIT_MS = 30.0
LOAD = Workload(concurrency=16, side_levels=(), slo=f"tpot<{LIMIT_MS:g}ms")


def study(target: str) -> Any:
    return spec(target, workload=LOAD)


class ServingBox(ModelBox):
    """Requests of 256 tokens in a closed loop of 16. Their times per token scatter by 15 % around what the settings give; an idle gain is
    ``speed``. ``window_s`` decides how many are counted."""

    window_s = 60.0

    def _measure(self, step: Any) -> Done:
        settings = self.running[step.launch]
        draw = random.Random(f"{self.seed}/{step.launch}")
        rate = self.speed(settings) * math.exp(draw.gauss(0, self.noise))
        count = max(1, round(rate / 256 * self.window_s))
        ratios = sorted(16 / rate * 1000 / LIMIT_MS * math.exp(draw.gauss(0, 0.15)) for _ in range(count))
        good = sum(ratio <= 1 for ratio in ratios)
        metrics = {
            "output_tokens_per_s": rate, "requests_per_s": count / self.window_s, "goodput_per_s": good / self.window_s, "good_share": good / count,
            goodput.MIDDLE: ratios[count // 2], "error_rate": 0.0,
        }  # fmt: skip
        point = LoadPoint(concurrency=16, requests_ok=count, requests_failed=0, prompt_tokens=512 * count, output_tokens=256 * count, window_s=self.window_s,
                          metrics=metrics, mean_output_tokens=256.0)  # fmt: skip
        return Done(body={"measurement": Measurement(points=(point,)).plain(), "evidence": self._facts(settings).plain(), "effective": dict(settings)})


def rate(values: Any) -> float:
    """40 ms a token without graphs (no request keeps 30 ms, or hardly one), 13 ms with them."""
    return 400.0 if values.get("disable_cuda_graph") else 1200.0


def test_a_server_of_which_no_request_keeps_the_slo_is_brought_to_its_target() -> None:
    box = ServingBox(EAGER, lambda values: rate(values) * (0.5 if values.get("disable_cuda_graph") else 1.0))
    state, log = run(box, study("4goodput"))
    closed = state.closed
    assert closed["ending"] == "met" and closed["launches"] == 2
    assert closed["baseline"]["metric"] == "goodput_per_s" and closed["baseline"]["value"] == 0
    assert closed["baseline"]["interval"][0] == 0 and closed["baseline"]["interval"][1] == pytest.approx(3 / 60)  # none of a minute: at most so many
    assert closed["best"]["value"] == pytest.approx(1200 / 256, rel=0.05)
    judged = next(entry for entry in log.read() if entry.kind == EntryKind.JUDGED)
    assert judged.body["judgement"]["ratio"] == pytest.approx(2 * 1200 / 256 / (200 / 256 / (80 / LIMIT_MS)), rel=0.1)  # by the median request, not by 0
    assert "where fewer than half of the requests keep the SLO" in sentence(judged) and "-> 0." in sentence(judged)
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()
    assert result_text(closed["baseline"]).startswith("0 req/s [0, 0.05]")
    assert "goodput" in " ".join(sentence(entry) for entry in log.read() if entry.kind == EntryKind.OUTCOME)


def test_goodput_without_a_word_on_what_is_good_is_refused() -> None:
    with pytest.raises(UsageError, match="what a good request is") as refused:
        fitted(Workload(), parse_target(["4goodput"]))
    assert "slo" in refused.value.hint
    assert fitted(LOAD, parse_target(["4goodput@16,error_rate<1%"])).limits


def test_a_gain_below_the_slo_is_seen_and_is_a_step_on_the_way() -> None:
    """Two causes: each alone leaves every request beyond its limit, so goodput stays 0 until both are gone."""

    def slow(values: Any) -> float:
        cap = values.get("max_running_requests")
        return 1200.0 / (4 if values.get("disable_cuda_graph") else 1) / (3 if isinstance(cap, int) and cap < 16 else 1)

    box = ServingBox({**EAGER, "max_running_requests": 4}, slow)
    state, log = run(box, study("4goodput"))
    assert state.closed["ending"] == "met", [sentence(entry) for entry in log.read()]
    assert {name for changes in state.promoted for name in changes} == {"disable_cuda_graph", "max_running_requests"}
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_no_effect_below_the_slo_promotes_nothing_and_ends() -> None:
    """Nothing good in any launch and looks that decide nothing: no division by the zero, no gain made of it."""
    box = ServingBox(EAGER, lambda values: 200.0)
    state, log = run(box, study("4goodput"))
    assert state.closed["ending"] == "not_met" and state.promoted == ()
    assert state.closed["best"]["value"] == 0
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


@pytest.mark.parametrize("seed", range(12))
def test_two_good_requests_against_one_are_no_factor_of_two(seed: int) -> None:
    """36 to 40 ms in the middle of a 30 ms limit: a handful of good requests, another handful in the next launch."""
    box = ServingBox(EAGER, lambda values: 430.0, seed=seed)
    state, _ = run(box, study("1goodput"))
    assert state.promoted == ()


@pytest.mark.parametrize("seed", range(12))
def test_near_the_limit_the_count_itself_is_noise(seed: int) -> None:
    """Seven of ten keep the SLO whatever is set; 20 s windows count 40 requests, so shares differ by a tenth between equal launches."""
    box = ServingBox(EAGER, lambda values: 580.0, seed=seed)
    box.window_s = 20.0
    state, _ = run(box, study("4goodput"))
    assert state.promoted == ()


def test_the_comparison_has_no_step_where_half_of_the_requests_are_good() -> None:
    def point(ratio: float, share: float) -> LoadPoint:
        metrics = {"requests_per_s": 4.0, "goodput_per_s": 4.0 * share, "good_share": share, goodput.MIDDLE: ratio}
        return LoadPoint(concurrency=1, requests_ok=400, requests_failed=0, prompt_tokens=1, output_tokens=1, window_s=100.0, metrics=metrics)

    at, beyond = point(1.0, 0.5), point(1.0001, 0.4975)
    assert goodput.compared(at, 2.0) == 2.0
    assert goodput.compared(beyond, 1.99) == pytest.approx(2.0, rel=1e-3)
    assert goodput.misses(at) is None and goodput.misses(beyond) == 1.0001
    assert goodput.counting_error(at) == pytest.approx(0.05) and goodput.floor_of([at, beyond]) == pytest.approx(0.05)
    older = at.model_copy(update={"metrics": {"requests_per_s": 4.0, "goodput_per_s": 2.0, "good_share": 0.5}})
    assert goodput.compared(older, 2.0) == 2.0 and goodput.counting_error(older) == 0  # journals from before: judged as they were


def test_the_target_is_held_against_goodput_as_measured() -> None:
    """Launches are compared by the median request below the SLO; that stand-in never meets a target by itself."""
    box = ServingBox(EAGER, lambda values: 380.0)
    state, log = run(box, study("0.5goodput"))
    point = state.first_arm.results[0].points[0]
    assert goodput.compared(point, 0.0) > 0.5 > point.metrics["goodput_per_s"]
    assert not verdicts.meets_target(state, state.first_arm) and state.closed["ending"] == "not_met"
    assert closing.value_of(state.first_arm.results) < 0.5
    assert fold(log.read()).closed == state.closed
