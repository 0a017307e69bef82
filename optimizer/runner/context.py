"""What the live executor has to know about the box and the server it works on. Built once by the survey, journalled, and
read back from the journal by a resumed process: nothing that matters lives only in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimizer.box.results import ServerProcess
from optimizer.model.base import Frozen, Value
from optimizer.model.flags import FlagTable
from optimizer.model.settings import Settings
from optimizer.model.step import Launch
from optimizer.model.study import LaunchSpec


class Worker(Frozen):
    """One engine process of what is measured: a single server, or one worker of a deployment."""

    name: str | None  # of the member; None for a single server
    role: str
    port: int
    argv: tuple[str, ...]
    env: dict[str, str | None]
    settings: Settings = Settings()  # of the launch, those that are its own


class Served(Frozen):
    """What a launch serves: where clients go and under which name, and the workers behind it, the leading one first."""

    port: int
    model: str
    workers: tuple[Worker, ...]

    @property
    def leading(self) -> Worker:
        return self.workers[0]


class BoxContext(Frozen):
    """``outcome.body["box"]`` of the survey."""

    engine: str
    engine_version: str | None = None
    launch: LaunchSpec  # of the original server; credentials are placeholders that only the box can fill in
    original: ServerProcess | None = None
    model_path: str | None = None
    served_model: str | None = None  # as the original calls it
    original_port: int
    boot_id: str
    hostname: str
    gpu: str | None = None
    gpu_count: int = 0
    interconnect: str | None = None
    python: str = ""
    cpus: int = 0
    has_nvidia_smi: bool = False
    model_config_json: dict[str, Any] | None = None
    facts: dict[str, Value] = {}  # what ``{box: ...}`` operands see

    def process_of(self, worker: str | None) -> ServerProcess | None:
        """The process of the original that is this member of the deployment; of a single server the original itself."""
        if self.original is None or worker is None:
            return self.original
        names = [member.name for member in self.launch.members]
        return self.original.processes[names.index(worker)]


class Session:
    """The executor's memory of one study: the context, the flag table, and every launch that was ordered."""

    def __init__(self) -> None:
        self.context: BoxContext | None = None
        self.flags = FlagTable(known=False)
        self.launches: dict[str, Launch] = {}
        self.shared_files: dict[str, bytes] = {}  # help.txt, topo.txt, nvidia-smi-q.txt, config.json: the same for every launch
        self.ready_s: dict[str, float] = {}
        self.fallbacks: dict[str, frozenset[str]] = {}  # member of a deployment -> what it fell back for where it was first measured
        self.pools: dict[str, float] = {}  # tokens of the largest KV pool that each setting was seen with, by its digest

    @property
    def known(self) -> BoxContext:
        if self.context is None:
            raise RuntimeError("the box was not surveyed")
        return self.context

    def adopt(self, body: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Take over what a survey found, in this process or in one that died."""
        self.context = BoxContext.model_validate(body["box"])
        if body.get("flags"):
            self.flags = FlagTable.model_validate(body["flags"])
        shared = ("help.txt", "topo.txt", "nvidia-smi-q.txt", "config.json")
        self.shared_files = {name: files[name] for name in shared if name in files}
