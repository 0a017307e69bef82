"""The state machine against a box in memory: what it decides, in which order, and that it always ends clean."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.core.closing import wanted_state, what_runs
from optimizer.core.state import Closing, Server, State, fold
from optimizer.errors import NeedsOperator
from optimizer.model.entry import EntryKind
from optimizer.model.outcome import Failed
from optimizer.model.playbook import Prediction
from optimizer.model.settings import Settings
from optimizer.model.step import ORIGINAL, AwaitReady, Launch, Measure, Restore, Secure, Stop
from optimizer.model.study import Budget
from optimizer.runner.loop import StopRequest, drive
from optimizer.runner.recorded import MemoryLog, RecordedExecutor, verify

from .model_box import PLAN, ModelBox, invalid_point, spec, unknown

EAGER = {"disable_cuda_graph": True}


def speed(values):
    """1,200 tok/s when everything is right; a factor 3 without graphs, half with a cap of 8."""
    rate = 1200.0
    if values.get("disable_cuda_graph"):
        rate /= 3
    cap = values.get("max_running_requests")
    if isinstance(cap, int) and cap < 16:
        rate *= cap / 16
    return rate


def run(box, study=None, plan=PLAN, **changes):
    log = MemoryLog()
    log.append("opened", {"spec": (study or spec(**changes)).plain()}, expect=0)

    def watch(state, entry):
        assert entry.seq < 1500, "the study does not end"

    state = asyncio.run(drive(log, box, plan, watch=watch))
    return state, log


def test_names_the_cause_and_meets_the_target_in_two_launches():
    box = ModelBox(EAGER, speed)
    state, log = run(box)
    assert state.closed["ending"] == "met"
    assert state.closed["launches"] == 2  # the candidate and the fresh confirmation
    assert state.promoted == ({"disable_cuda_graph": None},)
    assert state.closed["best"]["fresh_confirmation"] is True
    assert state.closed["best"]["launches"] == 1
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


def test_two_causes_are_cured_one_after_the_other():
    box = ModelBox({**EAGER, "max_running_requests": 4}, speed)
    state, _ = run(box)
    assert state.closed["ending"] == "met"
    assert state.closed["launches"] == 3
    assert {tuple(changes) for changes in state.promoted} == {("disable_cuda_graph",), ("max_running_requests",)}


SURE = [book.model_copy(update={"prior_db": -4.0}) for book in PLAN.playbooks]


def test_near_certain_causes_are_cured_in_one_launch():
    plan = replace(PLAN, playbooks=tuple(SURE))
    box = ModelBox({**EAGER, "max_running_requests": 4}, speed)
    state, log = run(box, plan=plan)
    assert state.closed["ending"] == "met"
    assert state.closed["launches"] == 2  # one for both cures, one to confirm
    assert {name for name, belief in state.beliefs.items() if belief.status == "supported"} == {"cuda-graph-disabled", "admission-cap-too-low"}
    assert verify(log.read(), lambda seq: plan).mismatches == ()


def test_an_undecided_candidate_that_meets_the_target_goes_straight_to_its_confirmation():
    """+16 % is 5 sd at the prior: too little for the quick exit. The launch that would decide it is the confirmation itself."""
    plan = replace(PLAN, playbooks=tuple(book.model_copy(update={"predicts": Prediction(ratio=(1.1, 1.5))}) for book in SURE))
    box = ModelBox(EAGER, lambda values: 900.0 if values.get("disable_cuda_graph") else 1045.0, noise=0.005)
    state, log = run(box, plan=plan)
    assert state.closed["ending"] == "met"
    assert state.closed["launches"] == 2
    after = [entry.body for entry in log.read() if entry.kind == EntryKind.JUDGED][-1]
    assert after["after_confirmation"] is True
    assert after["judgement"]["n_candidate"] == 2
    assert state.beliefs["cuda-graph-disabled"].status == "kept"  # one baseline launch decides no claim of this size
    assert verify(log.read(), lambda seq: plan).mismatches == ()


def luck_of_the_first():
    """Rates of a box where the first launch without the flag is lucky and the others are not; a plan that expects little of it."""
    lucky = []

    def luck(values):
        if values.get("disable_cuda_graph"):
            return 900.0
        lucky.append(1)
        return 1050.0 if len(lucky) == 1 else 905.0

    return luck, replace(PLAN, playbooks=tuple(book.model_copy(update={"predicts": Prediction(ratio=(1.1, 1.5))}) for book in SURE))


def test_a_provisional_promotion_that_is_not_borne_out_is_rolled_back():
    luck, plan = luck_of_the_first()
    box = ModelBox(EAGER, luck, noise=0.002)
    state, _ = run(box, plan=plan)
    assert state.promoted == ()
    assert state.closed["ending"] == "not_met"


def test_a_bundle_that_fails_is_taken_apart():
    plan = replace(PLAN, playbooks=tuple(SURE))
    box = ModelBox({**EAGER, "max_running_requests": 4}, speed, crash=lambda values: "oom_capture" if not values.get("disable_cuda_graph") else None)
    state, _ = run(box, plan=plan)
    assert state.beliefs["admission-cap-too-low"].status == "supported"
    assert state.beliefs["cuda-graph-disabled"].status in ("pruned", "stale", "refused")
    assert len([step for step in box.calls if isinstance(step, Launch)]) <= 6


def test_a_healthy_server_is_left_alone():
    state, _ = run(ModelBox({}, speed), target="5000tps@16")
    assert state.closed["ending"] == "nothing_to_tune"
    assert state.closed["launches"] == 0
    assert state.promoted == ()


def test_a_target_met_as_found_changes_nothing():
    box = ModelBox({}, speed, original=True)
    state, _ = run(box)
    assert state.closed["ending"] == "met"
    assert not [step for step in box.calls if isinstance(step, Stop | Launch | Restore)]
    assert ORIGINAL in box.running


def test_a_target_met_by_a_hair_takes_a_second_launch_to_be_shown():
    box = ModelBox({}, lambda values: 1050.0)
    state, _ = run(box)
    assert state.closed["ending"] == "met"
    assert state.closed["baseline"]["launches"] == 2
    assert "2 launches" in state.closed["reason"]
    assert state.closed["launches"] == 0


def test_a_percentile_that_the_window_cannot_carry_says_how_many_requests_it_needs():
    state, _ = run(ModelBox({}, speed), target="ttft.p99<500ms")
    assert state.closed["ending"] == "unfit"
    assert "at least 459" in state.closed["reason"] and "window_s" in state.closed["reason"]


def test_a_setting_without_effect_is_not_kept():
    state, _ = run(ModelBox(EAGER, lambda values: 400.0, noise=0.02))
    assert state.promoted == ()
    assert state.closed["ending"] == "not_met"
    assert state.beliefs["cuda-graph-disabled"].status in ("deferred", "pruned")


@pytest.mark.parametrize("gain", [1.09, 1.11, 1.13])
def test_a_small_gain_under_a_large_claim_far_from_the_target_gets_no_further_launches(gain):
    """Its claim and the target both lie beyond its interval: what is left of it is worth less than the next idea's launch."""
    box = ModelBox(EAGER, lambda values: 25.0 * (1.0 if values.get("disable_cuda_graph") else gain), noise=0.002)
    state, _ = run(box, target="1000tps@16", best_effort=True)
    belief = state.beliefs["cuda-graph-disabled"]
    launches = [step for step in box.calls if isinstance(step, Launch) and step.purpose == "candidate"]
    assert len(launches) == 1 and not state.promoted
    assert belief.status == "pruned" and "is excluded: it is not what limits this server" in belief.reason


