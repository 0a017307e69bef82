"""A simulated box without processes: the box's own launch, scheduler, log and metrics on a virtual clock. An executor for the
real loop (the evidence that it reads is the text that the box would have written), and a plain function for samplers."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from optimizer.engines.registry import engine
from optimizer.engines.simulator.box import prepare_box, read_box
from optimizer.engines.simulator.simbox import arguments
from optimizer.engines.simulator.simbox.resolve import LaunchError, launch_physics, resolve
from optimizer.engines.simulator.simbox.scheduler import Scheduler, closed_loop
from optimizer.engines.simulator.simbox.shape import read_shape
from optimizer.engines.simulator.simbox.startup import script
from optimizer.engines.simulator.simbox.telemetry import Telemetry
from optimizer.evidence.bundle import Bundle, bundle_from_files
from optimizer.knowledge.library import Library
from optimizer.model.base import Value
from optimizer.model.flags import FlagTable
from optimizer.model.measurement import LoadPoint, Measurement
from optimizer.model.outcome import Done, Failed, Outcome
from optimizer.model.step import AwaitReady, Check, Launch, Measure, Observe, Propose
from optimizer.model.study import Budget, HostSpec, LaunchSpec, StudySpec
from optimizer.model.target import parse_target
from optimizer.model.workload import Workload
from optimizer.search.answer import answered
from optimizer.testing.in_memory import InMemoryExecutor

OOM = re.compile(r"out of memory|Not enough memory", re.IGNORECASE)


@dataclass(frozen=True)
class Run:
    """One launch and its benchmark. ``rate``: output tokens/s, None with ``failed``."""

    rate: float | None
    failed: str
    bundle: Bundle | None
    ttft_p50_ms: float = 0.0


class _Log:
    """The engine's log on the virtual clock."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.parts, self.now = ranks, list[str](), 0.0

    def line(self, text: str, rank: int | None = None) -> None:
        if text.startswith("\x00"):
            self.parts.append(text[1:] + ("" if text[1:].startswith("\r") else "\n"))
            return
        seconds = int(self.now)
        stamp = f"2026-01-01 {seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        self.parts.append(f"[{stamp}{f' TP{rank}' if rank is not None and self.ranks > 1 else ''}] {text}\n")

    def flush(self) -> None:
        pass


