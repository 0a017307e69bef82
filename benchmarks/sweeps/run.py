"""The long sweeps: whole studies on a real server process, disturbed at one place after another, far more of them than the tests can
afford. Each case is one study on a box of its own; what it must end as is asserted on the box itself.

    python benchmarks/sweeps/run.py kills --first 1 --count 1000 --jobs 8 --out kills.jsonl    # the coordinator killed at random again and again
    python benchmarks/sweeps/run.py signals gone roles                                       # every case of these three
    python benchmarks/sweeps/run.py all --for 7200                                           # whatever fits, taken in turn from every family
    python benchmarks/sweeps/run.py kills --count 1000 --for 0 --out kills.jsonl --out there.jsonl   # what these files hold, nothing is run

A line for each case goes to stderr and, as JSON, to the first ``--out``; cases that passed in any of these files are not run again. The counts
go to stdout as JSON; exit 1 if a case failed. A case takes half a minute to a minute, most of it waiting: a machine carries three times as
many jobs as it has CPUs."""

from __future__ import annotations

import argparse
import compileall
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.sweeps import spread  # noqa: E402
from benchmarks.sweeps.forking import Forked, Forks  # noqa: E402
from tests.crash.killing import (  # noqa: E402
    MET,
    PROMOTED,
    finished,
    kill_at_moments,
    kill_at_random,
    killed,
    random_gaps,
    random_moments,
)
from tests.e2e.fastbox import FastBox, check_ledger, entries, wait_until  # noqa: E402
from tests.e2e.pdbox import NAMES, PDBox  # noqa: E402

# The product of this checkout, whether or not one is installed. How it got there is on the path that each worker process is given.
PATHS = [str(REPOSITORY), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
FROM_HERE = f"import sys; sys.path[:0] = {PATHS!r}; "
FastBox.tool = (sys.executable, "-c", FROM_HERE + "from optimizer.__main__ import main; main()")


class Case(NamedTuple):
    name: str
    run: Callable[[Path], dict[str, Any] | None]  # in a folder of its own; returns what its line shall tell besides


# Where a study is when something happens to it: phase -> the passage that tells of it.
PHASES = {
    "look": "box.hello.after:1",
    "lock": "box.lock.after:1",
    "guard": "box.secure.after:1",
    "calibrate": "box.run_job.output:5",
    "measure the baseline": "box.run_job.output:16",
    "decide": "loop.before_intent:6",
    "launch": "box.launch.after:1",
    "prove identity": "box.listeners.after:1",
    "measure a launch": "box.run_job.output:34",
    "stop a launch": "box.sweep.before:2",
    "launch again": "box.launch.after:2",
    "close": "box.order.before:1",
}


def words_of(box: FastBox, study: str, owned: bool, *more: str) -> list[str]:
    if owned:
        box.serve()
    return box.study(study, "--finish", "restore", *more, launch=not owned)


def left_as_found(box: FastBox, owned: bool) -> None:
    box.assert_clean(serving=owned)
    assert box.serving_argv() == ([box.argv] if owned else []), box.serving_argv()


# ---- the coordinator killed at random: at a passage of a named point, or from outside at any moment ---------------------------


class ForkedBox(FastBox):
    """Its coordinators are forked from a process that has loaded the product."""

    forks: Forks

    def start(self, *words: str, **env: str) -> Any:
        number = len(self.processes)
        with (self.here / f"{number}.out").open("w") as out, (self.here / f"{number}.err").open("w") as err:
            process = self.forks.start(self.command(*words)[len(self.tool) :], {**self.env, **env}, self.here, out, err)
        process.number = number  # type: ignore[attr-defined]
        self.processes.append(process)  # type: ignore[arg-type]
        return process


def kills(seed: int, folder: Path, killed_from: Callable[[FastBox, str], int]) -> dict[str, Any]:
    """Of ten seeds nine fork their coordinators, one begins each with a new interpreter."""
    new = seed % 10 == 0
    if not new and not hasattr(ForkedBox, "forks"):
        ForkedBox.forks = Forks(Path(os.environ["HOME"]))
    box = FastBox(folder) if new else ForkedBox(folder)
    try:
        study = spread.name_with_ports(f"random{seed}")
        deaths = killed_from(box, study)
        done = finished(box, study)
        cpu_s = sum(process.cpu_s for process in box.processes if isinstance(process, Forked))
        return {"seed": seed, "study": study, "deaths": deaths, "launches": done.json["launches"], "started": len(box.starts()), "new_interpreters": new, "cpu_s": cpu_s}
    finally:
        box.close()


# ---- Ctrl-C, SIGTERM, Ctrl-C twice ----------------------------------------------------------------------------------------


def signalled(box: FastBox, phase: str, how: str) -> None:
    name, count = PHASES[phase].split(":")
    trace = box.folder / "trace"
    trace.write_text("")
    process = box.start(*words_of(box, "signalled", True), OPTIMIZER_CRASH_TRACE=str(trace))

    def there() -> bool:
        assert process.poll() is None, f"it ended before: {box.told(process)}"
        return trace.read_text().split().count(name) >= int(count)

    wait_until(there, 120, phase)
    process.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGINT)
    if how == "twice":
        time.sleep(0.6)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    done = box.finish(process, 75)
    assert "Traceback" not in done.err, done.err
    if done.exit == 5:  # allowed where the guard is slower than ten seconds: it goes on by itself, and `stop` closes
        assert how == "twice" and "optimize stop signalled" in done.err, done.err
        wait_until(lambda: box.answers() and not box.marked(), 60, "the guard brings the original back")
        assert box("stop", "signalled", "--json").exit == 0
    else:
        allowed = [(130, "interrupted")] + ([(0, "met")] if phase == "close" else [])
        assert (done.exit, done.json["ending"]) in allowed, (done.exit, done.err)
    left_as_found(box, True)
    check_ledger(box, "signalled")
    assert entries(box.runs / "signalled")[-1].kind == "closed"
    assert box("replay", "signalled", "--verify", "--json").json["identical"]


