"""Proposals: the same history and seed give the same point, crashes are avoided, nothing is proposed twice."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import pytest

from optimizer.knowledge.library import Library
from optimizer.model.base import Value
from optimizer.model.outcome import Failed
from optimizer.model.space import Param, Space, Trial
from optimizer.model.step import Propose
from optimizer.runner.execute import LiveExecutor
from optimizer.search.grid import key, points
from optimizer.search.optuna_door import load
from optimizer.search.propose import propose, random_proposal, split
from tests.unit.core.model_box import spec

SPACE = Space(
    id="test/space",
    engine="any",
    params=(
        Param(name="size", flag=("--size",), type="int", grid=tuple(range(8, 264, 8))),
        Param(name="mode", flag=("--mode",), type="choice", grid=("plain", "fast", "odd")),
        Param(name="ratio", flag=("--ratio",), type="float", low=0.0, high=1.0, when={"setting": "mode", "eq": "fast"}),
    ),
)


def score(point: Mapping[str, Value]) -> float:
    bonus = {"plain": 0.0, "fast": 40.0, "odd": -20.0}[str(point["mode"])]
    ratio = point.get("ratio", 0.0)
    assert isinstance(point["size"], int) and isinstance(ratio, float)
    return point["size"] + bonus + 10 * ratio


def study(launches: int, value: Callable[[Mapping[str, Value]], float | None], seed: int = 0) -> list[Trial]:
    history: list[Trial] = []
    for launch in range(launches):
        point = propose(SPACE, SPACE.params, history, seed + launch)
        got = value(point)
        history.append(Trial(params=point, value=got, infeasible=got is None))
    return history


def test_sixty_of_sixty_are_reproduced_from_json() -> None:
    history = study(60, score)
    stored = [json.loads(trial.model_dump_json()) for trial in history]
    for launch in range(60):
        read = [Trial.model_validate(row) for row in stored[:launch]]
        assert propose(SPACE, SPACE.params, read, launch) == history[launch].params


def test_another_process_proposes_the_same() -> None:
    history = study(12, score)
    code = (
        "import sys, json\n"
        "from optimizer.model.space import Space, Trial\n"
        "from optimizer.search.propose import propose\n"
        "space, rows = json.load(sys.stdin)\n"
        "space = Space.model_validate(space)\n"
        "print(json.dumps(propose(space, space.params, [Trial.model_validate(row) for row in rows], 99)))\n"
    )
    text = json.dumps([SPACE.plain(), [trial.plain() for trial in history]])
    for hash_seed in ("0", "7"):
        done = subprocess.run(
            [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True, timeout=60,
            env={"PYTHONHASHSEED": hash_seed, "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert json.loads(done.stdout) == propose(SPACE, SPACE.params, history, 99)


def test_it_finds_the_better_half() -> None:
    best = max(trial.value or 0.0 for trial in study(30, score))
    assert best >= 0.9 * (256 + 40 + 10)


def test_conditional_parameters_exist_only_under_their_condition() -> None:
    for trial in study(20, score):
        assert ("ratio" in trial.params) == (trial.params["mode"] == "fast")
    fixed = propose(SPACE, SPACE.params, [], 3, fixed={"mode": "plain"})
    assert set(fixed) == {"size"}
    assert set(propose(SPACE, SPACE.params, [], 3, fixed={"mode": "fast"})) == {"size", "ratio"}


def test_the_crash_region_is_not_proposed_for_ever() -> None:
    """The optimum lies beside an out-of-memory cliff. Told as infeasible, the sampler keeps off it; with crashes untold
    (what a sampler makes of failed trials) nearly every launch crashes."""
    cliff = (
        Param(name="size", flag=("--size",), type="int", grid=tuple(range(1, 513))),
        Param(name="extra", flag=("--extra",), type="int", grid=tuple(range(1, 65))),
    )

    def search(told: bool, seed: int) -> tuple[int, float]:
        history: list[Trial] = []
        for launch in range(40):
            known = [trial for trial in history if told or not trial.infeasible]
            crashed = [trial.params for trial in history if trial.infeasible]
            point = propose(SPACE, cliff, known, 1000 * seed + launch, rejected=crashed)
            assert isinstance(point["size"], int) and isinstance(point["extra"], int)
            value = point["size"] + 2.0 * point["extra"]
            history.append(Trial(params=point, value=value if value <= 400 else None, infeasible=value > 400))
        best = max(trial.value for trial in history if trial.value is not None)
        return sum(trial.infeasible for trial in history), best

    for seed in (1, 2):
        crashes, best = search(True, seed)
        crashes_untold, best_untold = search(False, seed)
        assert crashes <= 22 < 30 <= crashes_untold
        assert best >= 0.95 * 400 and best >= best_untold


def test_no_point_is_proposed_twice() -> None:
    small = (SPACE.params[1], Param(name="flag", flag=("--flag",), type="bool"))
    history: list[Trial] = []
    for launch in range(6):
        point = propose(SPACE, small, history, launch)
        assert point and key(point) not in {key(trial.params) for trial in history}
        history.append(Trial(params=point, value=1.0))
    assert propose(SPACE, small, history, 99) == {}


def test_refused_points_are_not_proposed_again() -> None:
    small = (Param(name="flag", flag=("--flag",), type="bool"),)
    assert propose(SPACE, small, [], 1, rejected=[{"flag": True}]) == {"flag": False}
    assert propose(SPACE, small, [], 1, rejected=[{"flag": True}, {"flag": False}]) == {}


def test_first_points_come_first_and_are_validated() -> None:
    wishes: list[dict[str, Value]] = [{"size": 999}, {"size": 64, "mode": "new"}, {"size": 64, "mode": "plain"}]
    first = propose(SPACE, SPACE.params, [], 1, try_first=wishes)
    assert first == {"size": 64, "mode": "plain"}
    second = propose(SPACE, SPACE.params, [Trial(params=first, value=1.0)], 2, try_first=wishes)
    assert second and second != first


def test_old_trials_that_no_longer_fit_are_left_out_with_the_reason() -> None:
    history = [
        Trial(params={"size": 64, "mode": "plain"}, value=1.0),
        Trial(params={"size": 63, "mode": "plain"}, value=2.0),
        Trial(params={"size": 64, "mode": "gone"}, value=3.0),
        Trial(params={"size": 64, "mode": "plain", "ratio": 0.5}, value=3.0),
        Trial(params={"size": 72, "mode": "plain"}, value=None),
        Trial(params={"other": 1}, value=3.0),
    ]
    usable, left_out = split(SPACE.params, history)
    assert [trial.value for trial in usable] == [1.0]
    assert [item.why for item in left_out] == [
        "size = 63 is no value of the space", "mode = 'gone' is no value of the space",
        "ratio does not exist under the other choices", "it was never measured", "it sets none of the parameters",
    ]  # fmt: skip
    assert propose(SPACE, SPACE.params, history, 5)


def test_random_points() -> None:
    seen: set[str] = set()
    small = SPACE.params[:2]
    every = points(small, {}, None)
    assert every is not None
    for seed in range(len(list(every))):
        point = random_proposal(small, seed, seen=seen)
        assert point
        seen.add(key(point))
    assert random_proposal(small, 1, seen=seen) == {}


def test_two_thousand_trials_take_less_than_a_second() -> None:
    history = [
        Trial(params={"size": 8 + 8 * (index % 32), "mode": ("plain", "odd")[index % 2]}, value=float(index % 97))
        for index in range(2_000)
    ]
    propose(SPACE, SPACE.params, history[:5], 1)  # imports
    started = time.process_time()
    assert propose(SPACE, SPACE.params, history, 1)
    assert time.process_time() - started < 1.0


def test_optuna_is_loaded_late_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys, optimizer.search.propose; print('optuna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
    propose(SPACE, SPACE.params, [Trial(params={"size": 8, "mode": "plain"}, value=1.0)], 1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.fault("F47")
def test_an_optuna_that_raises_ends_the_proposal_and_not_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises is one error of ours: the executor journals a failed proposal, and the hypothesis is refused with the reason."""

    def breaks(*_: object, **__: object) -> dict[str, object]:
        raise FloatingPointError("singular matrix")

    monkeypatch.setattr(load().samplers.TPESampler, "sample_relative", breaks)
    monkeypatch.setattr(load().samplers.TPESampler, "sample_independent", breaks)
    executor = LiveExecutor(None, spec(), Library.model_construct(spaces=(SPACE,)))  # type: ignore[arg-type]
    step = Propose(key="5", space=SPACE.id, params=tuple(param.name for param in SPACE.params), history=(), seed=1, hypothesis="idea", fixed={})
    outcome = asyncio.run(executor._propose(step)).outcome
    assert isinstance(outcome, Failed) and outcome.cause == "proposal_failed"
    assert "FloatingPointError: singular matrix" in outcome.message
