"""A deployment of prefill, decode and router tuned as one, over real processes: found or described, measured through its router,
stopped, relaunched and brought back as one; and whatever happens to one member happens to the launch."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .fastbox import entries, wait_until
from .pdbox import PDBox, worker_logs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Made = Callable[..., PDBox]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    boxes: list[PDBox] = []

    def make(**options: Any) -> PDBox:
        boxes.append(PDBox(tmp_path, **options))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()


def launches(box: PDBox, study: str) -> list[dict[str, Any]]:
    return [entry.body["outcome"]["body"] for entry in entries(box.runs / study) if entry.kind == "outcome" and entry.body["step"] == "launch"]


def test_a_deployment_that_runs_is_tuned_and_comes_back(made: Made) -> None:
    box = made()
    box.serve()
    before = box.serving()
    assert set(before) == {"prefill", "decode", "router"}
    done = box(*box.study("found", "--finish", "restore", launch=False))
    assert done.decision[0] == "met", done.err
    # The setting is the decode side's: the prefill side keeps its words.
    member = {one["name"]: one for one in launches(box, "found")[0]["members"]}
    assert "--disable-cuda-graph" not in member["decode"]["argv"] and "--disable-cuda-graph" in member["prefill"]["argv"]
    assert member["router"]["port"] != box.port and member["decode"]["port"] == box.ports["decode"]
    assert box.serving() == before and box.answers()
    assert box.environment_of("decode")["CUDA_VISIBLE_DEVICES"] == "1" and box.environment_of("prefill")["CUDA_VISIBLE_DEVICES"] == "0"
    box.assert_clean(serving=True)
    blobs = worker_logs(box.runs / "found")
    assert all("prefill.server.log" in names and "server.log" in names for names in blobs.values()) and len(blobs) >= 2
    verified = box("replay", "found", "--verify", "--json")
    assert verified.json["identical"], verified.out
    scripts = {name: (box.runs / f"found/launch-{name}.sh").read_text() for name in ("prefill", "decode", "router")}
    assert "--disable-cuda-graph" in scripts["prefill"] and "--disable-cuda-graph" not in scripts["decode"] and "launch_router" in scripts["router"]
    # Started by hand, that script brings up all three and takes them all with it.
    for process in box.processes:
        process.terminate()
    stop_all(box)
    by_hand = box.by_hand("found")
    wait_until(box.answers, 40, "launch.sh serves")
    assert set(box.serving()) == {"prefill", "decode", "router"} and "--disable-cuda-graph" not in box.serving()["decode"]
    by_hand.terminate()
    wait_until(lambda: not box.serving(), 20, "launch.sh ends its members")


def stop_all(box: PDBox) -> None:
    """The owner stops what serves."""
    for pid in box.residents():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not box.serving(), 10, "everything has ended")


def killed_at(box: PDBox, words: list[str], point: str) -> None:
    done = box(*words, OPTIMIZER_CRASH_AT=point)
    assert done.exit == -9, f"at {point}: exit {done.exit}\n{done.err}"


def test_a_described_deployment_behind_a_titled_router_with_a_coordinator_that_dies(made: Made) -> None:
    """Nothing of it can be read off the router; what was described is launched, and restored. The coordinator dies at the boundaries
    of the launch and is resumed."""
    box = made(titled=True)
    box.serve()
    assert box.serving()["router"] == ("sglang::router",)
    refused = box(*box.study("hidden", launch=False))
    assert refused.exit != 0 and "overwritten its own command line" in refused.err + refused.out
    words = box.study("described", "--finish", "restore")
    for point in ("box.secure.after:1", "box.stop_original.after:1", "box.launch.after:1", "box.listeners.after:2", "box.run_job.output:2"):
        killed_at(box, words, point)
        words = ["resume", "described", "--json"]
    done = box(*words)
    assert done.decision[0] == "met", done.err
    assert box.serving()["router"] == ("sglang::router",) and box.answers()
    box.assert_clean(serving=True)
    assert box("replay", "described", "--verify", "--json").json["identical"]


def test_the_guard_brings_all_of_it_back(made: Made) -> None:
    box = made()
    box.serve()
    before = box.serving()
    running = box.start(*box.study("silent", "--guard-minutes", "0.5", launch=False))
    wait_until(lambda: any(launch.startswith("silent:") and launch.split(":")[1].isdigit() for launch in box.marked().values()), 60, "a launch of ours runs")
    os.kill(running.pid, signal.SIGKILL)
    wait_until(lambda: box.serving() == before and not box.marked() and box.answers(), 90, "the guard restores the deployment")
    assert box.environment_of("decode")["CUDA_VISIBLE_DEVICES"] == "1"
    stopped = box("stop", "silent")
    assert stopped.exit == 0, stopped.err
    box.assert_clean(serving=True)


@pytest.mark.fault("G7")
@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_a_member_that_dies_while_it_is_measured(made: Made, name: str) -> None:
    """The whole launch is gone with it: no window of what is left is ever used, and the deployment that was there comes back."""
    box = made()
    box.serve()
    before = box.serving()
    running = box.start(*box.study("dies", "--finish", "restore", launch=False))

    def victim() -> int | None:
        if "(candidate): c=" not in box.told(running):
            return None
        return next((pid for pid, launch in box.marked().items() if launch.startswith("dies:") and name in box.words_of(pid)), None)

    pid = wait_until(victim, 60, "the candidate is measured")
    time.sleep(1.5)  # into its window
    os.kill(pid, signal.SIGKILL)
    done = box.finish(running)
    failed = [entry.body["outcome"] for entry in entries(box.runs / "dies") if entry.kind == "outcome" and entry.body["outcome"]["status"] == "failed"]
    assert failed and failed[0]["cause"] in ("crashed", "exited"), (failed, done.err)
    assert box.serving() == before and box.answers()
    box.assert_clean(serving=True)


ENGINES = Path(__file__).parents[2] / ".engines"
# Installed to its end, which may be going on beside the tests.
ROUTER = os.environ.get("OPTIMIZER_ROUTER") or (str(ENGINES / "router/bin/python") if (ENGINES / ".router.stamp").exists() else "")


@pytest.mark.skipif(not ROUTER, reason="no sglang-router is installed (make engines)")
def test_behind_the_real_router(made: Made) -> None:
    """sglang-router itself before the simulated workers: its protocol is what the tool and the simulator speak."""
    box = made(router=ROUTER)
    done = box(*box.study("real", "--finish", "restore"))
    assert done.decision[0] == "met", done.err
    box.assert_clean()  # the router's port too: it wipes its environment, and our marker with it
