"""What a study leaves behind: ``report.md``, and the files that start the winner elsewhere. Every number carries its
unit, the launches behind it and its interval."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Protocol

from optimizer.core import forensics
from optimizer.core.closing import PLAIN_ENDINGS, is_confirmed_better, summary
from optimizer.core.plan import Plan
from optimizer.core.state import State
from optimizer.engines import deploy
from optimizer.engines.base import Command, Engine
from optimizer.engines.deploy import Deployment
from optimizer.engines.members import MemberCommand
from optimizer.engines.script import render, render_members
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.settings import Settings
from optimizer.model.step import Launch
from optimizer.model.verdict import given_up
from optimizer.report import reproducing
from optimizer.report.asking_view import facts_text
from optimizer.report.both_sides import both_sides, both_sides_markdown
from optimizer.report.document import changes_kept, entries_of, left, ruled_out, trials, untried
from optimizer.report.front_view import front_markdown
from optimizer.report.kept import explained
from optimizer.report.prose import changes_text, gain_text, interval_text, number, result_text, reworded, sentence
from optimizer.report.search_view import search_markdown
from optimizer.report.setup import AT_THE_END, CONFIDENCE, FEW, both_levels, confidence_text, setup, simulated_text
from optimizer.report.status import status_text


class Commander(Protocol):
    """What knows how a launch is spelled on this box."""

    def command_of(self, step: Launch) -> Command: ...

    def commands_of(self, step: Launch) -> Sequence[MemberCommand]: ...

    @property
    def adapter(self) -> Engine: ...

    @property
    def session(self) -> Any: ...


def launch_files(commander: Commander, state: State, plan: Plan) -> dict[str, str]:
    """What starts the best settings that were confirmed, else the original command line: ``launch.sh`` with ``env.sh``, the same as
    a systemd unit, a compose file and a Kubernetes manifest, and ``changes.diff`` against what ran before."""
    better = is_confirmed_better(state)
    settings = state.baseline if better else Settings()
    context, adapter = commander.session.known, commander.adapter
    study = state.spec.study if state.spec else ""
    result = summary(state, plan)["best" if better else "baseline"]
    comments = [
        f"Written by optimize, study {study}.",
        f"{'Nothing was measured' if result.get('value') is None else f'Measured: {result_text(result)}'}; the load: {state.spec.workload.text if state.spec else ''}.",
        *([simulated] if (simulated := simulated_text(state)) else []),
        "Changed against the original command line:" if settings.values else "Nothing was changed against the original command line.",
    ]
    changed = {name: value for name, value in sorted(settings.values.items()) if value is not None or name in state.given}
    if context.launch.members:
        health = adapter.ready(1).probe.path
        now, then = (render_members(_members(commander, one), {}, health) for one in (settings, Settings()))
        return {**render_members(_members(commander, settings), changed, health, comments), "changes.diff": _difference(then, now)}
    command, before = _command(commander, settings), _command(commander, Settings())
    values = {**state.given, **settings.values}
    here = _on_its_box(command, state, context.model_path)
    scripts = render(here, changed, comments)
    identity = adapter.identity(command.argv, commander.session.flags)
    gpus, nodes = _gpus(adapter, values, context.gpu_count, command.env)
    version = context.engine_version or str(state.evidence.value("engine.version") or "")
    carried = Deployment(
        name=f"optimize-{study}", port=identity.port, health_path=adapter.ready(identity.port).probe.path, listens_on=identity.host, gpus=gpus, nodes=nodes,
        start_s=max(commander.session.ready_s.values(), default=0.0), image=adapter.image_of(version, gpu=gpus > 0), program=adapter.image_program or None,
        cwd=context.launch.cwd, model_path=context.model_path,
        notes=(*comments, *(changes_text({name: value}) for name, value in changed.items())),
    )  # fmt: skip
    return {**scripts, **deploy.files(command, carried), "optimized.service": deploy.systemd_unit(here, carried), "changes.diff": _difference(render(before, {}), render(command, {}))}


def _gpus(adapter: Engine, values: Mapping[str, Any], of_box: int, env: Mapping[str, str | None]) -> tuple[int, int]:
    """(GPUs that the command uses on its box, nodes that run the model together). An engine without parallel sizes spreads over what it sees."""
    nodes = values.get("nnodes")
    nodes = nodes if isinstance(nodes, int) and nodes > 1 else 1
    shown = env.get("CUDA_VISIBLE_DEVICES")
    visible = of_box if shown is None else len([item for item in shown.split(",") if item.strip() not in ("", "-1")])
    if not visible:
        return 0, nodes
    return (-(-adapter.gpus_of(values) // nodes) if adapter.parallel_params else visible), nodes


def _on_its_box(command: Command, state: State, model_path: str | None) -> Command:
    """The same where it was measured. The engine of a simulated box lies in the box's own folder, beside its models."""
    if not simulated_text(state) or not model_path or len(PurePosixPath(model_path).parents) < 2:  # described by hand, with a path of its own
        return command
    return Command(argv=command.argv, env={"PYTHONPATH": str(PurePosixPath(model_path).parents[1] / "site"), **command.env})