# ---- the box's sshd killed ------------------------------------------------------------------------------------------------


def sshd_killed(box: FastBox, phase: str) -> None:
    """With all its sessions, by SIGKILL; a second later another one listens. The study ends as if it had held."""
    name, count = PHASES[phase].split(":")
    from tests.e2e.sshbox import SshBox
    from tests.ssh.conftest import Sshd

    trace, folder = box.folder / "trace", box.folder / "sshd"
    trace.write_text("")
    folder.mkdir()
    server = Sshd(folder)
    server.start(**box.env)
    there = SshBox(box, server.user, server.port, server.key_file, server.known_hosts)
    try:
        process = box.start(*there.study("link", "--finish", "restore"), **{**there.env, "OPTIMIZER_CRASH_TRACE": str(trace)})

        def reached() -> bool:
            assert process.poll() is None, f"it ended before: {box.told(process)}"
            return trace.read_text().split().count(name) >= int(count)

        wait_until(reached, 120, phase)
        server.stop()
        time.sleep(1.0)
        server.start(**box.env)
        done = box.finish(process)
        assert done.decision == MET, done.err
        box.assert_clean()
        check_ledger(box, "link")
        assert there("replay", "link", "--verify", "--json").json["identical"]
    finally:
        server.stop()


# ---- the coordinator killed, and never back -------------------------------------------------------------------------------


def gone(box: FastBox, phase: str, owned: bool) -> None:
    assert killed(box, words_of(box, "gone", owned, "--guard-minutes", "0.5"), PHASES[phase]), "the point was not passed"
    wait_until(lambda: not box.marked() and box.answers() == owned, 90, "the guard gives the box back")
    assert box.serving_argv() == ([box.argv] if owned else [])
    done = box("stop", "gone", "--json")
    assert done.exit in (0, 5), done.err
    # What it had found better by then is said, and that no fresh launch has confirmed it.
    promoted = any(entry.kind == "promoted" for entry in entries(box.runs / "gone"))
    assert done.json["promoted"] == (PROMOTED if promoted else []), done.out
    assert phase == "close" or not (done.json.get("best") or {}).get("fresh_confirmation"), done.out
    left_as_found(box, owned)
    check_ledger(box, "gone")


# ---- deployments of prefill, decode and router -----------------------------------------------------------------------------


def role_boundary(box: PDBox, passage: int) -> None:
    """The coordinator dies at the boundary of a step that handles the roles, and is resumed."""
    box.serve()
    before = box.serving()
    words = box.study("roles", "--finish", "restore", launch=False)
    if killed(box, words, f"*:{passage}"):
        words = ["resume", "roles", "--json"]
    done = box(*words)
    assert done.decision[0] == "met", done.err
    assert box.serving() == before and box.answers()
    box.assert_clean(serving=True)
    assert box("replay", "roles", "--verify", "--json").json["identical"]


