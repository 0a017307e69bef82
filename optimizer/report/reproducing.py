"""The commands that show a study's figures again: its decisions from the journal, its speed from the server. Text; nothing else."""

from __future__ import annotations

import json
import shlex

from optimizer.core.state import State
from optimizer.model.study import StudySpec
from optimizer.model.workload import Workload

WORKLOAD_FILE = "workload.json"
# Fields of a workload that `optimize bench` takes as options; another field than these needs the file.
_OPTIONS = {
    "api": "--api", "prompt_tokens": "--prompt-tokens", "output_tokens": "--output-tokens", "window_s": "--window", "warmup_min_s": "--warmup",
    "warmup_max_s": "--warmup-max", "slo": "--slo",
}  # fmt: skip
_OF_THE_STUDY = {"name", "concurrency", "side_levels", "side_window_s", "confirm_window_s", "rate_per_s", "percentiles"}


def bench_command(spec: StudySpec) -> str:
    """What measures the running server under the study's load, without a study. A simulated box has no server of its own: there the
    address is that of `launch.sh`."""
    load = spec.workload
    if spec.host.kind == "sim":
        words = ["optimize", "bench", f"http://127.0.0.1:{_port(spec)}"]
    else:
        words = ["optimize", "bench", "--host", spec.host.name, *(["--port", str(spec.port)] if spec.port is not None else [])]
    if load.arrival == "closed":
        words += ["--concurrency", ",".join(str(level) for level in (load.concurrency, *load.side_levels))]
    elif load.rate_per_s is not None:
        words += ["--rate", f"{load.rate_per_s:g}"]
    usual = Workload()
    changed = {name for name in Workload.model_fields if getattr(load, name) != getattr(usual, name)} - _OF_THE_STUDY
    if load.arrival == "poisson":  # as --rate has it
        changed.discard("arrival")
    if not changed <= _OPTIONS.keys():
        words += ["--workload", f"runs/{spec.study}/{WORKLOAD_FILE}"]
    else:
        for name, option in _OPTIONS.items():
            if name in changed or name in ("prompt_tokens", "output_tokens", "window_s"):
                value = getattr(load, name)
                words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _start(spec: StudySpec) -> str:
    """A simulated box's engine lies in the box's own folder."""
    return f"cd runs/{spec.study} && PYTHONPATH=box/sim-{spec.host.name.removeprefix('sim:')}/site ./launch.sh" if spec.host.kind == "sim" else "./launch.sh"


def _port(spec: StudySpec) -> str:
    argv = list(spec.launch.argv) if spec.launch is not None else []
    return argv[argv.index("--port") + 1] if "--port" in argv[:-1] else "PORT"


def workload_file(spec: StudySpec) -> dict[str, str]:
    """``{file name: text}`` of the load, whole, where options alone cannot say it."""
    return {WORKLOAD_FILE: json.dumps(spec.workload.plain(), indent=1, ensure_ascii=False) + "\n"} if WORKLOAD_FILE in bench_command(spec) else {}


def commands(state: State) -> list[tuple[str, str]]:
    """(command, what it shows), in the order in which somebody would type them."""
    if state.spec is None:
        return []
    study = state.spec.study
    clock = f"; the box's clock runs {state.spec.time_scale:g} times as fast as yours, and so do its rates" if state.spec.time_scale != 1 else ""
    return [
        (_start(state.spec), "starts the measured settings, without this tool"),
        (bench_command(state.spec), f"measures the server that then runs, under the study's load{clock}"),
        (f"optimize replay {study} --verify", "recomputes every decision from the journal"),
        (f"optimize journal {study}", "the story; --why SEQ for one entry"),
    ]
