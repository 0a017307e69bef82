"""Edges of the predicted gain of graphs."""

from dataclasses import replace

import pytest
from recorded import RUNS, SHAPES

from optimizer.ceiling.launches import graphs_gain, launches_most_ms, launches_note
from optimizer.ceiling.predict import captured_efficiency, computed_ratio, with_efficiency
from optimizer.ceiling.waterfall import observed_efficiency
from optimizer.core.roofline import level_ceilings


def test_the_gain_is_bounded_by_the_graphed_step():
    """A median step above the mean round once promised a factor of 6e11."""
    assert graphs_gain(650.0, 656.0, 6.0, 0.6) == pytest.approx(650.0 / 10.0)


def test_an_eager_step_that_is_as_fast_as_a_graph_gains_nothing():
    assert graphs_gain(10.0, 8.0, 6.0, 0.6) == pytest.approx(1.0)


def test_no_launch_overhead_explains_a_second_per_step():
    """36 layers are a few hundred launches: the slowest recording loses 21 ms in them, and none loses 43."""
    assert launches_most_ms(SHAPES["7b"]) == pytest.approx(43.2)
    assert launches_most_ms(SHAPES["7b"].model_copy(update={"moe_layers": 36})) == pytest.approx(86.4)
    assert launches_most_ms(SHAPES["7b"], 100) == pytest.approx(10.0)
    assert graphs_gain(1000.0, 1000.0, 6.0, 0.6, launches_ms=43.2) == pytest.approx(1000 / 956.8)
    assert graphs_gain(0.0, 1.0, 0.0, 0.6) == 1.0


def test_an_estimated_count_of_launches_says_so_with_its_range():
    mixture = SHAPES["7b"].model_copy(update={"moe_layers": 36})
    assert "864 (612 to 972)" in str(launches_note(mixture)) and launches_note(mixture, 700) is launches_note(SHAPES["7b"]) is None
    eager, graphed = RUNS["tp1-7b-nograph"].inputs(16), RUNS["tp1-7b-graph32"].inputs(16)
    told = [any("not measured: 864" in note for note in level_ceilings([replace(item, shape=mixture)])[0].notes) for item in (eager, graphed)]
    assert told == [True, False]
    traced = replace(eager, shape=mixture, situation=eager.situation.model_copy(update={"kernels_per_step": 700.0}))
    assert not any("counted from" in note for note in level_ceilings([traced])[0].notes)


@pytest.mark.parametrize(("rate", "tpot"), [(0.5, 32_000.0), (40.0, 400.0), (704.37, 21.5), (2000.0, 8.0)])
def test_every_predicted_gain_is_one_that_launches_can_explain(rate, tpot):
    run = replace(RUNS["tp1-7b-nograph"], points={16: (rate, tpot)})
    low, high = computed_ratio("graphs_on", run.inputs(16))
    assert 1 <= low <= high <= max(1.0, 1 / (1 - min(43.2 / tpot, 0.8)))
    assert run.inputs(16).waterfall.share("eager") * 16e3 / rate <= 43.2 + 1e-6


def test_a_captured_level_bounds_what_graphs_may_promise():
    """Captured up to 4. Where batch 1 reaches 0.62 of its roofline from a graph, 16 gets its graph: 839 -> 2593 tok/s.
    Where batch 1 is slow from a graph as well, graphs are not what is missing."""
    run = RUNS["tp1-7b-graph4"]
    shown = captured_efficiency([run.inputs(1), run.inputs(16)])
    assert shown == observed_efficiency(run.inputs(1).waterfall) == pytest.approx(0.62, abs=0.01)
    low, high = computed_ratio("graphs_on", with_efficiency(run.inputs(16), shown))
    assert low < 2593 / 839 < high < 1.5 * 2593 / 839

    slow = replace(run, points={1: (10.0, 100.0), 16: (144.0, 111.0)})
    shown = captured_efficiency([slow.inputs(1), slow.inputs(16)])
    assert shown == pytest.approx(0.029, abs=0.001)
    bounded = with_efficiency(slow.inputs(16), shown)
    low, high = computed_ratio("graphs_on", bounded)
    assert low == 1 and high < 1.3
    assert bounded.waterfall.share("kernel") > 0.8


def test_levels_that_say_nothing_about_graphs():
    assert captured_efficiency([RUNS["tp1-7b-nograph"].inputs(1), RUNS["tp2-27b-nextn3"].inputs(1)]) is None
    single = RUNS["tp1-7b-graph32"].inputs(1)
    assert captured_efficiency([replace(single, situation=single.situation.model_copy(update={"pp": 2}))]) is None
