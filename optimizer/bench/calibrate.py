"""Can the load generator, here and now, do what is about to be asked of it? It is run against the null server, whose
rate is known and which stamps each event when it sends it, and must keep up with at least three times the target
while adding at most 1 ms (p99) to the moment at which a chunk is seen. This module makes the arguments and the job,
and judges the outcome; ``calibrate_here`` runs both on this machine. It never measures a real server.

The delay runs from the null server's write to the load generator's time stamp: kernel, wake-up and queueing behind
other chunks of the same beat are all in it, and so is other work on the machine. Noise can only add, so the best of a
few rounds counts.
"""

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from optimizer.errors import BoxError
from optimizer.model.base import FiniteFloat, Frozen

LOADGEN = Path(__file__).with_name("loadgen.py")
NULLSERVER = Path(__file__).with_name("nullserver.py")
HEADROOM = 3.0
ADDED_P99_LIMIT_MS = 1.0
# Slower beats than this make a round long without making it harder.
LONGEST_GAP_MS = 50.0


class Calibration(Frozen):
    """``offered`` and ``received`` in chunks per second; ``capacity`` = chunks per second of a whole core at the same
    cost per chunk."""

    concurrency: int
    target_chunks_per_s: FiniteFloat
    offered_chunks_per_s: FiniteFloat
    received_chunks_per_s: FiniteFloat
    capacity_chunks_per_s: FiniteFloat
    cpu_share: FiniteFloat
    added_p50_ms: FiniteFloat
    added_p99_ms: FiniteFloat

    @property
    def sustains(self) -> bool:
        """At least three times the target, measured or, where the null server gave less, by the cost per chunk."""
        needed = HEADROOM * self.target_chunks_per_s
        return (
            self.received_chunks_per_s >= 0.98 * min(self.offered_chunks_per_s, needed)
            and self.capacity_chunks_per_s >= needed
        )

    @property
    def prompt(self) -> bool:
        return self.added_p99_ms <= ADDED_P99_LIMIT_MS

    @property
    def text(self) -> str:
        return (
            f"the load generator took {self.received_chunks_per_s:,.0f} chunks/s at concurrency {self.concurrency} "
            f"(target {self.target_chunks_per_s:,.0f}) on {self.cpu_share:.0%} of a core "
            f"and added {self.added_p99_ms:.2f} ms (p99)"
        )


def gap_ms(target_chunks_per_s: float, concurrency: int) -> float:
    """Time between the chunks of one stream at which ``concurrency`` streams make three times the target."""
    return min(LONGEST_GAP_MS, 1000 * concurrency / (HEADROOM * target_chunks_per_s))


def null_server_arguments(target_chunks_per_s: float, concurrency: int) -> list[str]:
    """Arguments of ``nullserver.py`` for a calibration; it answers with its port on the first line of its stdout."""
    return ["--stamp", "--gap-ms", f"{gap_ms(target_chunks_per_s, concurrency):.6f}"]


def calibration_job(base_url: str, concurrency: int, window_s: float = 1.5, cpus: Iterable[int] = ()) -> dict[str, Any]:
    """The job of one round, in real seconds whatever the time scale of the study: it is this machine that is
    measured."""
    prompts = {"seed": "calibration", "salt": "0", "vocabulary": "words", "prompt_tokens": 64}
    job: dict[str, Any] = {"base_url": base_url, "api": "completions", "model": "null", "concurrency": concurrency}
    job.update(output_tokens=256, prompts=prompts, warmup_min_s=0.3, warmup_max_s=0.3, window_s=window_s, stamped=True)
    if cpus:
        job["cpus"] = list(cpus)
    return job


def judge(lines: Iterable[bytes], target_chunks_per_s: float, concurrency: int) -> Calibration:
    """One round's outcome from the load generator's stdout. Raises BoxError if it did not run to its end without
    errors."""
    summary: dict[str, Any] = {}
    for line in lines:
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict) and value.get("t") in ("summary", "refused"):
                summary = value
    if summary.get("t") != "summary" or summary["errors"] or summary["gave_up"] or not summary["delay_real_ms"]:
        why = summary.get("why") or summary.get("gave_up") or summary.get("errors") or "it ended without a result"
        raise BoxError(
            f"The load generator failed against the null server ({why}), so nothing that it measured could be trusted.",
            hint="Check that Python starts where the load is offered and that its loopback interface is up.",
        )
    received = summary["chunks_window"] / summary["measured_s"]
    share = max(1e-4, summary["cpu_share"])
    offered = concurrency * 1000 / gap_ms(target_chunks_per_s, concurrency)
    return Calibration(
        concurrency=concurrency,
        target_chunks_per_s=target_chunks_per_s,
        offered_chunks_per_s=offered,
        received_chunks_per_s=received,
        capacity_chunks_per_s=received / share,
        cpu_share=share,
        added_p50_ms=summary["delay_real_ms"][0],
        added_p99_ms=summary["delay_real_ms"][2],
    )


def best(rounds: Iterable[Calibration]) -> Calibration:
    """Of several rounds the one that shows most of what the machine can do."""
    return min(
        rounds, key=lambda found: (not (found.sustains and found.prompt), not found.sustains, found.added_p99_ms)
    )


@contextlib.contextmanager
def null_server(*arguments: str) -> Iterator[str]:
    """A null server on this machine for the time of a with block; its base URL. It is gone afterwards, whatever
    happened."""
    process = subprocess.Popen(
        [sys.executable, str(NULLSERVER), *arguments], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        if not first:
            raise BoxError(
                "The null server did not start, so the load generator cannot be calibrated.",
                hint=f"Try it by hand: {sys.executable} {NULLSERVER}",
            )
        yield f"http://127.0.0.1:{json.loads(first)['port']}"
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def calibrate_here(target_chunks_per_s: float, concurrency: int, rounds: int = 3) -> Calibration:
    """Calibrate on this machine; ends at the first round that passes. Blocks for about 2 s a round."""
    found: list[Calibration] = []
    with null_server(*null_server_arguments(target_chunks_per_s, concurrency)) as url:
        for _ in range(rounds):
            job = json.dumps(calibration_job(url, concurrency)).encode() + b"\n"
            done = subprocess.run(
                [sys.executable, str(LOADGEN)], input=job, capture_output=True, timeout=60, check=False
            )
            found.append(judge(done.stdout.splitlines(), target_chunks_per_s, concurrency))
            if found[-1].sustains and found[-1].prompt:
                break
    return best(found)


def processes_needed(target_chunks_per_s: float, found: Calibration) -> int:
    """How many load generators share the load so that each keeps the head-room."""
    return max(1, math.ceil(HEADROOM * target_chunks_per_s / max(1.0, 0.8 * found.capacity_chunks_per_s)))