@pytest.mark.fault("F16")
def test_a_crashing_setting_is_infeasible_and_the_study_goes_on():
    box = ModelBox({**EAGER, "max_running_requests": 4}, speed,
                   crash=lambda values: "oom_capture" if not values.get("disable_cuda_graph") else None)  # fmt: skip
    state, _ = run(box)
    assert state.beliefs["cuda-graph-disabled"].status in ("pruned", "stale")
    assert "admission-cap-too-low" in {name for name, belief in state.beliefs.items() if belief.status == "supported"}
    assert state.closed["ending"] == "not_met"


def test_a_kernel_cause_is_handed_over_and_costs_no_launch():
    state, _ = run(ModelBox({}, lambda values: 100.0, kernel=True))
    assert state.closed["ending"] == "unreachable_by_configuration"
    assert state.closed["launches"] == 0
    assert state.closed["hypotheses"][0]["id"] == "arch-fallback-kernel"
    assert "another kernel" in state.closed["reason"]


def test_the_original_server_is_stopped_once_and_comes_back():
    box = ModelBox(EAGER, lambda values: 400.0, original=True)
    run(box)
    stops = [step for step in box.calls if isinstance(step, Stop) and step.launch == ORIGINAL]
    assert len(stops) == 1
    assert box.running.keys() == {ORIGINAL}


