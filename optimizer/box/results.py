"""What the box answers, as frozen records, and the errors that its refusals become. No behaviour beyond small questions
about the record itself."""

from typing import Any, Literal

from optimizer.box.plain.look import ASKED
from optimizer.box.plain.procfs import overlaps
from optimizer.errors import BoxBusy, BoxError
from optimizer.model.base import FiniteFloat, Frozen


class ShimRefused(BoxError):
    """The box did not do it, on purpose or because it cannot. ``kind`` is one of the shim's
    words: exec_failed, unreadable, unwritable, disk_full, secret_missing, supervised, foreign_user, original_gone,
    not_secured, guard_gone, guard_failed, guard_alive, still_running, restarted, no_original, deadline, lock_busy,
    os_error, bad_request, internal, python_too_old."""

    matters = "That step was not done on the box, and nothing else happened."

    def __init__(self, kind: str, message: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(message, why=why, hint=hint)
        self.kind = kind
        self.retryable = kind in ("lock_busy", "deadline", "guard_failed")  # the box was slow; everything else stays as it is


class PortTaken(BoxBusy):
    """A listener that is not ours holds the port."""

    matters = "What answers there would be measured in our server's place, so nothing was launched."
    todo = "Stop what listens there yourself (`ss -ltnp` names it), or give the server another port."


class BoxLocked(BoxBusy):
    """Another study holds the box."""

    todo = "Wait for it, or end it where it was started: `optimize stop STUDY`; `optimize restore --host HOST` if it is lost."


class GuardFired(BoxError):
    """The guard took the box back: it had heard nothing from this side for too long, or somebody restored the box by hand."""

    matters = "What ran before the study runs again, so that nothing of this study can be measured there any more."
    todo = "Start a new study when you like; a longer `--guard-minutes` bears a worse connection."


class Hello(Frozen):
    """Facts of the box that need no privilege. ``cpu_quota`` in CPUs; None without a limit or an answer."""

    boot_id: str
    hostname: str
    kernel: str
    machine: str
    python: tuple[int, int, int]
    python_path: str
    user: str
    uid: int
    home: str
    home_writable: bool
    root: str
    root_fault: str | None = None  # why the folder of our records there must not be used
    cpus: int
    cpu_quota: FiniteFloat | None
    memory_bytes: int
    memory_available_bytes: int
    disk_free_bytes: int | None
    shm_free_bytes: int | None
    open_files_limit: int
    clock_unix_s: FiniteFloat
    clock_monotonic_s: FiniteFloat
    nvidia_smi: str | None
    sees_other_processes: bool


class CommandOutput(Frozen):
    """A command that ran on the box. ``exit`` is None when it hit its time limit or never started (``not_started`` says
    why)."""

    exit: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    not_started: str | None


class FilePart(Frozen):
    """Bytes ``offset .. offset+len(data)`` of a file whose identity is ``inode`` and whose size was ``size``."""

    inode: int
    size: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class ServerProcess(Frozen):
    """A server on the box. Credentials in ``argv`` and ``env`` have been replaced before they left it; ``argv`` can be
    launched again on the same box while the guard lives (``base="guard"``)."""

    pid: int
    start_time: int
    boot_id: str
    engine: str | None
    argv: tuple[str, ...]
    hidden_arguments: int
    cwd: str | None
    exe: str | None
    uid: int
    ports: tuple[int, ...]
    env: dict[str, str]
    env_readable: bool
    logs: tuple[str, ...]
    supervisor: str | None
    control: str | None = None  # the command that stops it through its supervisor, where one is known
    launch_id: str | None
    lost_output: str | None = None  # a pipe or terminal that it writes into, which cannot be opened again
    unreached: dict[str, str] = {}  # port -> why what is sent to it over the loopback does not get there
    # Of a deployment this is the process that clients talk to, and these are the others in the order of their start.
    before: tuple["ServerProcess", ...] = ()
    described: bool = False  # it shows neither: argv and env are what the user says that it was started with

    @property
    def processes(self) -> tuple["ServerProcess", ...]:
        """All of them in the order of their start; of a single server itself."""
        return (*self.before, self)


class FoundServers(Frozen):
    """``port_owner_hidden``: somebody listens on the port that was asked for, and we may not see who."""

    servers: tuple[ServerProcess, ...]
    port_owner_hidden: bool


class MemberState(Frozen):
    """One process of a deployment. ``ready_s``: seconds after its start at which it could serve, None before."""

    name: str
    role: str
    port: int
    pid: int | None
    start_time: int
    log: str
    ready_s: FiniteFloat | None


class LaunchState(Frozen):
    """What became of a launch. ``alive``: its main process lives. ``dead`` with ``pids``: only workers are left.
    ``exit_code`` and ``exit_signal`` are known when the launch's keeper saw the end; ``exit_reason`` when it could not
    be started."""

    state: Literal["not_claimed", "alive", "dead"]
    pid: int | None
    start_time: int | None
    pids: tuple[int, ...]
    exit_code: int | None
    exit_signal: int | None
    exit_reason: str | None
    log: str | None
    ports: tuple[int, ...]
    rebooted: bool
    members: tuple[MemberState, ...] = ()

    @property
    def alive(self) -> bool:
        return self.state == "alive"


class Launched(LaunchState):
    """``launched`` is False when the key had been claimed before: then this is what became of that launch."""

    launched: bool


class Listener(Frozen):
    port: int
    address: str
    inode: int
    pids: tuple[int, ...]
    ours: bool


class Listeners(Frozen):
    """Everyone who listens on one port."""

    listeners: tuple[Listener, ...]

    @property
    def only_ours(self) -> bool:
        """Exactly one listening socket, and it is ours: the proof of identity. (A server that listens on IPv4 and IPv6
        has one socket for each; two on the same address mean that the kernel splits the traffic. Somebody's service at an address
        where neither ours listens nor we ask is none of our business.)"""
        asked = [ASKED, *(one.address for one in self.listeners if one.ours)]
        met = [one for one in self.listeners if any(overlaps(one.address, address) for address in asked)]
        addresses = [one.address for one in met]
        return (
            bool(addresses)
            and len(set(addresses)) == len(addresses)
            and all(one.ours for one in met)
            and (len(addresses) == 1 or len({":" in address for address in addresses}) == len(addresses))
        )


class Swept(Frozen):
    """``gpu_back`` is None where nothing was swept or the GPUs cannot be read. ``removed`` are leftovers in shared
    memory."""

    swept: tuple[int, ...]
    remaining: tuple[int, ...]
    gpu_back: bool | None
    gpu_memory_mib: tuple[int, ...] | None
    removed: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return not self.remaining and self.gpu_back is not False


class Stopped(Frozen):
    stopped: tuple[int, ...]
    remaining: tuple[int, ...]


class GuardOriginal(Frozen):
    pid: int
    start_time: int
    ports: tuple[int, ...]
    control: dict[str, Any] | None = None
    around: dict[str, Any] | None = None
    identity: dict[str, Any] | None = None  # uid, gid and groups of its user, as whom launches run as well
    before: tuple["GuardOriginal", ...] = ()  # of a deployment: the other processes, in the order of their start


class GuardInfo(Frozen):
    """The living guard. ``original`` is None when the box was empty."""

    pid: int
    start_time: int
    boot_id: str
    epoch: int
    minutes: FiniteFloat
    original: GuardOriginal | None


class GuardFiring(Frozen):
    """What the guard did. ``restored`` is None when there was nothing to restore. ``tries``: how often it has, until it succeeded."""

    reason: Literal["silent", "asked", "lost"]
    epoch: int
    clean: bool
    restored: bool | None
    message: str
    pid: int | None = None
    start_time: int | None = None
    log: str | None = None
    tries: int = 1

    @property
    def done(self) -> bool:
        """Nothing of ours is left, and the original, if there was one, runs again."""
        return self.clean and self.restored is not False


class GuardStatus(Frozen):
    guard: GuardInfo | None
    fired: GuardFiring | None
    fenced_epoch: int | None
    recorded: bool
    members: int = 0  # processes of the recorded original

    @property
    def tries(self) -> int:
        """How often the guard has tried to bring the original back."""
        return self.fired.tries if self.fired is not None else 0


class Restored(Frozen):
    """The original server after ``restore_original``. ``pid`` is None when there was none."""

    pid: int | None
    start_time: int | None
    log: str | None
    by_guard: bool


class JobResult(Frozen):
    """A finished job. ``exit`` is None when it was ended at its time or output limit."""

    exit: int | None
    signal: str | None
    stderr: bytes
    timed_out: bool
    truncated: bool


class Holder(Frozen):
    """Who holds the box. ``gone``: proven to be gone, so that another study may take over. ``elsewhere``: the machine or container
    where it is at work, if that only shares its home directory with this box. ``coordinator_alive``: None where nobody here can tell."""

    study: str
    coordinator_name: str
    since_unix_s: FiniteFloat
    gone: bool
    elsewhere: str | None = None
    coordinator_alive: bool | None = None


class Cleaned(Frozen):
    removed: tuple[str, ...]
    kept: tuple[str, ...]
