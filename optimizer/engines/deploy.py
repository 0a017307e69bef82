"""Carries a measured command line into production: a systemd unit, a compose file, a Kubernetes manifest. Responsible for
each format's own quoting and for leaving secrets out; what cannot be known from the box (an image, a host folder) is left as a
variable that has to be given, never guessed."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from optimizer.engines.base import Command
from optimizer.engines.mounts import Named, model_on_disk, named_files
from optimizer.engines.script import Word, is_secret, words_of
from optimizer.model.base import Frozen

# The caches and the search path belong to the box where it was measured: an image has its own.
_OF_THE_BOX = re.compile(
    r"^(?:PATH|LD_LIBRARY_PATH|LIBRARY_PATH|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV|CONDA_PREFIX|XDG_CACHE_HOME"
    r"|HF_HOME|HF_HUB_CACHE|TRANSFORMERS_CACHE|HUGGINGFACE_HUB_CACHE|CUDA_HOME|CUDA_PATH|(?:CUDA|NCCL|CUDNN)_VERSION)$"
)
_CHOSEN_GPUS = "CUDA_VISIBLE_DEVICES"  # a container is given its GPUs from outside, and counts them from 0
_OFFLINE = re.compile(r"^(?:HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE)$")  # what the box had in its cache a fresh container has to fetch
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SECRETS_FILE = "/etc/optimize/{name}.env"


class Deployment(Frozen):
    """What the files say beside the command. ``image``: where the engine publishes the version that was measured, or None.
    ``program``: where that image has the program, if not on its search path. ``start_s``: the longest start seen, for the probes.
    ``gpus``: how many the command uses on this node; 0 on a CPU box. ``nodes``: how many run the model together.
    ``model_path``: the model as the command names it, a path or a name that the engine fetches."""

    name: str
    port: int
    health_path: str
    listens_on: str = "0.0.0.0"
    gpus: int
    start_s: float
    image: str | None = None
    program: str | None = None
    nodes: int = 1
    model_path: str | None = None
    cwd: str | None = None
    user: str | None = None
    notes: tuple[str, ...] = ()


def files(command: Command, deployment: Deployment) -> dict[str, str]:
    """``{file name: text}``."""
    return {
        "optimized.service": systemd_unit(command, deployment),
        "compose.yaml": compose_file(command, deployment),
        "kubernetes.yaml": kubernetes_manifest(command, deployment),
    }


# ---- systemd ------------------------------------------------------------------------------------------------------


def systemd_unit(command: Command, deployment: Deployment) -> str:
    """A unit for the box where it was measured. systemd.syntax(7): ``%`` and ``$`` are doubled, words are quoted in C style."""
    words, needed = words_of(command.argv)
    if not command.argv[0].startswith("/"):
        words = [Word("/usr/bin/env"), *words]
    environment, unset, secret = _split(command.env)
    names = sorted({*secret, *(name for name, _ in needed)})
    lines = [
        *_comments(deployment),
        "[Unit]",
        f"Description=Inference server with the settings of {deployment.name}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        *([f"User={deployment.user}"] if deployment.user else ["# User=: whoever may read the model and use the GPUs; root otherwise."]),
        *([f"WorkingDirectory={_percent(deployment.cwd)}"] if deployment.cwd else []),
        *(f"Environment={_c_quoted(f'{name}={value}')}" for name, value in environment.items()),
        *([f"UnsetEnvironment={' '.join(unset)}"] if unset else []),
        *([f"# Holds {', '.join(names)}, one NAME=value a line, mode 0600.", f"EnvironmentFile={_SECRETS_FILE.format(name=deployment.name)}"] if names else []),
        "ExecStart=" + " \\\n  ".join(_systemd_word(word) for word in words),
        f"TimeoutStartSec={_start_limit_s(deployment)}",
        "TimeoutStopSec=60",
        "KillMode=mixed",
        "Restart=on-failure",
        "RestartSec=10",
        "LimitNOFILE=65536",
        "LimitMEMLOCK=infinity",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _systemd_word(word: Word) -> str:
    if word.variable:
        return _c_quoted(word.text.replace("$", "$$"))[:-1] + f'${{{word.variable}}}"'
    return _c_quoted(word.text.replace("$", "$$"))


def _c_quoted(text: str) -> str:
    escaped = _percent(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{escaped}"'


def _percent(text: str) -> str:
    return text.replace("%", "%%")


# ---- containers ---------------------------------------------------------------------------------------------------


def compose_file(command: Command, deployment: Deployment) -> str:
    """A compose file. ``$`` is doubled, as compose substitutes it."""
    environment, secret = _carried(command.env, deployment)
    words, _ = words_of(_in_image(command.argv, deployment))
    named = _named(words, environment, deployment)
    address = _published_on(deployment)
    said = {name: value.replace("$", "$$") for name, value in environment.items()}
    said |= {name: f"${{{name}:?set {name}}}" for name in secret}
    service: dict[str, Any] = {
        "image": deployment.image or "${IMAGE:?set IMAGE to one that holds the engine version that was measured}",
        # Not `command`: that would be added to an image's own entry point, and the engines' images have one.
        "entrypoint": [word.text.replace("$", "$$") + (f"${{{word.variable}:?set {word.variable}}}" if word.variable else "") for word in words],
        "environment": said,
        "ports": [f"{f'[{address}]' if ':' in address else address}:{deployment.port}:{deployment.port}"],
        "ipc": "host",
        "ulimits": {"memlock": -1, "nofile": 65536},
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", "curl", "-fsS", f"http://127.0.0.1:{deployment.port}{deployment.health_path}"],
            "interval": "15s", "timeout": "20s", "retries": 4, "start_period": f"{_start_limit_s(deployment)}s",
        },
    }  # fmt: skip
    paths = [mount.path.replace("$", "$$") for mount in named.mounts]
    if paths:
        service["volumes"] = [{"type": "bind", "source": path, "target": path, "read_only": True} for path in paths]  # a path may hold a colon
    if _relative(deployment):
        service["working_dir"] = str(deployment.cwd).replace("$", "$$")
    if deployment.gpus:
        chosen = _chosen(command.env)[: deployment.gpus]
        which: dict[str, Any] = {"device_ids": chosen} if len(chosen) == deployment.gpus else {"count": deployment.gpus}
        service["deploy"] = {"resources": {"reservations": {"devices": [{"driver": "nvidia", **which, "capabilities": ["gpu"]}]}}}
    reach = "only this machine reaches it; for others, write the address of their network there" if address in _LOOPBACK else "as --host of the measured command line"
    said_first = [*_comments(deployment), *_warnings(deployment, named), f"# ports: published on {address}, {reach}."]
    return "\n".join(said_first) + "\n" + _yaml({"name": _dns_label(deployment.name), "services": {"server": service}})


def _published_on(deployment: Deployment) -> str:
    """The address that the command line listens on, else the loopback: without one docker publishes on every interface, past most
    firewalls, and who could not reach the server would reach the container."""
    try:
        return str(ipaddress.ip_address(deployment.listens_on))
    except ValueError:
        return "127.0.0.1"


def kubernetes_manifest(command: Command, deployment: Deployment) -> str:
    """A Deployment and a Service. Secrets come from a Secret of the same name; the model from a folder of the node."""
    environment, secret = _carried(command.env, deployment)
    words, needed = words_of(_in_image(command.argv, deployment))
    named = _named(words, environment, deployment)
    name = _dns_label(deployment.name)
    labels = {"app": name}
    hidden = sorted({*secret, *(variable for variable, _ in needed)})
    env: list[dict[str, Any]] = [{"name": key, "value": _kubernetes_text(value)} for key, value in environment.items()]
    env += [{"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}} for key in hidden]
    probe = {"httpGet": {"path": deployment.health_path, "port": deployment.port}, "timeoutSeconds": 20}
    argv = [_kubernetes_text(word.text) + (f"$({word.variable})" if word.variable else "") for word in words]
    container: dict[str, Any] = {
        "name": "server",
        "image": deployment.image or "IMAGE",
        "command": argv,
        "env": env,
        "ports": [{"containerPort": deployment.port}],
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": -(-_start_limit_s(deployment) // 10)},
        "readinessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 3},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if deployment.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": deployment.gpus}}
    if _relative(deployment):
        container["workingDir"] = deployment.cwd
    for number, mount in enumerate(named.mounts):
        volume = "model" if number == 0 and model_on_disk(deployment.model_path, deployment.cwd) else f"file-{number}"
        kind = {"file": "File", "folder": "Directory"}.get(mount.kind)
        container["volumeMounts"].append({"name": volume, "mountPath": mount.path, "readOnly": True})
        volumes.append({"name": volume, "hostPath": {"path": mount.path, **({"type": kind} if kind else {})}})
    workload = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}},
        },
    }  # fmt: skip
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"port": deployment.port, "targetPort": deployment.port}]},
    }  # fmt: skip
    comments = [*_comments(deployment), *_warnings(deployment, named)]
    if _chosen(command.env) and deployment.gpus:
        comments.append(f"# GPUs: {_CHOSEN_GPUS} of the box is left out; which GPUs the pod gets is the cluster's choice.")
    if not deployment.image:
        comments.append("# IMAGE: one that holds the engine version that was measured.")
    if hidden:
        comments.append(f"# kubectl create secret generic {name} " + " ".join(f"--from-literal={key}=..." for key in hidden))
    return "\n".join(comments) + "\n" + _yaml(workload) + "---\n" + _yaml(service)


def _kubernetes_text(text: str) -> str:
    return text.replace("$(", "$$(")


def _dns_label(text: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:50].strip("-") or "server"


def _in_image(argv: Sequence[str], deployment: Deployment) -> list[str]:
    """The program by its name, as its folder on the box does not exist in an image; and listening on every address, as the
    loopback of a container is reached by nobody."""
    program = deployment.program or argv[0].rpartition("/")[2]
    words = [re.sub(r"^python3?(\.\d+)?$", "python3", program), *argv[1:]]
    if deployment.listens_on not in _LOOPBACK:
        return words
    for index, word in enumerate(words):
        if word == "--host" and index + 1 < len(words):
            return [*words[: index + 1], "0.0.0.0", *words[index + 2 :]]
        if word.startswith("--host="):
            return [*words[:index], "--host=0.0.0.0", *words[index + 1 :]]
    return [*words, "--host", "0.0.0.0"]


# ---- shared -------------------------------------------------------------------------------------------------------


def _split(env: Mapping[str, str | None], *, portable: bool = False) -> tuple[dict[str, str], list[str], list[str]]:
    """(plain variables, variables to unset, variables that hold a secret), each in order of its name."""
    plain: dict[str, str] = {}
    unset: list[str] = []
    secret: list[str] = []
    for name, value in sorted(env.items()):
        if portable and _OF_THE_BOX.match(name):
            continue
        if value is None:
            unset.append(name)
        elif is_secret(name, value):
            secret.append(name)
        else:
            plain[name] = value
    return plain, unset, secret


def _carried(env: Mapping[str, str | None], deployment: Deployment) -> tuple[dict[str, str], list[str]]:
    """(plain variables, names of those that hold a secret) of a container: without what is the box's own."""
    plain, _, secret = _split(env, portable=True)
    fetched = model_on_disk(deployment.model_path, deployment.cwd) is None
    left = {name: value for name, value in plain.items() if not (fetched and _OFFLINE.match(name)) and not (name == _CHOSEN_GPUS and deployment.gpus)}
    return left, secret