def test_the_best_settings_stay_when_they_were_confirmed():
    box = ModelBox(EAGER, speed, original=True)
    state, _ = run(box)
    assert state.closed["ending"] == "met"
    final = [step for step in box.calls if isinstance(step, Launch)][-1]
    assert final.purpose == "final"
    assert final.served_name is None
    assert list(box.running) == [final.key]
    assert not box.running[final.key].get("disable_cuda_graph")


@pytest.mark.parametrize("finish", ["best", "restore", "leave"])
def test_the_end_state_is_the_one_that_was_chosen(finish):
    box = ModelBox(EAGER, speed, original=True)
    run(box, study=spec(finish=finish))
    if finish == "restore":
        assert list(box.running) == [ORIGINAL]
    else:
        assert ORIGINAL not in box.running
        assert len(box.running) == 1


def test_nothing_is_changed_before_the_guard_is_armed():
    box = ModelBox(EAGER, speed, original=True)
    run(box)
    kinds = [step.kind for step in box.calls]
    armed = kinds.index("secure")
    assert not {"launch", "stop", "restore"} & set(kinds[:armed])
    assert isinstance(box.calls[-1], Secure)


@pytest.mark.fault("F30")
def test_an_invalid_run_is_repeated_once_on_the_same_launch():
    bad = []

    def fault(step, number):
        if isinstance(step, Measure) and not bad:
            bad.append(step.launch)
            return invalid_point()
        return None

    box = ModelBox(EAGER, speed, fault=fault)
    state, _ = run(box)
    assert state.closed["ending"] == "met"
    assert [step.launch for step in box.calls if isinstance(step, Measure)][:2] == [bad[0], bad[0]]


def test_an_unknown_outcome_is_settled_before_anything_else_happens():
    def fault(step, number):
        return unknown() if isinstance(step, Launch) and number < 8 else None

    box = ModelBox(EAGER, speed, fault=fault)
    state, log = run(box)
    assert state.closed["ending"] == "met"
    statuses = [entry.body["outcome"]["status"] for entry in log.read() if entry.kind == EntryKind.OUTCOME]
    assert "unknown" in statuses


def test_three_unanswered_reconciliations_ask_for_a_person():
    class Lost(ModelBox):
        async def reconcile(self, step):
            from optimizer.runner.base import Effect

            return Effect(unknown())

    box = Lost(EAGER, speed, fault=lambda step, number: unknown() if isinstance(step, Launch) else None)
    with pytest.raises(NeedsOperator):
        run(box)


def test_a_stop_request_closes_the_study_and_cleans_the_box():
    stop = StopRequest()

    def fault(step, number):
        if isinstance(step, Measure):
            stop.ask("Interrupted by Ctrl-C.")
        return

    box = ModelBox(EAGER, speed, original=True, fault=fault)
    log = MemoryLog()
    log.append("opened", {"spec": spec().plain()}, expect=0)
    state = asyncio.run(drive(log, box, PLAN, stop=stop))
    assert state.closed["ending"] == "interrupted"
    assert list(box.running) == [ORIGINAL]
    assert not box.armed


