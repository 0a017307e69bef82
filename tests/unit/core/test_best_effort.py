"""With --best-effort an idea is looked at as often as the judge wants, although nothing reaches the target any more."""

import asyncio
from dataclasses import replace

import pytest

from optimizer.core.state import fold
from optimizer.core.verdicts import _judged, _pair_first
from optimizer.model.playbook import Prediction
from optimizer.model.study import Budget
from optimizer.runner.loop import drive
from optimizer.runner.recorded import MemoryLog
from tests.unit.core.model_box import GRAPHS, PLAN, ModelBox, spec

SMALL = replace(PLAN, playbooks=(GRAPHS.model_copy(update={"predicts": Prediction(ratio=(1.05, 1.7))}),))


@pytest.mark.parametrize(("version", "best_effort", "again"), [(5, True, True), (5, False, False), (4, True, False)])
def test_a_promising_idea_is_not_dropped_after_one_look_because_the_target_is_out_of_reach(version: int, best_effort: bool, again: bool) -> None:
    """The state of a study as it judges the first launch of a candidate that is 14 % faster, with the target beyond the roofline."""
    box, log = ModelBox({"disable_cuda_graph": True}, lambda values: 100.0 if values.get("disable_cuda_graph") else 114.0, noise=0.01), MemoryLog()
    study = spec("5000tps@16", budget=Budget(minutes=100_000, launches=14), best_effort=best_effort, policy_version=version)
    log.append("opened", {"spec": study.plain()}, expect=0)
    asyncio.run(drive(log, box, SMALL))
    judged = next(entry for entry in log.read() if entry.kind == "judged")
    state = replace(fold(log.read()[: judged.seq - 1]), reach="hard")
    assert state.test is not None and not state.base_arm.confirmed
    judgement = _judged(state, SMALL, state.test)
    assert judgement.final is not again and ("launches that are left" in judgement.reason) is not again, judgement
    assert _judged(replace(state, reach="none"), SMALL, state.test).final is False
    assert again or not _pair_first(state, SMALL, state.test)