class SimulatedBox:
    """``name`` as in ``sim:NAME``. ``given``: what its owner's command line and environment set."""

    def __init__(self, name: str) -> None:
        self.name, self.box = name, read_box(name)
        self.argv = [part.replace("{models}", "/models") for part in self.box["launch"]["argv"]]
        self.env = {key: str(value) for key, value in self.box["launch"].get("env", {}).items()}
        with contextlib.redirect_stdout(io.StringIO()):
            self.help = arguments.build_parser().format_help()
        self.adapter = engine("sglang")
        self.flags: FlagTable = self.adapter.flags(self.help)
        self.given: dict[str, Value] = dict(self.adapter.parse_launch(self.argv, self.env, self.flags).values)
        self.target = str(self.box["target"])
        level = parse_target([self.target]).concurrency
        load = Workload(**self.box.get("workload", {}))
        self.workload = load.model_copy(update={"concurrency": level or load.concurrency, "side_levels": ()})
        self.shared = _described(name)
        self.quiet: dict[str, Run] = {}

    def launch(self, overlay: Mapping[str, Value], *, factor: float = 1.0, evidence: bool = False) -> Run:
        """Start with these changes, load it, read it. ``factor``: the launch's luck; durations are multiplied by it."""
        argv, environ = self._command(overlay)
        shape = read_shape(self.box["model"]["config"])
        log = _Log(int(self.box["hardware"]["count"]))
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                args = arguments.parse(argv)
            if str(args["kv_cache_dtype"]).startswith("fp8"):
                shape = replace(shape, kv_bytes_per_token_per_head=shape.kv_bytes_per_token_per_head / 2)
            launch = resolve(args, environ, self.box, shape, 0.0)
            log.ranks = launch.options.tp
            physics = launch_physics(launch, shape, self.box, factor)
            for phase in script(launch, shape, self.box, physics, environ, list(range(100, 100 + launch.options.tp))):
                log.now += phase.delay_s
                for rank, line in phase.lines:
                    log.line(line, rank)
        except (LaunchError, SystemExit) as error:
            return Run(None, " ".join(getattr(error, "lines", None) or [str(error)])[-300:], None)
        log.line("The server is fired up and ready to roll!")
        telemetry = Telemetry(log, launch, hybrid=bool(shape.state_bytes_per_request))  # type: ignore[arg-type]
        scheduler = Scheduler(physics, seed=3, journal=telemetry, log_interval=max(1, int(launch.args["decode_log_interval"])))
        scheduler.now_s = log.now
        scheduler.busy_s = 60.0
        level, load = self.workload.concurrency, self.workload
        clock = _Clock(log, scheduler)
        telemetry.log = clock  # type: ignore[assignment]
        got = closed_loop(scheduler, level, max(4, 3 * level), load.prompt_tokens, load.output_tokens, staggered=True)
        if not evidence:
            return Run(got["output_tps"], "", None, got["ttft_p50_ms"])
        files = {
            "launch.json": json.dumps({"name": "sim", "engine": "sglang", "engine_version": "0.5.12", "gpu": self.box["hardware"]["gpu"],
                                       "gpu_count": int(self.box["hardware"]["count"]), "model": self.box["model"]["path"], "argv": ["python3", "-m", "sglang.launch_server", *argv],
                                       "env": environ, "ready": True}).encode(),
            "server.log": "".join(log.parts).encode(),
            "metrics.txt": telemetry.metrics(scheduler, launch.memory.left - 0.1).encode(),
            "server_info.json": json.dumps(telemetry.server_info(scheduler, True), default=str).encode(),
            "config.json": json.dumps(self.box["model"]["config"]).encode(),
            "help.txt": self.help.encode(),
            **self.shared,
            "bench.json": json.dumps([{"c": level, "requests": 3 * level, "failed": 0, "prompt_tokens": load.prompt_tokens, "out_tokens": load.output_tokens,
                                       "duration_s": got["duration_s"], "output_tps": got["output_tps"], "ttft_p50_ms": got["ttft_p50_ms"], "tpot_p50_ms": got["tpot_p50_ms"]}]).encode(),
        }  # fmt: skip
        return Run(got["output_tps"], "", bundle_from_files(files), got["ttft_p50_ms"])

    def rate(self, overlay: Mapping[str, Value]) -> Run:
        """Without luck and without evidence, remembered."""
        known = json.dumps(dict(sorted(overlay.items())), default=str)
        if known not in self.quiet:
            self.quiet[known] = self.launch(overlay)
        return self.quiet[known]

    def _command(self, overlay: Mapping[str, Value]) -> tuple[list[str], dict[str, str]]:
        settings = {**self.given, **overlay}
        environ = {name[4:]: str(value) for name, value in settings.items() if name.startswith("env.") and value is not None}
        environ |= {name: value for name, value in self.env.items() if f"env.{name}" not in settings}
        plain = {name: value for name, value in settings.items() if not name.startswith("env.") and value is not None and name != "model_path"}
        argv = ["--model-path", str(self.given["model_path"])]
        for name, value in sorted(plain.items()):
            flag = next((item for item in self.adapter.dialect.spellings_of(name) if self.flags.offers(item)), f"--{name.replace('_', '-')}")
            if value is False:
                continue
            argv += [flag] if value is True else [flag, *(str(item) for item in value)] if isinstance(value, list) else [flag, str(value)]
        return argv, environ


def _described(name: str) -> dict[str, bytes]:
    """What the box's own nvidia-smi says of it."""
    with tempfile.TemporaryDirectory(prefix="optimize-bench-") as folder:
        box = prepare_box(name, Path(folder))

        def asked(*words: str) -> bytes:
            return subprocess.run([sys.executable, str(box.home / "nvidia_smi.py"), *words], env=box.env, capture_output=True, check=False).stdout

        return {"topo.txt": asked("topo", "-m"), "nvidia-smi-q.txt": asked("-q")}


