"""What can be learnt about a server on the same machine: its listener, the API key it asks for, the CPUs it leaves alone, what
it has counted itself. Runs on the box."""

import os
import re
import time

KEY_FLAGS, KEY_VARIABLES = (b"--api-key",), (b"VLLM_API_KEY", b"LLAMA_API_KEY", b"SGLANG_API_KEY")
COUNTER = re.compile(
    rb"^(?:vllm|sglang|llamacpp)[:_](prompt_tokens|generation_tokens|tokens_predicted)_total(?:\{[^}]*\})? ([0-9.eE+]+)", re.M
)


def listener_of(port):
    """Process ids that listen on a TCP port of this machine (Linux; none where ``/proc`` does not tell)."""
    sockets = set()
    for name in ("tcp", "tcp6"):
        for line in _lines("/proc/net/" + name)[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == b"0A" and int(words[1].rpartition(b":")[2], 16) == port:
                sockets.add("socket:[%s]" % words[9].decode("ascii"))
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc") if sockets else ()):
        try:
            handles = os.listdir("/proc/%s/fd" % pid)
        except OSError:
            continue
        for handle in handles:
            try:
                if os.readlink("/proc/%s/fd/%s" % (pid, handle)) in sockets:
                    found.add(int(pid))
            except OSError:
                continue  # closed while we looked
    return found


def _lines(path):
    try:
        with open(path, "rb") as handle:
            return handle.read().splitlines()
    except OSError:
        return []


def _words(path):
    """The words of ``/proc/PID/cmdline`` or ``environ``."""
    return b"\n".join(_lines(path)).split(b"\0")


def _parent(pid):
    stat = b"".join(_lines("/proc/%d/stat" % pid)).rpartition(b")")[2].split()
    return int(stat[1]) if len(stat) > 1 else 0


def key_of_server(port):
    """The API key that the server on this port of this machine asks for, from its own command line or environment, or that
    of a process above it (workers overwrite their command lines). None where there is none. It goes into the requests and
    nowhere else."""
    for pid in sorted(listener_of(port)):
        while pid > 1:
            words = _words("/proc/%d/cmdline" % pid)
            for at, word in enumerate(words):
                flag, equals, value = word.partition(b"=")
                if flag in KEY_FLAGS:
                    value = value if equals else (words[at + 1] if at + 1 < len(words) else b"")
                    if value:
                        return value.decode("utf-8", "replace")
            for word in _words("/proc/%d/environ" % pid):
                name, _, value = word.partition(b"=")
                if name in KEY_VARIABLES and value:
                    return value.decode("utf-8", "replace")
            pid = _parent(pid)
    return None


def cpus_away_from(port, look_s=0.25):
    """CPUs for this process that the server on this port leaves alone: those outside its affinity, else the quietest core of
    the machine (all hardware threads of it) over ``look_s``. An empty list where the machine is too small to choose."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    allowed = os.sched_getaffinity(0)
    servers = set()
    for pid in listener_of(port):
        try:
            servers |= os.sched_getaffinity(pid)
        except OSError:
            continue
    outside = allowed - servers
    if servers and outside:
        return sorted(outside)[-2:]
    if len(allowed) < 4:
        return []
    before = _busy()
    time.sleep(look_s)
    after = _busy()
    cores = {}
    for cpu in allowed:
        siblings = b"".join(_lines("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu)) or b"%d" % cpu
        cores.setdefault(siblings, []).append(cpu)
    load = {name: sum(after.get(cpu, 0) - before.get(cpu, 0) for cpu in cpus) for name, cpus in cores.items()}
    # Of equally quiet ones the last: device interrupts and launchers prefer the first.
    return sorted(min(cores.items(), key=lambda core: (load[core[0]], -max(core[1])))[1])


def _busy():
    """Clock ticks that each CPU was not idle."""
    found = {}
    for line in _lines("/proc/stat"):
        words = line.split()
        if words and re.fullmatch(rb"cpu\d+", words[0]):
            ticks = [int(word) for word in words[1:9]]
            found[int(words[0][3:])] = sum(ticks) - ticks[3] - ticks[4]
    return found


def counters_of(text):
    """(prompt tokens, generated tokens) that a metrics page says were counted since the server started; None for what it does
    not say."""
    sums = {}
    for name, value in COUNTER.findall(text):
        name = b"generation_tokens" if name == b"tokens_predicted" else name
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums.get(b"prompt_tokens"), sums.get(b"generation_tokens")
