"""Which files of the box a container needs to run a measured command line: the model, and what the arguments name beside it (a draft
model, a chat template, adapters). Responsible for telling what is only read from what is written; it looks at words alone, never at a disk."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

from optimizer.model.base import Frozen

# By the name of the flag: these files are read. What is named by another flag may be written (logs, caches), so it is left to the reader.
_READ = re.compile(r"^-(?:m|md|mm|mv|a)$|^--(?!.*(?:dir|log|save|cache|output|dump|trace|socket))[\w-]*(?:model|tokenizer|template|draft|lora|mmproj|adapter|grammar|config|weights|vocab)")
_NO_FILE = re.compile(r"prefix|root-path|route|endpoint|url")
_PATH = re.compile(r"(?:^|[=\"',:])(/(?!/)[^\"',\x00]+)")  # alone, behind NAME=, or in JSON
_FILE = re.compile(r"\.(?:gguf|jinja2?|json|ya?ml|toml|bin|safetensors|txt|gbnf|py|so)$", re.IGNORECASE)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_SNAPSHOT = re.compile(r"^(.*/models--[^/]+)/snapshots/[^/]+")


class Mount(Frozen):
    """A path that the container sees where the box had it, for reading alone. ``kind``: ``file`` or ``folder`` by its name; empty where
    the name does not tell."""

    path: str
    kind: str = ""


class Named(Frozen):
    """``mounts``: what the server reads. ``others``: (who names it, path) of what may be written or is of the box."""

    mounts: tuple[Mount, ...] = ()
    others: tuple[tuple[str, str], ...] = ()


def model_on_disk(model: str | None, cwd: str | None) -> str | None:
    """Where the model lies on the box; None for one that the engine fetches by its name (``org/name``)."""
    if not model:
        return None
    if model.startswith("/"):
        return model
    beside = model.startswith(("./", "../")) or model.endswith(".gguf")
    return posixpath.normpath(posixpath.join(cwd, model)) if beside and cwd else None


def named_files(arguments: Sequence[str], env: Mapping[str, str], model: str | None) -> Named:
    """What the arguments (without the program) and the variables name. ``model``: as ``model_on_disk`` tells it. Secrets must have been
    taken out of both before."""
    mounts = [_mount(model, known=True)] if model else []
    others: list[tuple[str, str]] = []
    flag = ""
    for word in arguments:
        flag, value = (word.partition("=")[0], word.partition("=")[2]) if word.startswith("-") else (flag, word)
        for path in _PATH.findall(value) if value else ():
            if _READ.match(flag):
                mounts.append(_mount(path))
            elif path != model and not _NO_FILE.search(flag):
                others.append((flag, path))
    others += [(name, value) for name, value in sorted(env.items()) if value.startswith("/")]
    kept: list[Mount] = []
    for mount in sorted(mounts, key=lambda one: (one.path.count("/"), one.path)):
        if not any(mount.path == one.path or mount.path.startswith(f"{one.path}/") for one in kept):
            kept.append(mount)
    first = [mount for mount in kept if model and (model == mount.path or model.startswith(f"{mount.path}/"))]
    return Named(mounts=(*first, *(mount for mount in kept if mount not in first)), others=tuple(dict.fromkeys(others)))


def _mount(path: str, *, known: bool = False) -> Mount:
    """A snapshot of Hugging Face's cache holds links into the folder above it, and a split file has its siblings beside it."""
    path = posixpath.normpath(path)
    if snapshot := _SNAPSHOT.match(path):
        return Mount(path=snapshot[1], kind="folder")
    if _SPLIT.search(path):
        return Mount(path=posixpath.dirname(path), kind="folder")
    return Mount(path=path, kind="file" if _FILE.search(path) else "folder" if known else "")
