"""A deployment for real: two SGLang servers on this CPU behind SGLang's own router, started, proven, measured and stopped as one. The
prefill-decode pair itself does not run on a CPU as it is installed (docs/deployments.md)."""

from __future__ import annotations

import json
import os

import pytest

from tests.ports import free_port

from .conftest import Engines, Tool, owners

pytestmark = [pytest.mark.engines, pytest.mark.measures, pytest.mark.timeout(900)]


def test_two_servers_behind_the_real_router(engines: Engines, tool: Tool) -> None:
    python = engines.folder / "router/bin/python"
    if not python.exists() and not os.environ.get("OPTIMIZER_ENGINES"):
        pytest.skip("no router is installed: run `make engines`")
    workers = [engines.sglang(), engines.sglang()]
    port = free_port()
    router = [str(python), "-m", "sglang_router.launch_router", "--worker-urls", *(f"http://127.0.0.1:{one.port}" for one in workers),
              "--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]  # fmt: skip
    members = [{"argv": router}, *({"argv": list(one.argv), "env": dict(one.env)} for one in workers)]
    described = tool.home / "deployment.json"
    described.write_text(json.dumps({"members": members}))
    done = tool.run("pair", "1tps@4", "--launch", str(described), "--finish", "restore", concurrency=4, prompt_tokens=32, output_tokens=16, window_s=6)
    assert (done.exit, done.json["ending"]) == (0, "met"), done.err
    outcomes = [entry["body"] for entry in tool.entries("pair") if entry["kind"] == "outcome" and entry["body"]["outcome"]["status"] == "done"]
    launched = next(body["outcome"]["body"]["members"] for body in outcomes if body["step"] == "launch")
    assert len(launched) == 3 and launched[-1]["argv"][0] == str(python), "the router is not started last"
    measured = [body["outcome"]["body"]["measurement"]["points"][0] for body in outcomes if body["step"] == "measure"]
    assert measured and all(point["requests_ok"] > 0 and point["requests_failed"] == 0 for point in measured), measured
    assert tool.left("pair") == {} and not any(owners(one.port) for one in workers)
