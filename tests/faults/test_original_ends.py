"""The owner's server ends by itself while it is measured, or just before somebody interrupts the study: it is brought back."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.e2e.fastbox import FastBox, entries, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_original_ends_while_it_is_measured(box: FastBox, interrupted: bool) -> None:
    owner = box.serve()
    process = box.start(*box.study("dies", launch=False))
    wait_until(lambda: "Measuring" in box.told(process) or process.poll() is not None, 90, "it is measured")
    time.sleep(0.5)
    os.killpg(owner.pid, signal.SIGKILL)
    if interrupted:
        process.send_signal(signal.SIGINT)
    done = box.finish(process)
    assert done.exit == (130 if interrupted else 5), done.err
    if not interrupted:
        assert f"The original server (process {owner.pid}) ended while it was measured" in done.json["reason"], done.json
    assert "The original server had ended by itself; it runs again" in done.err and "The original server runs on localhost." in done.err
    wait_until(box.answers, 20, "the original is back")
    box.assert_clean(serving=True)
    assert box.serving_argv() == [box.argv]
    assert isinstance(owner, subprocess.Popen) and owner.wait(5) == -signal.SIGKILL
    assert entries(box.runs / "dies")[-1].kind == "closed"
    assert box("replay", "dies", "--verify", "--json").json["identical"]