def _chosen(env: Mapping[str, str | None]) -> list[str]:
    """The GPUs that the environment shows the server, by number or UUID."""
    return [item.strip() for item in (env.get(_CHOSEN_GPUS) or "").split(",") if item.strip()]


def _named(words: Sequence[Word], environment: Mapping[str, str], deployment: Deployment) -> Named:
    return named_files([word.text for word in words[1:]], environment, model_on_disk(deployment.model_path, deployment.cwd))


def _relative(deployment: Deployment) -> bool:
    """Whether the command finds its model only from the folder where it was started."""
    return deployment.cwd is not None and deployment.model_path != model_on_disk(deployment.model_path, deployment.cwd) is not None


def _warnings(deployment: Deployment, named: Named) -> list[str]:
    """What somebody has to see to before a container of this command starts, as comments."""
    said = [f"{who or 'The command'} names {path}, which is not mounted: mount it if the server reads or writes it there." for who, path in named.others]
    if deployment.model_path and model_on_disk(deployment.model_path, deployment.cwd) is None:
        said.append(f"The container fetches {deployment.model_path} when it first starts: mount the engine's cache folder to keep it.")
    if deployment.nodes > 1:
        said.append(f"One of {deployment.nodes} nodes that run the model together: each needs its own, in a network where they reach one another.")
    return [line for text in said for line in _commented(text)]


def _start_limit_s(deployment: Deployment) -> int:
    """Three times the longest start seen, at least ten minutes: the first start on a new node compiles and downloads."""
    return max(600, round(3 * deployment.start_s))


def _comments(deployment: Deployment) -> list[str]:
    return [line for note in deployment.notes for line in _commented(note)]


def _commented(text: str) -> list[str]:
    return [f"# {line}".rstrip() for line in re.split(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]", text)]


def _yaml(value: Any) -> str:
    unshared = json.loads(json.dumps(value))  # what appears twice is written twice: anchors are for machines
    text: str = yaml.safe_dump(unshared, sort_keys=False, allow_unicode=True, width=120)
    return text
