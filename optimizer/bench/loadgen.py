"""The load generator: it offers a streaming load and reports what came back, with nothing but the standard library (Python 3.8 or
later, uvloop when it can be imported). A job comes in on stdin as one JSON object, progress and results go out on stdout as
JSON lines. It decides when the warm-up is over (no gap may open between warm-up and window), stamps every chunk on a
monotonic clock and never parses a chunk as JSON while it streams. It judges nothing: what makes a result invalid is said
by ``run.py``, which reads these lines.

What is asked comes with the job (see ``workload.py``): fixed lengths, a list of lengths, a trace with times, or
conversations. Where it runs beside the server it can also look at it: which API key it asks for, which CPUs it leaves
alone, how many tokens it has counted itself. Its parts lie in ``plain/``; ``program.py`` packs them into the one text that a box
is sent.

Times inside are seconds of this machine's monotonic clock. A simulated server may run ``time_scale`` times faster
than real time: waits given in server seconds are divided by it, and every time that leaves the program is multiplied by
it, so that all output is in server seconds. Exceptions say so in their names: ``cpu_share`` and all
with ``_real_``.
"""

import asyncio
import json
import os
import sys

from optimizer.bench.plain.beside import cpus_away_from
from optimizer.bench.plain.generator import Generator
from optimizer.bench.plain.wires import BatchClock, WakeClock


def _emit(value):
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    if value["t"] != "r":
        sys.stdout.flush()


def run_job(job, emit=_emit):
    """Run one job to its end and return the summary (also emitted). Raises ValueError for a job that makes no sense."""
    try:
        import uvloop  # faster by half; never required

        loop = uvloop.new_event_loop()
        clock = BatchClock(loop)
    except ImportError:
        clock = WakeClock()
        loop = asyncio.SelectorEventLoop(clock)
    generator = Generator(job, emit, clock)
    if generator.cpus == "auto":
        generator.cpus = cpus_away_from(generator.target.port)
    if generator.cpus:
        os.sched_setaffinity(0, set(generator.cpus))
    try:
        return loop.run_until_complete(generator.run())
    finally:
        left = asyncio.all_tasks(loop)  # connections that were still being made when the window ended
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        if generator.wires is not None:
            generator.wires.close()
        loop.close()


def answer():
    """Run the job on stdin; the exit status."""
    import gc

    line = sys.stdin.buffer.readline()
    try:
        try:
            job = json.loads(line.decode("utf-8"))
        except ValueError:
            job = json.loads((line + sys.stdin.buffer.read()).decode("utf-8"))
        gc.disable()  # a collection in the window is a pause in every stream; one run makes little garbage in cycles
        out = run_job(job)
    except (ValueError, KeyError, TypeError) as error:
        _emit({"t": "refused", "why": "%s: %s" % (type(error).__name__, error)})
        return 2
    except BrokenPipeError:  # nobody reads the result any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return 1 if out["gave_up"] else 0


def main():
    sys.exit(answer())


if __name__ == "__main__":
    main()
