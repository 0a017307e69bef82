"""The product as a library: a dozen functions that take plain values and return the documents that ``--json`` prints. Stable: a
name or a key of a document is removed only with a major version. Each call is whole (it opens and closes what it needs) and may be
made from any thread that runs no event loop; everything that is wrong raises an ``OptimizerError``. Ctrl-C and SIGTERM close a study
that was started in the main thread, as they do for the command; in another thread signals are the program's own."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optimizer import wiring
from optimizer.errors import OptimizerError as OptimizerError
from optimizer.errors import UsageError
from optimizer.journal import database
from optimizer.journal.place import VARIABLE
from optimizer.wiring import Options as Options
from optimizer.wiring import Roots

Document = dict[str, Any]
A_HOST, A_TARGET, A_STUDY = 'a name such as "box" or "localhost"', 'text such as "1000tps@16" or a list of it', "a study's name"


def _roots(runs: str | Path, knowledge: str | Path | None = None) -> Roots:
    """Where ``OPTIMIZE_STORE`` names a database, the journals are there, as for the command."""
    url = os.environ.get(VARIABLE)
    return Roots(runs=Path(runs), knowledge=Path(knowledge) if knowledge is not None else None, store=database(url) if url else None)


def _called(function: str, **given: tuple[object, type | tuple[type, ...], str]) -> None:
    """Raises UsageError for an argument of another kind than is taken (name: value, types, in words)."""
    for name, (value, kinds, words) in given.items():
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise UsageError(f"optimizer.{function}: {name} is {words}, not {value!r}.", hint="docs/ecosystem.md has the functions with their arguments.")


def _outside_a_loop(function: str) -> None:
    """Raises UsageError where a loop runs already: this function needs one of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"optimizer.{function} was called inside a running event loop.", hint=f"Call it in a thread: await asyncio.to_thread(optimizer.{function}, …)")


def _options(host: str, target: str | Sequence[str], options: Options | None) -> Options:
    targets = (target,) if isinstance(target, str) else tuple(target)
    return dataclasses.replace(options or Options(host=host), host=host, target=targets)


def run(host: str, target: str | Sequence[str], *, options: Options | None = None, runs: str | Path = "runs") -> Document:
    """A whole study. Without ``Options(host, yes=True)`` a server that runs there is not stopped: then UsageError."""
    from optimizer.wiring.observing import observed

    _called("run", host=(host, str, A_HOST), target=(target, (str, Sequence), A_TARGET))
    _outside_a_loop("run")
    roots = _roots(runs)
    with observed(None, roots.place) as watch:
        state, plan, _ = asyncio.run(wiring.run_study(_options(host, target, options), roots, watch=watch))
    return wiring.result_of(state, plan)


def resume(study: str, *, runs: str | Path = "runs", adopt_knowledge: bool = False) -> Document:
    """Goes on with an interrupted study and returns its result."""
    from optimizer.wiring.observing import observed

    _called("resume", study=(study, str, A_STUDY))
    _outside_a_loop("resume")
    roots = _roots(runs)
    place = roots.study(study)
    with observed(None, lambda _: place) as watch:
        state, plan, _ = asyncio.run(wiring.resume_study(study, roots, watch=watch, adopt=adopt_knowledge))
    return wiring.result_of(state, plan)


def plan(host: str, target: str | Sequence[str] = (), *, options: Options | None = None, runs: str | Path = "runs") -> Document:
    """What ``run`` would do; reads only."""
    from optimizer.wiring.planning import plan_study

    _called("plan", host=(host, str, A_HOST), target=(target, (str, Sequence), A_TARGET))
    _outside_a_loop("plan")
    return asyncio.run(plan_study(_options(host, target, options), _roots(runs)))


def diagnose(host: str | None = None, evidence: str | Path | Sequence[str | Path] = (), *, port: int | None = None, engine: str | None = None) -> Document:
    """Ranked causes of a live server, or of one bundle of evidence (a second one is the baseline of the comparison); reads only."""
    evidence = (evidence,) if isinstance(evidence, str | Path) else evidence
    _called("diagnose", host=("" if host is None else host, str, A_HOST), evidence=(evidence, Sequence, "a path or a list of one or two"))
    if (host is None) == (not evidence):
        raise UsageError("Give either a host or evidence.", hint='Example: diagnose("localhost")')
    if host is not None:
        _outside_a_loop("diagnose")
        found = asyncio.run(wiring.diagnose_host(host, _roots("runs"), port=port, engine=engine))
    else:
        found = wiring.diagnose_bundle([Path(path) for path in evidence], _roots("runs"))
    document: Document = found.to_json()
    return document


def doctor(host: str, *, options: Options | None = None, runs: str | Path = "runs") -> Document:
    """What would go wrong on a box; reads only, and a box that cannot be reached is a finding, no error."""
    from optimizer.wiring.examining import examine_host

    _called("doctor", host=(host, str, A_HOST))
    _outside_a_loop("doctor")
    return asyncio.run(examine_host(_options(host, (), options), _roots(runs)))


def studies(*, runs: str | Path = "runs") -> list[Document]:
    """One row per study, newest first."""
    from optimizer.report.journal_view import study_rows

    return study_rows(_roots(runs).names())


def story(study: str, *, hypothesis: str | None = None, runs: str | Path = "runs") -> Document:
    """The journal: every entry with its sentence and its body."""
    from optimizer.report.journal_view import journal_document

    _called("story", study=(study, str, A_STUDY))
    return journal_document(_roots(runs).study(study), hypothesis=hypothesis)


def why(study: str, what: int | str, *, runs: str | Path = "runs") -> Document:
    """One entry (its number) with everything that led to it, or why a setting (its name) was set."""
    from optimizer.wiring.asking import why as answer

    _called("why", study=(study, str, A_STUDY), what=(what, (int, str), "an entry's number or a setting's name"))
    return answer(study, what, _roots(runs))


def why_not(study: str, setting: str, *, runs: str | Path = "runs") -> Document:
    """What ruled a setting in or out, or what its test would cost."""
    from optimizer.wiring.asking import why_not as answer

    _called("why_not", study=(study, str, A_STUDY), setting=(setting, str, "a setting or a cause, as text"))
    return answer(study, setting, _roots(runs))


def replay(study: str, *, verify: bool = True, runs: str | Path = "runs") -> Document:
    """Every decision of a study recomputed and compared with the recorded one."""
    from optimizer.wiring.replaying import replay_study

    _called("replay", study=(study, str, A_STUDY))
    if not verify:
        _outside_a_loop("replay")
    return replay_study(study, _roots(runs), verify=verify, until=None)


def report_document(study: str, *, runs: str | Path = "runs") -> Document:
    """Everything that a report shows."""
    import json

    from optimizer.wiring.reporting import report_of

    document: Document = json.loads(report_of(_roots(runs).study(study), "json"))
    return document


def compare(before: str, after: str, *, best: bool = False, runs: str | Path = "runs") -> Document:
    """Two studies side by side: speed, resolved defaults, start-up facts, what to put back."""
    from optimizer.wiring.reporting import compare_studies

    roots = _roots(runs)
    return compare_studies(roots.study(before), roots.study(after), best=best)