class _Clock:
    """Gives log lines the scheduler's time."""

    def __init__(self, log: _Log, scheduler: Scheduler) -> None:
        self.log, self.scheduler = log, scheduler

    def line(self, text: str, rank: int | None = None) -> None:
        self.log.now = self.scheduler.now_s
        self.log.line(text, rank)


def spec(box: SimulatedBox, seed: int, launches: int) -> StudySpec:
    """A study with the box's own target."""
    return StudySpec(
        study=f"bench-{box.name}-{seed}", host=HostSpec(name=f"sim:{box.name}", kind="local"), target=parse_target([box.target]), workload=box.workload, launch=LaunchSpec(argv=("python3", "-m", "sglang.launch_server")),
        budget=Budget(minutes=1_000_000, launches=launches), consent=True,
    )  # fmt: skip


class InProcessExecutor(InMemoryExecutor):
    """Executes the steps of the real loop on a simulated box. ``launched``: the settings of every launch after the baseline."""

    def __init__(self, box: SimulatedBox, library: Library, seed: int) -> None:
        self.library = library
        self.box, self.random = box, random.Random(f"{box.name}/{seed}")
        self.running: dict[str, Launch] = {}
        self.runs: dict[str, Run] = {}
        self.launched: list[dict[str, Value]] = []

    def launch(self, step: Launch) -> Outcome:
        self.running[step.key] = step
        if step.purpose not in ("baseline", "final"):
            self.launched.append(dict(step.settings.values))
        luck = math.exp(self.random.gauss(0.0, float(self.box.box["speed"]["noise_sd"])))
        self.runs[step.key] = self.box.launch(step.settings.values, factor=luck, evidence=True)
        return Done(body={"pid": 1})

    def ready(self, step: AwaitReady) -> Outcome:
        run = self.runs[step.launch]
        if run.rate is None:
            return Failed(cause="oom_kv" if OOM.search(run.failed) else "exited", message=run.failed)
        return Done(body={"launch": step.launch, "ready_s": 60.0, "mismatches": []})

    def check(self, step: Check) -> Outcome:
        return Failed(cause="refused_by_box", message="Cheap tests are not part of this comparison.")

    def propose(self, step: Propose) -> Outcome:
        return Done(body=answered(step, self.library.space(step.space), self.library.directions))

    def observe(self, step: Observe) -> Outcome:
        hardware = self.box.box["hardware"]
        first = self.box.launch({}, evidence=True)
        assert first.bundle is not None, first.failed
        names = ("gpu.", "nccl.version", "model.", "box.", "topology.")
        facts = tuple(fact for fact in first.bundle.evidence.facts if fact.name.startswith(names))
        body = {
            "box": {"engine": "sglang", "engine_version": "0.5.12", "gpu": hardware["gpu"], "gpu_count": int(hardware["count"]),
                    "facts": {"gpu.memory_mib": int(hardware["memory_mib"]), "gpu.count": int(hardware["count"])},
                    "model_config_json": self.box.box["model"]["config"], "model_path": self.box.box["model"]["path"]},
            "evidence": first.bundle.evidence.model_copy(update={"facts": facts}).plain(),
            "flags": self.box.flags.plain(), "given": self.box.given, "original": False, "engine": "sglang",
        }  # fmt: skip
        return Done(body=body)

    def measure(self, step: Measure) -> Outcome:
        run = self.runs[step.launch]
        assert run.bundle is not None and run.rate is not None
        load = self.box.workload
        point = LoadPoint(
            concurrency=load.concurrency, requests_ok=3 * load.concurrency, requests_failed=0, prompt_tokens=3 * load.concurrency * load.prompt_tokens,
            output_tokens=3 * load.concurrency * load.output_tokens, window_s=60.0, metrics={"output_tokens_per_s": run.rate, "ttft_p50_ms": run.ttft_p50_ms},
            mean_output_tokens=float(load.output_tokens),
        )  # fmt: skip
        asked, resolved = run.bundle.evidence.value("settings.asked"), run.bundle.evidence.value("settings.resolved")
        effective = {**(asked if isinstance(asked, dict) else {}), **(resolved if isinstance(resolved, dict) else {})}
        return Done(body={"measurement": Measurement(points=(point,)).plain(), "evidence": run.bundle.evidence.plain(), "effective": effective})
