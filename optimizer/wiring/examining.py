"""``optimize doctor``: what would go wrong on a host, found by reading only."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from optimizer.errors import OptimizerError
from optimizer.runner import doctor
from optimizer.wiring import Options, Roots, opened_box, prepare


async def examine_host(options: Options, roots: Roots) -> dict[str, Any]:
    """Every finding for one host. A host that cannot be reached is a finding too: nothing of this raises but bad usage."""
    began = time.monotonic()
    found = doctor.local(roots.runs)
    with tempfile.TemporaryDirectory(prefix="optimize-doctor-") as scratch:
        prepared = prepare(options, replace(roots, runs=Path(scratch)), need_target=False)
        try:
            async with opened_box(prepared.spec, prepared.folder) as box:
                found += await doctor.examine(box, prepared.spec)
        except OptimizerError as error:
            found.append(
                doctor.Finding(check="connection", level="problem", said=error.message, why="Without the box there is nothing to examine.", do=error.hint)
            )
    return doctor.document(options.host, found, time.monotonic() - began)
