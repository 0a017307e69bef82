"""The fast box with two GPUs and a deployment of three processes: a prefill and a decode server of the simulated SGLang, and a
router before them, the simulated one or the real one."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .fastbox import FastBox, free_port, listening, wait_until

NAMES = ("prefill", "decode", "router")


@dataclass
class PDBox(FastBox):
    """``argv`` and ``port`` are the router's; ``members`` has all three. ``router``: the Python of a real router."""

    router: str | None = None
    titled: bool = False  # the router writes a title over its command line, as newer ones do

    def __post_init__(self) -> None:
        super().__post_init__()
        description = json.loads((self.home / "box.json").read_text())
        description["hardware"]["count"] = 2
        description["router"] = {"titled": self.titled}
        (self.home / "box.json").write_text(json.dumps(description))
        words = list(self.argv)
        at = words.index("--port")
        del words[at : at + 2]
        ports = {"prefill": free_port(), "decode": free_port(), "bootstrap": free_port(), "metrics": free_port()}
        launcher = [self.router or "python3", "-m", "sglang_router.launch_router"]
        self.members: dict[str, list[str]] = {
            "prefill": [*words, "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(ports["bootstrap"]), "--port", str(ports["prefill"])],
            "decode": [*words, "--disaggregation-mode", "decode", "--port", str(ports["decode"])],
            "router": [*launcher, "--pd-disaggregation", "--prefill", f"http://127.0.0.1:{ports['prefill']}", str(ports["bootstrap"]), "--decode",
                       f"http://127.0.0.1:{ports['decode']}", "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port", str(ports["metrics"])],
        }  # fmt: skip
        self.environments: dict[str, dict[str, str]] = {"prefill": {"CUDA_VISIBLE_DEVICES": "0"}, "decode": {"CUDA_VISIBLE_DEVICES": "1"}}
        if self.router:  # it is not to find the simulated one
            self.environments["router"] = {"PYTHONPATH": ""}
        self.ports = {**{name: ports[name] for name in NAMES[:2]}, "router": self.port, "bootstrap": ports["bootstrap"]}
        self.argv = tuple(self.members["router"])
        rows = [{"argv": self.members[name], "env": self.environments.get(name, {})} for name in reversed(NAMES)]  # in any order
        (self.here / "launch.json").write_text(json.dumps({"members": rows, "cwd": str(self.home)}))

    def serve(self) -> subprocess.Popen[bytes]:
        """The owner starts all three, and waits until the router has its workers."""
        for name in NAMES:
            with (self.home / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(self.members[name], env={**self.env, **self.environments.get(name, {})}, cwd=self.home,
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
            self.processes.append(process)
        wait_until(self.answers, 40, "the owner's deployment answers")
        return self.processes[-1]

    def serving(self) -> dict[str, tuple[str, ...]]:
        """Name -> command line of the members that live here (a router shows its title alone)."""
        found: dict[str, tuple[str, ...]] = {}
        for pid in self.residents():
            try:
                words = tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0"))
            except OSError:
                continue
            if "--help" in words:
                continue
            name = next((name for name in NAMES[:2] if "--disaggregation-mode" in words and name in words), None)
            name = name or ("router" if "sglang_router.launch_router" in words or words[0] == "sglang::router" else None)
            if name:
                found[name] = words
        return found

    def words_of(self, pid: int) -> list[str]:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            return []

    def by_hand(self, study: str) -> subprocess.Popen[bytes]:
        """A person starts what the study left."""
        with (self.here / "by_hand.log").open("wb") as log:
            process = subprocess.Popen(["sh", str(self.runs / study / "launch.sh")], env=self.env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        self.processes.append(process)
        return process

    def environment_of(self, name: str) -> dict[str, str]:
        """That of the process that has this part now."""
        for pid in self.residents():
            folder = Path(f"/proc/{pid}")
            try:
                if name in (folder / "cmdline").read_bytes().decode().split("\0"):
                    pairs = (pair.split("=", 1) for pair in (folder / "environ").read_bytes().decode().rstrip("\0").split("\0"))
                    return {one[0]: one[1] for one in pairs if len(one) == 2}
            except OSError:
                continue
        return {}

    def assert_clean(self, *, serving: bool = False) -> None:
        super().assert_clean(serving=serving)
        assert {name: listening(port) for name, port in self.ports.items()} == dict.fromkeys(self.ports, serving)


def worker_logs(study: Path) -> dict[str, Any]:
    """Blob names of the measurements of a study, by step."""
    from .fastbox import entries

    return {entry.key: sorted(entry.body.get("blobs", {})) for entry in entries(study) if entry.kind == "outcome" and entry.body["step"] == "measure"}