@pytest.mark.parametrize("cut", [AwaitReady, Stop, Measure])
def test_a_study_that_is_cut_short_leaves_no_launch_that_was_not_measured(cut):
    """`--finish leave`: nobody is served by a launch that was never ready, and least of all where the owner's server is down."""
    stop = StopRequest()

    def fault(step, number):
        if stop.reason is None and box.launched and isinstance(step, cut):
            stop.ask("Interrupted by Ctrl-C.")
            return None if cut is Stop else Failed(cause="interrupted", message="cut", retryable=True)
        return None

    box = ModelBox(EAGER, speed, original=True, fault=fault)
    log = MemoryLog()
    log.append("opened", {"spec": spec(finish="leave").plain()}, expect=0)
    state = asyncio.run(drive(log, box, PLAN, stop=stop))
    assert state.closed["ending"] == "interrupted" and not box.armed
    assert list(box.running) == [ORIGINAL] and what_runs(state).startswith("The original server runs on ")
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


@pytest.mark.parametrize(
    ("ending", "status", "version", "wanted"),
    [
        ("interrupted", "measured", 6, "leave"),
        ("interrupted", "ready", 6, "restore"),
        ("interrupted", "launched", 6, "restore"),
        ("interrupted", None, 6, "restore"),
        ("met", "ready", 6, "leave"),
        ("not_met", None, 6, "restore"),
        ("interrupted", "launched", 5, "leave"),
    ],
)
def test_what_leave_leaves(ending, status, version, wanted):
    server = Server(key="3", settings=Settings(), purpose="candidate", port=1, served_name="t-3", status=status) if status else None
    state = State(spec=spec(finish="leave", policy_version=version), closing=Closing(ending=ending, reason="", entry=1), server=server, original_found=True)
    assert wanted_state(state) == wanted
    if server is not None and version == 6:
        assert "as t-3" in what_runs(state) and "The server that ran before is stopped" in what_runs(state)


def test_a_launch_that_uses_up_the_budget_is_still_measured():
    """Baseline, candidate, confirmation: three launches are enough, to the last one."""
    state, _ = run(ModelBox(EAGER, speed), study=spec(budget=Budget(minutes=1e6, launches=3)))
    assert state.closed["ending"] == "met"
    assert state.closed["launches"] == 2


def test_ideas_that_the_budget_left_untried_are_no_proof_that_nothing_is_left():
    state, _ = run(ModelBox(EAGER, speed), study=spec(budget=Budget(minutes=1e6, launches=2)))
    assert state.closed["ending"] == "not_met"
    assert "budget" in state.closed["reason"]


def test_the_budget_ends_a_study():
    state, _ = run(ModelBox({**EAGER, "max_running_requests": 4}, lambda values: speed(values) / 2), study=spec(budget=Budget(minutes=1e6, launches=3)))
    assert state.launches_baseline + state.launches_after <= 3


@pytest.mark.fault("F24")
def test_retryable_failures_are_retried_and_end():
    state, _ = run(ModelBox(EAGER, speed, crash=lambda values: "port_busy"))
    assert state.closed["ending"] == "unfit"


def test_every_prefix_folds_and_resuming_from_it_ends_the_same():
    box = ModelBox({**EAGER, "max_running_requests": 4}, speed, original=True)
    state, log = run(box)
    entries = log.read()
    for length in range(1, len(entries)):
        prefix = entries[:length]
        fold(prefix)
        resumed = ModelBox({**EAGER, "max_running_requests": 4}, speed, original=True)
        _catch_up(resumed, prefix)
        again = asyncio.run(drive(MemoryLog(prefix), resumed, PLAN))
        assert again.closed["ending"] == state.closed["ending"], length
        assert again.promoted == state.promoted, length


