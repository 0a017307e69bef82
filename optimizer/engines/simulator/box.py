"""Turns a box description (``boxes/NAME.toml``) into a scratch home that a transport can use as a machine: commands on
PATH, an importable ``sglang``, a model folder, and the command line that its owner starts. Starts no process itself."""

from __future__ import annotations

import json
import math
import os
import shlex
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

from optimizer.errors import UsageError
from optimizer.model.base import Frozen
from optimizer.model.workload import Workload

ROOT = Path(__file__).parent
BOXES = ROOT / "boxes"
VERSION = "0.5.12"


class SimBox(Frozen):
    """A prepared box. ``env`` is the login environment for the transport, ``launch_env`` what the owner's own launch adds."""

    name: str
    about: str
    home: Path
    env: dict[str, str]
    argv: tuple[str, ...]
    launch_env: dict[str, str]
    cwd: Path
    port: int
    time_scale: float
    workload: Workload
    target: str | None
    model_config_path: Path
    gpu: str
    gpu_count: int
    interconnect: str
    engine: str = "sglang"
    engine_version: str = VERSION


def box_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in BOXES.glob("*.toml")))


def read_box(name: str) -> dict[str, Any]:
    """The description as written. Raises UsageError naming the boxes that exist."""
    if name not in box_names():
        raise UsageError(
            f"There is no simulated box {name!r}.", hint="Boxes: " + ", ".join(f"sim:{known}" for known in box_names())
        )
    with (BOXES / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def _seed_of(written: Path, own: int, asked: int | None) -> int:
    if asked is not None:
        return own * 2**32 + asked % 2**32
    try:
        return int(json.loads(written.read_text())["seed"])
    except (OSError, ValueError, KeyError, TypeError):
        return own


def prepare_box(name: str, root: Path, time_scale: float | None = None, seed: int | None = None) -> SimBox:
    """Create (or refresh) the box's home under ``root``. ``time_scale``: virtual seconds per real second, the box's own by
    default; above it rates lose accuracy, because a client's real time counts that many times. ``seed``: another box of its kind, whose
    launches have other luck; one that is there stays the one it is."""
    box = read_box(name)
    scale = float(box["time_scale"]) if time_scale is None else float(time_scale)
    if not (math.isfinite(scale) and 0.1 <= scale <= 1000):
        raise UsageError(
            f"The time scale {scale:g} must lie between 0.1 and 1000.",
            hint=f"sim:{name} uses {box['time_scale']:g} by default.",
        )
    home = root.resolve() / f"sim-{name}"
    binaries, site, models = home / "bin", home / "site", home / "models"
    for folder in (
        binaries,
        site / "sglang",
        site / "sglang_router",
        site / f"sglang-{VERSION}.dist-info",
        models,
        home / "tmp",
        home / "state",
    ):
        folder.mkdir(parents=True, exist_ok=True)
    box["time_scale"] = scale
    box["seed"] = _seed_of(home / "box.json", int(box["seed"]), seed)
    (home / "box.json").write_text(json.dumps(box, indent=1))
    model = models / box["model"]["path"]
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(box["model"]["config"], indent=1))
    interpreter = os.path.realpath(getattr(sys, "_base_executable", sys.executable) or sys.executable)
    for link in ("python3", "python"):
        target = binaries / link
        if not target.is_symlink() or str(target.readlink()) != interpreter:
            target.unlink(missing_ok=True)
            target.symlink_to(interpreter)
    _script(
        binaries / "nvidia-smi",
        f"#!/bin/sh\nexec {shlex.quote(str(binaries / 'python3'))} -I -S {shlex.quote(str(home / 'nvidia_smi.py'))} \"$@\"\n",
    )
    (home / "nvidia_smi.py").write_text(
        f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {str(ROOT)!r})\nfrom simbox.gpu import nvidia_smi\n"
        f"sys.exit(nvidia_smi(sys.argv[1:], Path({str(home)!r})))\n"
    )
    (site / "sglang" / "__init__.py").write_text(f'__version__ = "{VERSION}"\n')
    (site / "sglang" / "launch_server.py").write_text(
        "import sys\nfrom pathlib import Path\n\n"
        f"sys.path.insert(0, {str(ROOT)!r})\nfrom simbox.server import main\n\n"
        'if __name__ == "__main__":\n    main(sys.argv[1:], Path(__file__).parents[2])\n'
    )
    (site / "sglang_router" / "__init__.py").touch()
    (site / "sglang_router" / "launch_router.py").write_text(
        "import sys\nfrom pathlib import Path\n\n"
        f"sys.path.insert(0, {str(ROOT)!r})\nfrom simbox.router import main\n\n"
        'if __name__ == "__main__":\n    main(sys.argv[1:], Path(__file__).parents[2])\n'
    )
    (site / f"sglang-{VERSION}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: sglang\nVersion: {VERSION}\n"
    )
    argv = tuple(part.replace("{models}", str(models)) for part in box["launch"]["argv"])
    hardware = box["hardware"]
    link = str(hardware["topology"])
    return SimBox(
        name=name,
        about=box["about"],
        home=home,
        env={
            "HOME": str(home),
            "PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(site),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(home / "tmp"),
            "LANG": "C.UTF-8",
            "USER": "operator",
            "LOGNAME": "operator",
            "SHELL": "/bin/sh",
        },
        argv=argv,
        launch_env={name: str(value) for name, value in box["launch"].get("env", {}).items()},
        cwd=home,
        port=int(argv[argv.index("--port") + 1]) if "--port" in argv else 30000,
        time_scale=scale,
        workload=Workload(**box.get("workload", {})),
        target=box.get("target"),
        model_config_path=model / "config.json",
        gpu=hardware["gpu"],
        gpu_count=int(hardware["count"]),
        interconnect="none (one GPU)"
        if hardware["count"] == 1
        else f"nvlink ({link})"
        if link.startswith("NV")
        else "pcie",
    )


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
