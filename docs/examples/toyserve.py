"""An adapter for an imaginary engine, `toyserve`: all that a new engine needs beyond the names of its flags. In a package of its own it is
registered by

    [project.entry-points."optimizer.engines"]
    toyserve = "toyserve_adapter:ENGINE"
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from optimizer.engines.base import Engine, HttpRequest, Quirks, Ready
from optimizer.engines.dialect import Dialect
from optimizer.engines.environment import settings_pattern
from optimizer.engines.process import after_module, is_parent
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence

SLOTS = re.compile(r"^INFO admission cap (?P<cap>\d+)$", re.MULTILINE)


class ToyServe(Engine):
    name: ClassVar = "toyserve"
    default_port: ClassVar = 9000
    model_param: ClassVar = "model"  # the parameter that names the weights; it is never changed
    parallel_params: ClassVar = ("tensor_parallel",)  # their product is the number of GPUs
    server_info_paths: ClassVar = ("/info",)  # asked after each start; empty where the engine tells nothing
    settings_env: ClassVar = settings_pattern("TOYSERVE_")  # variables that are settings
    dialect: ClassVar = Dialect(
        # Only flags that are not --name-with-dashes, that were renamed (newest first), or that have a short form.
        spellings={"max_requests": ("--max-requests", "--max-batch")},
        # Where and as whom it runs. Keys and passwords are recognised by their names.
        identity=frozenset(("host", "port", "served_model_name")),
        # Values that stay text even if they look like numbers.
        text=frozenset(("model", "served_model_name", "host", "chat_template")),
    )
    quirks: ClassVar = Quirks(
        health_is_ready=True,
        health_503_while_loading=True,
        log_ready="INFO ready",
        start_limit_s=900.0,
        drain_s=30.0,
        name_pattern=r"[A-Za-z0-9][\w.@/:-]{0,127}",
    )

    def options_start(self, argv: Sequence[str]) -> int | None:
        return None if is_parent(argv) else after_module(argv, ("toyserve.server",))

    def help_argv(self, original_argv: Sequence[str]) -> list[str]:
        return [*original_argv[: self.options_start(original_argv)], "--help"]

    def version_argv(self, original_argv: Sequence[str]) -> list[str]:
        return [original_argv[0], "-c", "import toyserve; print(toyserve.__version__)"]

    def example(self) -> str:
        return "python3 -m toyserve.server --model /models/MODEL --port 9000"

    def ready(self, port: int, host: str = "127.0.0.1") -> Ready:
        return Ready(base_url=f"http://{host}:{port}", probe=HttpRequest(path="/health"))

    def flush_cache(self) -> HttpRequest | None:
        return HttpRequest(method="POST", path="/flush_cache")

    def readback(
        self, server_info: Mapping[str, Value] | None, evidence: Evidence | None = None, log_text: str = ""
    ) -> dict[str, Value]:
        found: dict[str, Value] = {}
        cap = SLOTS.search(log_text)
        if cap is not None:
            found["max_requests"] = int(cap["cap"])
        settings = (server_info or {}).get("settings")
        if isinstance(settings, dict):  # what a server says is never trusted to have a shape
            found.update({self.dialect.canonical(name): value for name, value in settings.items()})
        return found


ENGINE = ToyServe()