# The moments at which a role dies: text that the study has said by then, and seconds after it.
MOMENTS = {
    "launch": ("Launching (candidate)", 0.0), "readiness": ("Waiting until", 0.3), "window": ("(candidate): c=", 0.5), "late window": ("(candidate): c=", 1.5),
}  # fmt: skip


def is_role(words: list[str], role: str) -> bool:
    return ("sglang_router.launch_router" in words) if role == "router" else ("--disaggregation-mode" in words and role in words)


def struck(box: PDBox, study: str, role: str, told: str, after_s: float, blow: signal.Signals, *, owned: bool = False) -> list[dict[str, Any]]:
    """A study whose launch loses one role: ``blow`` is sent to its process ``after_s`` after the study has said ``told``, if it still lives.
    What was there before is there again in the end; returns the outcomes of the study's steps."""
    if owned:
        box.serve()
    before = box.serving()
    process = box.start(*box.study(study, "--finish", "restore", launch=not owned))

    def victim() -> int | None:
        assert process.poll() is None, box.told(process)
        if told not in box.told(process):
            return None
        ours = {pid for pid, launch in box.marked().items() if launch.startswith(f"{study}:")}
        return next((pid for pid in sorted(ours) if is_role(box.words_of(pid), role)), None)

    wait_until(victim, 120, f"{role} is there")
    time.sleep(after_s)
    if (pid := victim()) is not None:
        os.kill(pid, blow)
    done = box.finish(process)
    assert "Traceback" not in done.err, done.err
    assert box.serving() == before
    box.assert_clean(serving=owned)
    assert box("replay", study, "--verify", "--json").json["identical"]
    return [entry.body["outcome"] for entry in entries(box.runs / study) if entry.kind == "outcome"]


def role_dies(box: PDBox, role: str, moment: str, owned: bool) -> None:
    """The launch goes with it, nothing of what is left is used, and what was there before is there again."""
    told, after_s = MOMENTS[moment]
    outcomes = struck(box, "dies", role, told if owned else told.replace("(candidate)", "(baseline)"), after_s, signal.SIGKILL, owned=owned)
    failed = [one for one in outcomes if one["status"] == "failed"]
    assert failed and failed[0]["cause"] in ("crashed", "exited"), failed


def role_hangs(box: PDBox, role: str) -> None:
    """It answers nothing any more and does not end: the load comes to nothing, the launch is given up, and the study ends by itself."""
    outcomes = struck(box, "hangs", role, *MOMENTS["window"], signal.SIGSTOP, owned=True)
    bad = [one for one in outcomes if one["status"] == "failed" or any(point["invalid"] for point in one["body"].get("measurement", {}).get("points", []))]
    assert bad, "nobody noticed"


class Impatient(PDBox):
    """Its coordinators take a start whose log stands still for a hang after seconds instead of a quarter of an hour."""

    def command(self, *words: str) -> list[str]:
        python, _, _, *given = super().command(*words)
        return [python, "-c", FROM_HERE + "from optimizer.runner import execute; execute.SILENT_START_S = 10.0; from optimizer.__main__ import main; main()", *given]


def role_hangs_starting(box: PDBox, role: str) -> None:
    """It never becomes ready, while the others are: what was there before comes back, and the launch is not measured."""
    outcomes = struck(box, "late", role, "Waiting until", 0.0, signal.SIGSTOP, owned=True)
    failed = [one for one in outcomes if one["status"] == "failed"]
    assert failed and failed[0]["cause"] in ("hang_loading", "unresponsive"), failed
    assert role in failed[0]["message"] or failed[0]["cause"] == "unresponsive", failed


# ---- all of it --------------------------------------------------------------------------------------------------------------


def on_a_box(check: Callable[..., None], *given: Any, made: type[FastBox] = FastBox) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        box = made(folder)
        try:
            check(box, *given)
        finally:
            box.close()

    return run


