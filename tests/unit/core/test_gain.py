"""What a study has brought, as one number with its interval."""

from dataclasses import replace

from optimizer.core import forensics
from optimizer.report.prose import gain_text

from .model_box import ModelBox
from .test_state_machine import EAGER, run, speed


def test_the_gain_is_of_all_launches_of_both_sides():
    state, _ = run(ModelBox(EAGER, speed, noise=0.01))
    assert state.promoted
    found = forensics.gain(state)
    assert found["launches"] == [len(state.first_arm.results), len(state.base_arm.results)] and found["launches"][1] >= 2
    low, high = found["interval"]
    assert 1 < low < found["ratio"] < high
    assert gain_text(found).endswith(f"all {found['launches'][1]} launch(es) against {found['launches'][0]} of the server as found")


def test_where_nothing_is_kept_there_is_no_gain():
    state, _ = run(ModelBox({}, speed), target="5000tps@16")
    assert not state.promoted and forensics.gain(state) is None
    kept, _ = run(ModelBox(EAGER, speed))
    dead = replace(kept.first_arm, results=(replace(kept.first_arm.results[0], value=0.0),))
    arms = {**kept.arms, next(name for name, arm in kept.arms.items() if arm is kept.first_arm): dead}
    assert forensics.gain(replace(kept, arms=arms)) is None
