"""What was seen beside the load while the window was measured, judged: foreign requests, a throttled GPU, foreign processes on
it. Pure; looking is ``runner.witness``. A sample that could not be taken accuses nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optimizer.core.validity import foreign_in_flight
from optimizer.model.base import FiniteFloat, Frozen
from optimizer.model.measurement import Invalidity, ValidityCode

# Bits of NVML's clocks event reasons. A cap on power is how a GPU is run and holds for every launch: it is said. The others
# are faults of the machine that come and go, so two launches are not comparable across them.
THROTTLES = {0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
POWER_CAP = 0x04
# A tenth of the window throttled moves a rate by less than the noise of a launch; one sample alone may be an edge.
THROTTLED_SHARE, THROTTLED_SAMPLES = 0.10, 2
FOREIGN_MIB = 256  # what a display or a monitoring agent holds stays below


class GpuSample(Frozen):
    """One row of nvidia-smi's table, taken while the window was measured."""

    index: int
    reasons: int  # bit mask; 0 where nothing slows the clock
    sm_mhz: FiniteFloat | None = None


class GpuProcess(Frozen):
    """A process that nvidia-smi lists on a GPU."""

    pid: int
    gpu: str  # UUID; never leaves this process
    mib: FiniteFloat


class Witness(Frozen):
    """``before``: processes on the GPUs when the load began; ``after``: when it ended. ``ours``: the launch's own."""

    in_flight: tuple[FiniteFloat, ...] = ()  # running and waiting requests at the server, one a look
    gpu: tuple[GpuSample, ...] = ()
    before: tuple[GpuProcess, ...] = ()
    after: tuple[GpuProcess, ...] = ()
    ours: tuple[int, ...] = ()


def judge(seen: Witness, *, concurrency: int, closed_loop: bool = True) -> tuple[tuple[Invalidity, ...], tuple[str, ...]]:
    """(what makes the measurement unusable, what is only said)."""
    gpus, notes = _gpus_of(seen), []
    found = [_throttled(seen.gpu), _foreign_process(seen, gpus)]
    if closed_loop:  # an open loop may have any number open
        found.append(foreign_in_flight(seen.in_flight, concurrency))
    capped = [sample for sample in seen.gpu if sample.reasons & POWER_CAP]
    if seen.gpu and 2 * len(capped) >= len(seen.gpu):
        notes.append(f"the power limit held the GPU's clock down in {len(capped) / len(seen.gpu):.0%} of the samples")
    return tuple(item for item in found if item is not None), tuple(notes)


def _throttled(samples: Sequence[GpuSample]) -> Invalidity | None:
    """Each GPU by itself: with tensor parallelism the slowest holds all others up."""
    for index in sorted({sample.index for sample in samples}):
        own = [sample for sample in samples if sample.index == index]
        bad = [sample for sample in own if any(sample.reasons & bit for bit in THROTTLES)]
        if len(bad) >= THROTTLED_SAMPLES and len(bad) > THROTTLED_SHARE * len(own):
            names = [name for bit, name in THROTTLES.items() if any(sample.reasons & bit for sample in bad)]
            clocks = [sample.sm_mhz for sample in bad if sample.sm_mhz is not None]
            at = f", down to {min(clocks):.0f} MHz" if clocks else ""
            detail = f"GPU {index} was throttled ({', '.join(names)}) in {len(bad)} of {len(own)} samples of the window{at}"
            return Invalidity(code=ValidityCode.THROTTLED, detail=detail)
    return None


def _gpus_of(seen: Witness) -> set[str]:
    """GPUs that the launch's own processes use; empty where the listed numbers are not this namespace's (a container)."""
    ours = set(seen.ours)
    return {process.gpu for process in (*seen.before, *seen.after) if process.pid in ours}


def _foreign_process(seen: Witness, gpus: set[str]) -> Invalidity | None:
    """On the launch's own GPUs any other process counts. Where nobody can say which are its own, those that came during the load."""
    known = {process.pid for process in seen.before}
    new = [p for p in seen.after if p.pid not in known] if seen.before else []
    large = foreign_processes((*seen.before, *seen.after), seen.ours) if gpus else _large(new)
    if not large:
        return None
    listed = ", ".join(f"process {p.pid} with {p.mib:.0f} MiB" for p in large)
    return Invalidity(code=ValidityCode.FOREIGN_PROCESS, detail=f"not of this launch, on its GPUs during the load: {listed}")


def foreign_processes(processes: Sequence[GpuProcess], ours: Sequence[int]) -> list[GpuProcess]:
    """Processes with memory of their own on the GPUs that those of ``ours`` use; none where none of ``ours`` is listed."""
    gpus = {one.gpu for one in processes if one.pid in ours}
    return _large({one.pid: one for one in processes if one.gpu in gpus and one.pid not in ours}.values())


def _large(processes: Iterable[GpuProcess]) -> list[GpuProcess]:
    return sorted((p for p in processes if p.mib >= FOREIGN_MIB), key=lambda p: p.pid)[:4]
