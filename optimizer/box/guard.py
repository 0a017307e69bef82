"""The dead-man's switch. It waits on the box while a study runs; when the coordinator has been silent for too long, it
takes our launches down and starts the original server again. Standard library only, Python 3.8 syntax. It acts only
through the shim's operations, which it holds in memory, and never touches a process by itself.

It runs *with the environment of the original server*: later launches read theirs from ``/proc/<guard>/environ``, so no
credential leaves the box or touches its disk."""

import base64
import json
import os
import signal
import subprocess
import sys
import time


def crash_point(name):
    """As in the shim: only an environment variable arms one. The guard's environment is the original server's."""
    if os.environ.get("OPTIMIZER_CRASH_AT") == "guard." + name:
        os.kill(os.getpid(), signal.SIGKILL)


class Guard:
    def __init__(self, config):
        self.config = config
        self.home = config["home"]
        self.identity = [os.getpid(), self._start_time()]

    @staticmethod
    def _start_time():
        with open("/proc/self/stat", "rb") as file:
            data = file.read()
        return int(data[data.rindex(b")") + 2 :].split()[19])

    def path(self, name):
        return os.path.join(self.home, name)

    def read(self, name):
        try:
            with open(self.path(name), "rb") as file:
                return json.loads(file.read())
        except (OSError, ValueError):
            return None

    def write(self, name, record):
        """Atomic; on a full disk over the old record, in the room that was reserved for it."""
        path, temporary = self.path(name), self.path(name + ".new")
        data = json.dumps(record).encode("ascii")
        if os.path.exists(path):
            data = data.ljust(os.path.getsize(path))
        try:
            self.put(temporary, "wb", data)
            os.rename(temporary, path)
        except OSError:
            try:
                os.unlink(temporary)
            except OSError:
                pass  # it was never created
            self.put(path, "r+b", data)

    @staticmethod
    def put(path, mode, data):
        with open(path, mode) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def call(self, operation, deadline_s, **arguments):
        """One operation of the shim, as the coordinator would call it. Returns its answer; never raises."""
        program = base64.b64decode(self.config["program"])
        request = dict(arguments, op=operation, nonce="guard%d" % os.getpid(), deadline_s=deadline_s,
                       root=self.config["root"], study=self.config["study"], lock_wait_s=deadline_s / 2)  # fmt: skip
        payload = b"%d\n" % len(program) + program + json.dumps(request).encode("ascii")
        try:
            done = subprocess.run([sys.executable, "-I", "-c", self.config["bootstrap"]], input=payload,
                                  stdout=subprocess.PIPE, timeout=deadline_s + 10)  # fmt: skip
            _, _, rest = done.stdout.partition(b"\n@@guard%d reply " % os.getpid())
            size, _, body = rest.partition(b"\n")
            return json.loads(body[: int(size)])
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            return {"ok": False, "kind": "guard_call", "message": "%s: %s" % (operation, error)}

    def say(self, message):
        """Into guard.log. A disk that is full must not keep the original down, so what cannot be said is not said."""
        try:
            os.write(1, ("%.0f %s\n" % (time.time(), message)).encode("utf-8", "replace"))
        except OSError:
            pass

    @staticmethod
    def public(record):
        """What may be read of a recorded server by everybody: nothing that could hold a credential."""
        return {name: record.get(name) for name in ("pid", "start_time", "ports", "control", "identity")}

    def gone(self):
        """Whether somebody has removed the folder that the coordinator is heard and answered through. A home that does not answer at
        the moment is not gone."""
        try:
            os.stat(self.path("guard.json"))
        except FileNotFoundError:
            return True
        except OSError:
            pass
        return False

    def introduce(self):
        """Writes down who watches: whoever brings the original back reads it."""
        original = self.config["original"]
        public = self.public(original) if original else None
        if public is not None:
            public["before"] = [dict(self.public(one), around=one["around"]) for one in original.get("before") or []]
        self.write("guard.json", {
            "pid": self.identity[0], "start_time": self.identity[1], "boot_id": self.config["boot_id"],
            "epoch": self.config["epoch"], "minutes": self.config["limit_s"] / 60, "original": public,
        })  # fmt: skip

    def watch(self):
        """Until told otherwise. Silence is counted on the monotonic clock, which stands still while the box sleeps."""
        crash_point("begun")
        self.introduce()
        crash_point("recorded")
        last, heard, tries, missed = None, time.monotonic(), 0, 0
        while True:
            missed = missed + 1 if self.gone() else 0
            if missed > 1:  # nobody can be heard any more, and all that brings the original back is in this memory
                try:
                    os.makedirs(self.home, mode=0o700, exist_ok=True)
                    self.introduce()
                except OSError as error:
                    self.say("the folder is gone and cannot be made: %s" % error)
                else:
                    tries += 1
                    if self.fire("lost", tries):
                        return
            order = (self.read("order.json") or {}).get("order")
            if order == "disarm":
                crash_point("disarm.read")
                self.write("answer.json", {"order": "disarm", "done": True})
                crash_point("disarm.answered")
                os.unlink(self.path("order.json"))
                crash_point("disarm.done")
                return
            beat = (self.read("heartbeat") or {}).get("beat")
            if beat != last:
                last, heard = beat, time.monotonic()
            if order == "fire" or (tries == 0 and time.monotonic() - heard > self.config["limit_s"]):
                tries += 1
                if order == "fire":
                    self.write("order.json", {"order": None})
                if self.fire("asked" if order == "fire" else "silent", tries):
                    return
                # What only this process knows is still needed: it waits until somebody has removed the cause and asks again.
            crash_point("polled")
            time.sleep(self.config["poll_s"])

    def fire(self, reason, tries):
        """True when nothing is left to do: the original runs again, or there is none."""
        self.say("firing: %s" % reason)
        outcome = {"reason": reason, "epoch": self.config["epoch"], "clean": False, "restored": None, "message": "", "tries": tries}
        crash_point("fire.begun")
        fenced = self.call("fence", 120, epoch=self.config["epoch"])
        if not fenced["ok"]:
            self.say(fenced["message"])  # a full disk must not keep the original down: go on
        crash_point("fire.fenced")
        for _ in range(10):
            swept = self.call("sweep", 180, prefix=self.config["study"], keep=[self.config["study"] + ":guard"],
                              term_s=15, kill_s=30, gpu_wait_s=60)  # fmt: skip
            outcome["clean"] = swept["ok"] and not swept["result"]["remaining"]
            if outcome["clean"]:
                break
            self.say("not clean yet: %s" % json.dumps(swept))
            time.sleep(1)
        crash_point("fire.swept")
        if self.config["original"] is not None:
            outcome["restored"] = outcome["clean"] and self.restore(outcome)
        elif reason == "silent" or outcome["clean"]:
            outcome["restored"] = None
        crash_point("fire.over")
        self.say(json.dumps(outcome))
        try:
            self.write("fired.json", outcome)
            crash_point("fire.written")
        except OSError as error:
            self.say("what was done could not be written down: %s" % error)
        return self.config["original"] is None or bool(outcome["restored"])

    def restore(self, outcome):
        """Starts the original server, or every process of the original deployment in the order of their start, and waits for each until
        it listens again; three attempts for each."""
        original = self.config["original"]
        return all(self.restore_one(outcome, number, one) for number, one in enumerate(original.get("before") or [])) and self.restore_one(
            outcome, None, original
        )

    def restore_one(self, outcome, member, part):
        for _ in range(3):
            begun = self.call("start_original", 60, record=self.config["original"], member=member)
            if not begun["ok"]:
                outcome["message"] = begun["message"]
                self.say(begun["message"])
                time.sleep(2)
                continue
            crash_point("fire.started")
            result = begun["result"]
            outcome.update(pid=result["pid"], start_time=result["start_time"], log=result["log"])
            end = time.monotonic() + self.config["listen_wait_s"]
            while time.monotonic() < end:
                seen = self.call("listening", 30, pid=result["pid"], start_time=result["start_time"], ports=part["ports"])
                if seen["ok"] and not seen["result"]["alive"]:
                    outcome["message"] = "The original server ended again right after its start."
                    break
                if seen["ok"] and seen["result"]["listening"]:
                    crash_point("fire.listens")
                    outcome["message"] = ""
                    return True
                time.sleep(self.config["poll_s"])
            else:
                outcome["message"] = "The original server was started and did not listen in time."
                return False
        return False


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Guard(json.loads(sys.stdin.buffer.read())).watch()
