"""Ideas that cannot change the ending: one launch each, and what rules them out does not make them the leading cause."""

from types import SimpleNamespace

import pytest

from optimizer.core import closing, verdicts


def judged(bayes_db):
    return SimpleNamespace(
        ratio=1.127, low=0.774, high=1.642, n_candidate=1, n_baseline=1, reason="", verdict="unresolved", bayes_db=bayes_db, degrees_of_freedom=None
    )


@pytest.mark.parametrize(("measured_db", "version", "counted_db"), [(15.0, 4, 0.0), (-6.0, 4, -6.0), (2.5, 5, 2.5), (-6.0, 5, -6.0)])
def test_a_small_effect_that_was_predicted_small_does_not_lead(measured_db, version, counted_db, monkeypatch):
    """Since version 5 an interval that decides nothing has little weight in any case, and keeps it."""
    monkeypatch.setattr(verdicts, "_body", lambda _test, _verdict, why: {"why": why})
    monkeypatch.setattr(verdicts, "_too_small_for_the_target", lambda *_: "the target needs ×41")
    state = SimpleNamespace(spec=SimpleNamespace(policy_version=version))
    test = SimpleNamespace(settings=object(), entry=7, ratio=None, bundle=())
    kind, body, _ = verdicts._settle(state, test, judged(measured_db))
    assert kind == "pruned" and body["bayes_db"] == counted_db and body["why"].endswith("the target needs ×41")


@pytest.mark.parametrize(("reach", "pair"), [("none", True), ("configuration", False), ("hard", False)])
def test_no_second_baseline_where_nothing_reaches_the_target(reach, pair, monkeypatch):
    monkeypatch.setattr(closing, "over_budget", lambda *_, **__: False)
    monkeypatch.setattr(closing, "pooled", lambda *_: SimpleNamespace(sd=0.03))
    monkeypatch.setattr(closing, "policy", lambda *_: SimpleNamespace(quick_exit_sd=6.0))
    monkeypatch.setattr(verdicts, "unmeasurable", lambda *_: False)
    state = SimpleNamespace(base_arm=SimpleNamespace(results=[SimpleNamespace(ln=3.2)]), promoted=(), reach=reach, spec=SimpleNamespace(best_effort=False))
    assert verdicts._pair_first(state, SimpleNamespace(), SimpleNamespace(ratio=(1.0, 1.19))) is pair