def _final(settings: Settings) -> Launch:
    return Launch(key="0", settings=settings, purpose="final", port=1, served_name=None)


def _members(commander: Commander, settings: Settings) -> Sequence[MemberCommand]:
    return commander.commands_of(_final(settings))


def _command(commander: Commander, settings: Settings) -> Command:
    """The whole command line under the original's port and name, with its whole environment."""
    command = commander.command_of(_final(settings))
    return Command(argv=command.argv, env={**commander.session.known.launch.env, **command.env})


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A unified diff of the two scripts; empty when nothing was changed."""
    parts = [
        line if line.endswith("\n") else f"{line}\n"
        for name in sorted(after)
        for line in difflib.unified_diff(before[name].splitlines(True), after[name].splitlines(True), f"before/{name}", f"after/{name}")
    ]
    return "".join(parts)


def report_markdown(entries: Sequence[Entry], state: State, plan: Plan) -> str:
    """The study as Markdown, the answer first."""
    result = dict(state.closed) if state.closed is not None else {**summary(state, plan), "ending": "open", "reason": "The study is not closed."}
    result["hypotheses"] = explained(entries, state, result["hypotheses"])
    ending = PLAIN_ENDINGS.get(result["ending"], result["ending"])
    lines = [
        f"# Study {result['study']}: {ending}",
        "",
        result["reason"],
        "",
        *([f"**{simulated}**", ""] if (simulated := simulated_text(state)) else []),
        "| | |",
        "|---|---|",
        *(f"| {what} | {value} |" for what, value in setup(entries, state)),
        f"| target | {result['target']} |",
        f"| workload | {result['workload']} |",
        f"| baseline | {result_text(result['baseline'])} |",
        f"| best | {result_text(result['best'])} |",
        *([f"| gain | {gain_text(gained)} |"] if (gained := forensics.gain(state)) is not None else []),
        *([f"| confidence | {sure} |"] if (sure := confidence_text(state)) else []),
        f"| launches | {result['launches']} after the baseline, {result['launches_baseline']} for it |",
        f"| time | {result['minutes']:.1f} minutes |",
        f"| launch-to-launch noise | {100 * result['noise']['sd']:.1f} % ({result['noise']['degrees_of_freedom']:g} degrees of freedom), {AT_THE_END} |",
        "",
        CONFIDENCE,
        "",
    ]
    lines += _levels(result)
    lines += _boxes(result)
    lines += _changes(entries, state, plan)
    lines += front_markdown(state)
    lines += _answers(result, state)
    lines += _waterfall(state)
    lines += _trials(state)
    lines += _hypotheses(result)
    lines += both_sides_markdown(both_sides(entries, result["hypotheses"], plan))
    lines += _ruled_out_by_measurement(entries)
    lines += _ruled_out(state)
    lines += _refusals(state)
    lines += _flips(state)
    lines += search_markdown(entries)
    lines += _left(entries, state, untried(result["hypotheses"], plan, state))
    lines += ["## The journal", ""]
    lines += [f"{entry.seq}. {sentence(entry)}" for entry in entries if entry.kind not in (EntryKind.LEASE_TAKEN,)]
    lines += ["", "## Reproduce", "", *(f"- `{command}`: {what}" for command, what in reproducing.commands(state)), "",
              "Of a single server, `optimized.service`, `compose.yaml` and `kubernetes.yaml` carry the same command as `launch.sh`; "
              "`changes.diff` shows it against what ran before.", ""]  # fmt: skip
    return "\n".join(lines)


def _left(entries: Sequence[Entry], state: State, ideas: Sequence[Mapping[str, Any]]) -> list[str]:
    """What no setting of the study won back, who could, and who was handed the rest."""
    rows = [f"- {100 * part['share']:.1f} % of the time in {part['bucket']} ({part['basis']}): {part['who']}" for part in left(entries)]
    rows += [f"- No setting of this server mends {item.get('hypothesis', '')}: {item['why']} (entry {item['entry']}; the HTML report has the sheet with shapes and lines)"
             for item in state.refusals if item.get("kind") == "hand_over"]  # fmt: skip
    rows += [f"- Not tried: {item['id']} (probability {item['probability']:.2f}): {item['claim']}" for item in ideas]
    return ["## What is left on the table", "", *(rows or ["Nothing that the evidence shows."]), ""]


def _levels(result: Mapping[str, Any]) -> list[str]:
    rows = []
    before = {level["concurrency"]: level for level in result["baseline"].get("levels", [])}
    for level in result["best"].get("levels", []):
        was = before.get(level["concurrency"], {})
        rates, first, each, requests = both_levels(was, level)
        rows.append(f"| {level['concurrency']} | {rates[0]} | {rates[1]} | {' → '.join(first)} | {' → '.join(each)} | {' → '.join(requests)} |")
    if not rows:
        return []
    return ["## By concurrency (last launch of each, no interval)", "", "| concurrency | before, tok/s | after, tok/s | TTFT p50, ms | TPOT p50, ms | whole requests in the window |",
            "|---|---|---|---|---|---|", *rows, "", FEW, ""]  # fmt: skip


def _trials(state: State) -> list[str]:
    """Every setting that was launched, with its launches and the interval of their mean."""
    rows = []
    for trial in trials(state):
        mean = interval_text(trial["interval"][0], trial["interval"][1], trial["value"], trial["unit"]) if trial["interval"] else "none"
        each = ", ".join(number(item["value"]) for item in trial["launches"]) or "none"
        remarks = [f"infeasible: {trial['crashed']}"] * bool(trial["crashed"]) + [f"{item['said']}: {item['why']}" for item in trial["invalid"]]
        remarks += [f"confirmed by a fresh launch: {number(trial['confirmed'])}"] * (trial["confirmed"] is not None)
        rows.append(f"| `{trial['text']}` | {mean} | {each} | {'; '.join(remarks).replace('|', '/')} |")
    return ["## What was measured", "", "| setting | mean, 95 % interval over launches | each launch | remarks |", "|---|---|---|---|", *rows, ""] if rows else []


def _boxes(result: Mapping[str, Any]) -> list[str]:
    """What each of several boxes did; empty where the study has one. Their baselines differ as boxes of one class do."""
    rows = result.get("boxes") or []
    lines = ["## Boxes", "", "Each was compared with its own baseline alone; the result above is of one of them.", "", "| box | baseline, mean of its launches | launches | minutes | now |", "|---|---|---|---|---|"]
    for row in rows:
        first = f"{number(row['baseline'])} ({row['baseline_launches']})" if row["baseline"] is not None else "not measured"
        now = f"lost: {row['lost']}" if row["lost"] else f"left the study: {row['left']} {row['runs']}" if row["left"] else row["runs"]
        lines.append(f"| {row['box']} | {first} | {row['launches']} | {row['minutes']:.1f} | {now} |")
    return [*lines, ""] if rows else []


def _changes(entries: Sequence[Entry], state: State, plan: Plan) -> list[str]:
    """Each change with the causes that it cures and the measurement behind it; what was rolled back later is left out."""
    lines = []
    for change in changes_kept(entries, state, plan):
        claims = "; ".join(f"{cause['id']}: {cause['claim'].rstrip('.')}" for cause in change["causes"])
        lines.append(f"- `{change['text']}`: {claims}. Measured {change['measured']} (kept at entry {change['entry']})")
    return ["## What was changed, and why", "", *lines, ""] if lines else []


def _answers(result: Mapping[str, Any], state: State) -> list[str]:
    """Whether the settings that were kept change what the model answers."""
    found = result.get("answers")
    if found is None:
        return []
    word = {"same": "unchanged", "changed": "changed", "cannot_tell": "it cannot be told"}[found["verdict"]]
    whose = "your probes" if state.spec is not None and state.spec.probes else "fixed probes"
    return [
        "## Answers", "",
        f"The best settings against the server as found, on {found['prompts']} {whose} with greedy decoding: **{word}**. {found['why'][:1].upper()}"
        f"{found['why'][1:]}. Tokens before the first difference: {100 * found['agreement']:.0f} %; the server as found against itself: "
        f"{100 * found['reference_agreement']:.0f} %.", "",
    ]  # fmt: skip


def _waterfall(state: State) -> list[str]:
    body = state.ceiling
    if body is None:
        return []
    if body.get("unknown"):
        return ["## Where the time goes", "", f"No ceiling: {body['unknown']}", ""]
    rows = [f"| {part['bucket']} | {100 * part['share']:.1f} % | {part['basis']} | {part['why']} |" for part in body["lost"]]
    return [
        "## Where the time goes", "",
        f"Roofline {number(body['ceiling_tokens_per_s'])} tok/s at concurrency {body['concurrency']}, measured {number(body['measured_tokens_per_s'])}, "
        f"about {number(body['reachable_tokens_per_s'])} if what is known to go to queue, launches and collectives were won back.", "",
        "| bucket | share of the time | basis | why |", "|---|---|---|---|", *rows, "",
        *[f"- {note}" for note in body.get("notes", [])], "",
    ]  # fmt: skip


def _hypotheses(result: Mapping[str, Any]) -> list[str]:
    rows = [
        f"| {row['id']} | {row['family']} | {row['probability']:.2f} | {status_text(row['detail'])} | {row['reason']} |"
        for row in sorted(result["hypotheses"], key=lambda row: -float(row["probability"]))
    ]
    return ["## Hypotheses", "", "| cause | family | probability | status | measured |", "|---|---|---|---|---|", *rows, ""] if rows else []


def _ruled_out_by_measurement(entries: Sequence[Entry]) -> list[str]:
    told: dict[str, list[dict[str, Any]]] = {"ruled out": [], "given up, not ruled out": []}
    for item in entries_of(entries, EntryKind.PRUNED):
        told["given up, not ruled out" if given_up(item) else "ruled out"].append(item)
    told["left undecided"] = entries_of(entries, EntryKind.DEFERRED)
    rows = [f"- {item['hypothesis']} ({item['changes'] or 'a point of its space'}), {how}: {reworded(item['why'])} (entry {item['entry']})" for how, items in told.items() for item in items]
    return ["## Ruled out or left undecided by a measurement", "", *rows, ""] if rows else []


def _ruled_out(state: State) -> list[str]:
    rows = []
    for item in ruled_out(state):
        facts = facts_text([against for against in item["against"] if "fact" in against])
        rows.append(f"- {item['id']} ({item['family']}): {'; '.join(facts) or 'by another cause'}")
    return ["## Ruled out by evidence alone, without a launch", "", *rows, ""] if rows else []


def _refusals(state: State) -> list[str]:
    rows = [f"- {changes_text(item.get('params', {})) if item.get('params') else item.get('hypothesis')}: {item['why']} ({item['kind']}, entry {item['entry']})"
            for item in state.refusals]  # fmt: skip
    return ["## Not launched, and why", "", *rows, ""] if rows else []


def _flips(state: State) -> list[str]:
    rows = [f"- {flip['fact']}: {flip['before']} → {flip['after']}{'' if flip.get('expected') else ' (not expected)'}" for flip in state.flips]
    return ["## Start-up facts that changed", "", *rows, ""] if rows else []
