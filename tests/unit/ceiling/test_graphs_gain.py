"""Edges of the predicted gain of graphs."""

import pytest

from optimizer.ceiling.launches import graphs_gain


def test_the_gain_is_bounded_by_the_graphed_step():
    """A median step above the mean round once promised a factor of 6e11."""
    assert graphs_gain(650.0, 656.0, 6.0, 0.6) == pytest.approx(650.0 / 10.0)


def test_an_eager_step_that_is_as_fast_as_a_graph_gains_nothing():
    assert graphs_gain(10.0, 8.0, 6.0, 0.6) == pytest.approx(1.0)
