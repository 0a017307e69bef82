"""``optimize plan``: survey the box for real, fold it into a state in memory, and say what ``run`` would do from there."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from optimizer.core import rank
from optimizer.core.decide import decide
from optimizer.core.durations import CANDIDATE, CONFIRMATION, candidates_that_fit, durations, whole
from optimizer.core.prior import compared, extended, is_like_here
from optimizer.core.state import State, apply
from optimizer.model.outcome import Done, Failed
from optimizer.model.prior import EarlierStudy
from optimizer.model.settings import Settings
from optimizer.model.step import Launch, Observe
from optimizer.redact import Redactor
from optimizer.runner.dryrun import DryRunExecutor
from optimizer.runner.execute import LiveExecutor
from optimizer.runner.recorded import MemoryLog
from optimizer.wiring import (
    Options,
    Roots,
    learning,
    library,
    not_surveyed,
    opened_body,
    opened_box,
    plan_of,
    prepare,
    with_learned,
)
from optimizer.wiring.earlier import earlier


async def plan_study(options: Options, roots: Roots) -> dict[str, Any]:
    """What ``run`` would do with these arguments."""
    known = library(roots)
    with tempfile.TemporaryDirectory(prefix="optimize-plan-") as scratch:
        prepared = prepare(options, replace(roots, runs=Path(scratch)), need_target=False, prior_roots=roots)
        spec = prepared.spec
        known = known if spec.host.kind == "sim" else with_learned(known, learning.pinned_text())
        plan = plan_of(known)
        async with opened_box(spec, prepared.folder) as box:
            live = LiveExecutor(box, spec, known)
            executor, log = DryRunExecutor(live), MemoryLog()
            state = apply(State(), log.append("opened", opened_body(spec, known), expect=0))
            step = decide(state, plan)
            assert isinstance(step, Observe)
            state = apply(state, log.append("intent", {"step": step.model_dump(mode="json")}, key=step.key, expect=1))
            began = time.monotonic()
            effect = await executor.execute(step)
            looked_s = round(time.monotonic() - began, 1)
            state = apply(state, log.append("outcome", {"step": "observe", "outcome": effect.outcome.model_dump(mode="json")}, key=step.key, expect=2))
            if isinstance(effect.outcome, Failed):
                raise not_surveyed(effect.outcome.message)
            assert isinstance(effect.outcome, Done)
            plan = extended(state, plan)
            first = live.command_of(Launch(key="1", settings=Settings(), purpose="baseline", port=20000, served_name="STUDY-KEY"))
            ground = rank.ground(state, plan)
            context, running = live.session.known, bool(effect.outcome.body["original"])
            before = earlier(roots.names(), spec.host.name, context.engine, context.model_path)
            steps = durations(spec.workload, state.survey_evidence, before, running=running, looked_s=looked_s, deadline_s=spec.ready_deadline_s)
            found = {
                "host": spec.host.name,
                "target": spec.target.text or None,
                "target_from": "given" if options.target else "box" if spec.target.text else None,
                "workload": spec.workload.plain(),
                "engine": effect.outcome.body["engine"],
                "engine_version": effect.outcome.body["engine_version"],
                "running_server": effect.outcome.body["original"],
                "would_restore": list(context.launch.argv) if running else None,
                "restored_by": context.original.control if context.original is not None else None,
                "guard_minutes": spec.guard_minutes,
                "durations": [one.plain() for one in steps],
                "candidate_s": whole(steps, CANDIDATE),
                "confirmation_s": whole(steps, CONFIRMATION),
                "candidates_that_fit": candidates_that_fit(steps, spec.budget),
                "given": effect.outcome.body["given"],
                "unknown_flags": effect.outcome.body["unknown_flags"],
                "refused": [item.plain() for item in rank.dead_on_command_line(state, plan)],
                "facts": len(state.survey_evidence.facts),
                "missing": [item.plain() for item in state.survey_evidence.missing],
                "hypotheses": rank.ranked_body(state, plan)["hypotheses"],
                "prior_art": [{"name": item.name, "source": item.source, "concerns": text if isinstance(text := compared(state, item), str) else text.said,
                               "used": not isinstance(text, str)} for item in spec.prior_art],
                "earlier_studies": [_earlier(state, study) for study in spec.earlier],
                "spaces": [space.id for space in ground.spaces],
                "first_command": list(first.argv),
                "first_environment": first.env,
                "budget": spec.budget.plain(),
                "finish": spec.finish_or_default,
                "next_step": "measure the running server" if state.original_running else "launch the baseline",
            }
            shown: dict[str, Any] = Redactor().value(found)  # a host file may hold what no screen should show
            return shown


def _earlier(state: State, study: EarlierStudy) -> dict[str, Any]:
    """Whether a sampler of this study starts from the launches of an earlier one, or why not."""
    found = compared(state, study)
    used = not isinstance(found, str) and is_like_here(found)
    return {"name": study.name, "launches": len(study.arms), "used": used, "concerns": found if isinstance(found, str) else found.said}
