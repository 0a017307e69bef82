"""``replay``: a recorded study or any table of measurements, decided over again without a box."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import click

from optimizer.cli.base import json_option, print_json, roots_of, say, wants_json
from optimizer.cli.completing import study_names
from optimizer.errors import UsageError


def _listed(texts: tuple[str, ...] | str) -> tuple[str, ...]:
    parts = [texts] if isinstance(texts, str) else list(texts)
    return tuple(name.strip() for text in parts for name in text.split(",") if name.strip())


# Which way of replaying an option belongs to; what belongs to another one would say nothing, and is refused instead of left aside.
_POLICY, _TABLE, _DECISIONS = "--policy", "--table", "--verify"
_BELONGS: dict[str, tuple[str, ...]] = {
    "verify": (_DECISIONS,), "until": (_DECISIONS,), "policy": (_POLICY,), "start": (_POLICY,), "concurrency": (_POLICY,),
    "objective": (_POLICY, _TABLE), "seeds": (_POLICY, _TABLE),
    **dict.fromkeys(("params", "group", "where", "policies", "direction", "default_", "launches", "logs", "baseline"), (_TABLE,)),
}  # fmt: skip
_SAYS = {
    _DECISIONS: "A recorded study is decided over again, by the policy that it had and once",
    _POLICY: "--policy lets another policy choose among what a study measured",
    _TABLE: "--table lets policies compete on a table, which holds no decisions",
}
_INSTEAD = {
    _DECISIONS: "optimize replay STUDY [--verify] [--until N]",
    _POLICY: "optimize replay STUDY --policy evidence|tpe|gp|random|FILE.json [--from LAUNCH] [--seeds N]",
    _TABLE: "optimize replay --table FILE.csv --params a,b --objective c [--policies …] [--seeds N]",
}


def _refuse_what_says_nothing(ctx: click.Context, way: str) -> None:
    """Raises UsageError for an option that was given and does not belong to this way of replaying."""
    given = [param for param in ctx.command.params if param.name in _BELONGS and ctx.get_parameter_source(param.name) is click.core.ParameterSource.COMMANDLINE]
    for param in given:
        belongs = _BELONGS[str(param.name)]
        if way not in belongs:
            raise UsageError(f"{param.opts[0]} says nothing here. {_SAYS[way]}.", hint=f"{param.opts[0]} belongs to: {'; or '.join(_INSTEAD[one] for one in belongs)}")


def _above_0(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (0 < value < math.inf):
        raise UsageError(f"--baseline {value:g} is no measurement.", hint="It is what the rows' objective was before any of them: a number above 0.")
    return value


@click.command()
@click.argument("study", required=False, shell_complete=study_names)
@click.option("--verify", is_flag=True, help="Recompute every decision and compare it with the recorded one.")
@click.option("--until", type=click.IntRange(1), help="Replay only up to this entry.")
@click.option("--policy", metavar="NAME|FILE", help="Let another policy choose among what was measured: evidence, tpe, gp, random, or a JSON list of changes.")
@click.option("--from", "start", help="With --policy: the launch to start from. Default: the baseline.")
@click.option("--concurrency", type=click.IntRange(1), help="With --policy on a folder of recorded launches: the load that counts.")
@click.option("--table", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="A CSV of measurements instead of a study.")
@click.option("--params", help="Its columns that are parameters: a,b,c. A column of JSON objects gives one for each key.")
@click.option("--objective", help="Its column to optimise. The name tells whether more is better (see --direction).")
@click.option("--group", multiple=True, help="Columns whose rows are compared only among themselves.")
@click.option("--where", multiple=True, metavar="COL=VALUE", help="Only rows with this value (nothing after = means empty).")
@click.option("--policies", default="evidence,tpe,gp,random", show_default=True, help="Who competes.")
@click.option("--seeds", type=click.IntRange(1, 1_000_000), help="Runs of each policy that has luck. Default: 20.")
@click.option("--direction", type=click.Choice(["max", "min"]), help="Is more or less better? Default: told by the column's name.")
@click.option("--default", "default_", metavar="COL=VALUE,…", default="", help="The untuned configuration. Default: the group's first row.")
@click.option("--launches", type=click.IntRange(1, 100_000), default=200, show_default=True, help="At most this many in a run.")
@click.option("--logs", metavar="PATTERN", default="", help="The server log of each row, columns in braces: logs/trial_{trial}/server.log")
@click.option("--baseline", type=float, callback=_above_0, help="With --logs: what was measured before any of the rows.")
@json_option
@click.pass_context
def replay(
    ctx: click.Context, study: str | None, verify: bool, until: int | None, policy: str | None, start: str | None, concurrency: int | None, table: Path | None, params: str | None, objective: str | None,
    group: tuple[str, ...], where: tuple[str, ...], policies: str, seeds: int | None, direction: str | None, default_: str, launches: int,
    logs: str, baseline: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Drive a recorded study again, without its box. STUDY is a name or a folder.

    With --table, let policies compete on any table of measurements instead: launches to 90, 95 and 99 % of the best, regret
    after each launch, and the untuned default beside them."""
    json_wanted = wants_json(ctx, as_json)
    if (study is None) == (table is None):
        raise UsageError("Name either a study or a --table.", hint="optimize replay STUDY, or optimize replay --table FILE.csv --params a,b --objective c")
    _refuse_what_says_nothing(ctx, _TABLE if table is not None else _POLICY if policy is not None else _DECISIONS)
    if table is not None:
        if not params or not objective:
            raise UsageError("--table needs --params and --objective.", hint="--params tp,max_num_seqs --objective output_tps")
        from optimizer.wiring.tables import TableOptions, replay_table

        found = replay_table(
            TableOptions(
                table=table, params=_listed(params), objective=objective.strip(), group=_listed(group), where=where, policies=_listed(policies),
                seeds=seeds or 20, direction="max" if direction == "max" else "min" if direction == "min" else None, default=default_, launches=launches,
                logs=logs, baseline=baseline,
            ),
            roots_of(ctx),
        )  # fmt: skip
    elif policy is not None:
        from optimizer.wiring.recordings import PolicyOptions, is_recordings, replay_policy

        assert study is not None
        folder = Path(study) if is_recordings(Path(study)) else roots_of(ctx).named(study)
        found = replay_policy(
            folder, roots_of(ctx), PolicyOptions(policy, start, concurrency, objective.strip() if objective else None, seeds)
        )
    else:
        from optimizer.wiring.replaying import replay_study

        assert study is not None
        found = replay_study(study, roots_of(ctx), verify=verify, until=until)
    if json_wanted:
        print_json(found)
    else:
        say(found["text"])
    sys.exit(0 if found.get("identical", True) else 6)