def _catch_up(box, entries):
    """Bring a fresh box to where the prefix leaves it: an open intent has not happened yet, or has (here: not)."""
    settled = {entry.key for entry in entries if entry.kind == EntryKind.OUTCOME}
    from optimizer.model.step import STEP

    for entry in entries:
        if entry.kind == EntryKind.INTENT and entry.key in settled:
            box._do(STEP.validate_python(entry.body["step"]))


def test_a_recorded_study_can_be_driven_again():
    state, log = run(ModelBox({**EAGER, "max_running_requests": 4}, speed))
    again = MemoryLog()
    again.append("opened", {"spec": spec().plain()}, expect=0)
    replayed = asyncio.run(drive(again, RecordedExecutor(log.read()), PLAN))
    assert replayed.closed == state.closed


def test_a_changed_decision_is_found():
    _, log = run(ModelBox(EAGER, speed))
    entries = list(log.read())
    index = next(i for i, entry in enumerate(entries) if entry.kind == EntryKind.CHOSEN)
    entries[index] = entries[index].model_copy(update={"body": {**entries[index].body, "hypothesis": "admission-cap-too-low"}})
    assert verify(entries, lambda seq: PLAN).mismatches[0].seq == entries[index].seq


FAULTS = ["none", "unknown", "interrupted", "port_busy", "oom_kv", "crashed", "invalid", "bench_failed", "refused_by_box"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), original=st.booleans(), rate=st.sampled_from([0.0, 0.1, 0.3]), launches=st.integers(2, 12))
def test_whatever_happens_it_ends_within_budget_and_clean(seed, original, rate, launches):
    rng = random.Random(seed)

    def fault(step, number):
        if rng.random() >= rate or step.kind in ("observe", "secure", "restore"):
            return None
        kind = rng.choice(FAULTS)
        if kind == "unknown":
            return unknown()
        if kind == "invalid" and isinstance(step, Measure):
            return invalid_point()
        if kind in ("oom_kv", "crashed") and step.kind in ("await_ready", "measure"):
            return Failed(cause=kind, message="scripted")
        if kind in ("interrupted", "bench_failed") and isinstance(step, Measure):
            return Failed(cause=kind, message="scripted", retryable=True)
        if kind == "port_busy" and isinstance(step, Launch):
            return Failed(cause=kind, message="scripted", retryable=True, body={"spawned": False})
        return None

    box = ModelBox({**EAGER, "max_running_requests": 4, "mem_fraction_static": 0.5}, speed, original=original, fault=fault, noise=0.03, seed=seed)
    state, log = run(box, study=spec(budget=Budget(minutes=1e6, launches=launches)))
    assert isinstance(state, State) and state.closed is not None
    counted = state.launches_baseline + state.launches_after
    assert counted <= launches + 1  # a baseline that had to be retried may use the confirmation's reserve
    assert not box.armed
    left = set(box.running) - {ORIGINAL}
    assert not left or [step for step in box.calls if isinstance(step, Secure)][-1].keep in left
    assert verify(log.read(), lambda seq: PLAN).mismatches == ()


@pytest.mark.parametrize(("how", "told"), [(invalid_point, "No valid measurement"), (lambda: Failed(cause="bench_failed", message="the guard is gone", retryable=True), "the guard is gone")])
def test_what_could_not_be_measured_is_not_said_to_be_out_of_reach(how, told):
    """Nothing is known against an idea whose every measurement was spoilt from outside: the target is missed, not unreachable."""

    box = ModelBox(EAGER, speed, fault=lambda step, number: how() if isinstance(step, Measure) and step.purpose == "candidate" else None)
    state, log = run(box, target="5000tps@16")
    belief = state.beliefs["cuda-graph-disabled"]
    assert (belief.status, belief.verdict) == ("deferred", "invalid")
    assert state.closed["ending"] == "not_met"
    assert "could not be measured" in state.closed["reason"] and told in state.closed["reason"]
    assert "by configuration" not in state.closed["reason"] and verify(log.read(), lambda seq: PLAN).mismatches == ()