def families(first: int, count: int) -> dict[str, list[Case]]:
    return {
        "kills": [Case(f"seed {seed}", partial(kills, seed, killed_from=partial(kill_at_random, gaps=random_gaps(seed)))) for seed in range(first, first + count)],
        "moments": [
            Case(f"seed {seed}", partial(kills, seed, killed_from=partial(kill_at_moments, moments=random_moments(seed)))) for seed in range(1, 101)
        ],
        "signals": [Case(f"{how} at: {phase}", on_a_box(signalled, phase, how)) for phase in PHASES for how in ("SIGINT", "SIGTERM", "twice")],
        "gone": [
            Case(f"killed at: {phase}, {'an original' if owned else 'none'}", on_a_box(gone, phase, owned)) for phase in PHASES for owned in (True, False)
        ],
        "sshd": [Case(f"killed at: {phase}", on_a_box(sshd_killed, phase)) for phase in PHASES],
        "hangs": [
            *(Case(f"{role} hangs in the window", on_a_box(role_hangs, role, made=PDBox)) for role in NAMES),
            *(Case(f"{role} hangs before it is ready", on_a_box(role_hangs_starting, role, made=Impatient)) for role in NAMES),
        ],
        "roles": [
            *(Case(f"{role} dies: {moment}, {'theirs' if owned else 'described'}", on_a_box(role_dies, role, moment, owned, made=PDBox))
              for moment in MOMENTS for role in NAMES for owned in (True, False)),
            *(Case(f"coordinator dies at passage {passage}", on_a_box(role_boundary, passage, made=PDBox)) for passage in range(12, 12 * 37, 12)),
        ],
    }  # fmt: skip


def told(line: spread.Line) -> None:
    more = f", {line['deaths']} deaths" if "deaths" in line else ""
    ended = f"{line['wall_s']:.0f} s{more}" if line["ok"] else f"FAILED ({line.get('evidence') or 'nothing kept'})\n{line['error']}"
    print(f"{line['family']}: {line['case']}: {ended}", file=sys.stderr, flush=True)


def commit() -> str:
    """Of this checkout, "" where it is none."""
    done = subprocess.run(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def one(family: str, name: str, folder: Path) -> dict[str, Any]:
    number = int(name.split()[1]) if family == "kills" else 1
    return next(case.run(folder) for case in families(number, 1)[family] if case.name == name) or {}


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        spread.work(int(sys.argv[2]), int(sys.argv[3]), one)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="+", choices=[*families(1, 0), "all"])
    parser.add_argument("--first", type=int, default=1, help="first seed of `kills`")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds of `kills`")
    parser.add_argument("--down", action="store_true", help="the last case of each family first")
    parser.add_argument("--only", default="", help="run the cases whose name holds this")
    parser.add_argument("--skip", type=int, default=0, help="cases of each family that were run before")
    parser.add_argument("--for", type=float, default=float("inf"), dest="for_s", metavar="SECONDS", help="begin no case after this time")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--out", type=Path, action="append", default=[], help="a file of results; what passed there is not run again, what is run now is appended to the first one")
    given = parser.parse_args()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell that sends this to the background has all below it ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    names = {name: [case.name for case in cases[given.skip :] if given.only in case.name] for name, cases in families(given.first, given.count).items() if name in given.family or "all" in given.family}
    known, here = spread.read(given.out), commit()
    lines = {(family, case): known[family, case] for family, cases in names.items() for case in cases if (family, case) in known}
    rows = zip_longest(*([(family, case) for case in (reversed(cases) if given.down else cases)] for family, cases in names.items()))
    wanted = [case for row in rows for case in row if case and not lines.get(case, {"ok": False})["ok"]]

    def add(line: spread.Line) -> None:
        line["commit"] = here
        lines[line["family"], line["case"]] = line
        if given.out:
            with given.out[0].open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        told(line)

    evidence = given.out[0].with_suffix(".failed").resolve() if given.out else None
    compileall.compile_dir(REPOSITORY / "optimizer", quiet=2)  # the simulated servers are told to write none, and compile all of theirs at each start
    spread.spread(wanted, [sys.executable, str(Path(__file__).resolve()), "--worker"], given.jobs, given.for_s, evidence, add)
    counts = {family: count(cases, [lines[family, case] for case in cases if (family, case) in lines]) for family, cases in names.items()}
    print(json.dumps(counts))
    sys.exit(any(row["failed"] for row in counts.values()))


def count(cases: list[str], lines: list[spread.Line]) -> dict[str, int]:
    deaths = {"deaths": sum(line.get("deaths", 0) for line in lines)} if any("deaths" in line for line in lines) else {}
    return {"run": len(lines), "failed": sum(not line["ok"] for line in lines), "of": len(cases), **deaths}


if __name__ == "__main__":
    main()
