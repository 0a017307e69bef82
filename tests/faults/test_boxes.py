"""What can be wrong with a box or a server, and coordinators that meet: the tool as a person runs it, on the fast box."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from optimizer.model.canonical import derived_seed
from tests.e2e.fastbox import FastBox, check_ledger, entries, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PROMOTED = [{"disable_cuda_graph": None, "disable_decode_cuda_graph": None}]


@pytest.mark.fault("F46", "H25")
def test_a_second_coordinator_and_a_second_study_are_turned_away(box: FastBox) -> None:
    first = box.start(*box.study("first"))
    wait_until(lambda: "Measuring" in box.told(first), 60, "the first study measures")
    lease = box("resume", "first", "--json")
    assert lease.exit == 6, lease.err
    assert f"process {first.pid}" in lease.err and "optimize stop" in lease.err
    other = box(*box.study("second"))
    assert other.exit == 4, other.err
    assert "held by study first" in other.err and os.uname().nodename in other.err and "optimize stop first" in other.err
    assert other.json["error"]["kind"] == "BoxLocked"
    assert not (box.runs / "second").exists(), "a study that could only be closed again is not begun"
    holder = json.loads((box.home / ".optimizer/box.lock/holder.json").read_text())
    assert holder["study"] == "first", "the second study took nothing away"
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    assert box.finish(first, 60).exit == 130
    box.assert_clean()
    check_ledger(box, "first")


@pytest.mark.fault("F23")
def test_ports_that_somebody_else_holds_are_left_alone(box: FastBox) -> None:
    """The baseline takes the next port; the winner cannot have the original's, and that is said."""
    baseline_port = 20000 + derived_seed("busy", "ports") % 10000
    with socket.socket() as owner, socket.socket() as stranger:
        stranger.bind(("127.0.0.1", baseline_port))
        stranger.listen()
        owner.bind(("127.0.0.1", box.port))
        owner.listen()
        done = box(*box.study("busy"))
        assert done.decision == ("met", PROMOTED), done.err
        assert done.exit == 0
        assert "port" in done.err and str(box.port) in done.err
        kinds = [entry.body["outcome"].get("cause") for entry in entries(box.runs / "busy") if entry.kind == "outcome"]
        assert kinds.count("port_busy") >= 2
        assert box.marked() == {} and box.leftovers() == []
    check_ledger(box, "busy")


@pytest.mark.fault("F13")
def test_a_server_that_dies_at_once_is_told_by_its_own_words(box: FastBox) -> None:
    (box.home / "mode").write_text("dies")
    done = box(*box.study("dead"))
    assert done.exit == 4, done.err
    assert "this server was told to fail" in done.err
    assert len(box.starts()) <= 3
    box.assert_clean()
    check_ledger(box, "dead")


@pytest.mark.fault("F15")
def test_a_server_that_never_becomes_ready(box: FastBox) -> None:
    """On a simulated box, whose clock makes half an hour of waiting short."""
    package = box.folder / "never/sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text("import sys, time\nprint('Load weight begin.', flush=True)\n'--help' in sys.argv or time.sleep(600)\n")
    words = ["run", "--host", "sim:h200-7b", "--study", "never", "--target", "2000tps@16", "--time-scale", "1000", "--json", "--launches", "2",
             "--launch", f"PYTHONPATH={package.parent} python3 -m sglang.launch_server --model-path /nowhere --port {box.port}"]  # fmt: skip
    done = box(*words)
    assert done.exit == 4, done.err
    assert "not ready after" in done.err
    home = box.runs / "never/box/sim-h200-7b"
    assert not (home / ".optimizer").exists()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(package.parent).encode() in environ(path.parent)]


def environ(folder: Path) -> bytes:
    try:
        return (folder / "environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.fault("F49")
def test_no_gpu_tools_and_no_log_cost_facts_and_nothing_else(box: FastBox) -> None:
    (box.home / "bin/nvidia-smi").unlink()
    box.serve()
    (box.home / "server.log").unlink()  # its descriptor is still open: nothing can be read by that name any more
    before = box.residents()
    done = box("diagnose", "--host", "localhost", "--port", str(box.port), "--json")
    assert done.exit == 0, done.err
    assert done.json["hypotheses"]
    plan = box("plan", "--host", "localhost", "--port", str(box.port), "--target", "170tps@8", "--json")
    assert plan.exit == 0, plan.err
    assert plan.json["running_server"] is True and plan.json["would_restore"] == list(box.argv)
    assert box.residents() == before and box.leftovers() == [] and not box.runs.exists()
    assert box.answers()


@pytest.mark.smoke
def test_without_consent_nothing_is_touched(box: FastBox) -> None:
    box.serve()
    words = [word for word in box.study("asked", launch=False) if word != "--yes"]
    done = box(*words)
    assert done.exit == 2, done.err
    assert "left alone" in done.err and "--yes" in done.err
    box.assert_clean(serving=True)
    assert not (box.runs / "asked").exists()


def test_nothing_runs_and_nothing_is_described(box: FastBox) -> None:
    done = box(*box.study("nothing", launch=False))
    assert done.exit == 4, done.err
    assert "No inference server runs on localhost" in done.err and "--launch" in done.err
    box.assert_clean()


def test_a_program_that_does_not_exist(box: FastBox) -> None:
    words = box.study("typo", launch=False)
    done = box(*words, "--launch", "/no/such/python3 -m sglang.launch_server --model-path m")
    assert done.exit == 4, done.err
    assert "does not start" in done.err and "Check the path" in done.err
    box.assert_clean()


@pytest.mark.fault("F11")
def test_the_home_is_not_writable(box: FastBox) -> None:
    """``~/.optimizer`` is a file, as root's home cannot be made unwritable for root."""
    (box.home / ".optimizer").write_text("mine")
    done = box(*box.study("nohome"))
    assert done.exit == 4, done.err
    assert "Traceback" not in done.err and str(box.home / ".optimizer") in done.err
    assert (box.home / ".optimizer").read_text() == "mine"
    assert box.marked() == {} and box.starts() == []


@pytest.mark.fault("H13", "H14", "H15", "H17")
def test_values_are_never_read_by_a_shell(box: FastBox) -> None:
    """Arguments with every kind of quote, dash and expansion reach the server as they are."""
    odd = ["--tokenizer-path", "; rm -rf ~", "--chat-template", "$(touch owned)`touch owned`", "--json-model-override-args", '{"a": "\'b\'"}']
    file = box.here / "launch.json"
    launch = json.loads(file.read_text())
    file.write_text(json.dumps({**launch, "argv": [*launch["argv"], *odd], "env": {"ODD_VALUE": "a\nb'\"$HOME`id`"}}))
    (box.home / "mode").write_text("dies")
    done = box(*box.study("odd"))
    assert done.exit == 4, done.err
    assert box.starts()[0]["argv"][-len(odd) - 2 : -2] == odd or all(word in box.starts()[0]["argv"] for word in odd)
    assert not list(box.folder.rglob("owned"))
    box.assert_clean()
