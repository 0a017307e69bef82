"""A deployment of several processes: which setting goes to which of its members, and how each is started. Pure: command lines
in, command lines out. A single server never comes here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from optimizer.engines.base import Engine
from optimizer.model.base import Frozen
from optimizer.model.flags import FlagTable
from optimizer.model.settings import Settings
from optimizer.model.study import LaunchSpec, Member

# A setting that only one side of a split acts on. Every other one goes to all workers.
_PREFILL = re.compile(
    r"^(chunked_prefill_size|max_prefill_tokens|enable_dynamic_chunking|prefill_attention_backend|dsa_prefill_backend|disable_prefill_cuda_graph"
    r"|disable_piecewise_cuda_graph|piecewise_cuda_graph_\w+|cuda_graph_(bs|max_bs|backend)_prefill|cuda_graph_tc_compiler)$"
)
_DECODE = re.compile(
    r"^(cuda_graph_(bs|max_bs)(_decode)?|cuda_graph_backend_decode|disable(_decode)?_cuda_graph|disable_cuda_graph_padding"
    r"|enable_profile_cuda_graph|decode_attention_backend|dsa_decode_backend|num_continuous_decode_steps|stream_interval"
    r"|num_reserved_decode_tokens|decode_log_interval|schedule_conservativeness)$"
)


class MemberCommand(Frozen):
    """One member as it is to be started. ``env``: changes against the original's environment, None removes."""

    member: Member
    argv: tuple[str, ...]
    env: dict[str, str | None]
    settings: Settings  # those of the launch that are this member's
    port: int


def owner(param: str) -> str | None:
    """The role that alone acts on a setting; None for one that goes to every worker."""
    name = param.partition(".")[0]
    return "prefill" if _PREFILL.match(name) else "decode" if _DECODE.match(name) else None


def settings_for(role: str, settings: Settings) -> Settings:
    """The part of a launch's settings that members of this role get: a router none, a replica all."""
    if role == "router":
        return Settings()
    if role == "server":
        return settings
    return Settings(values={name: value for name, value in settings.values.items() if owner(name) in (None, role)})


def commands(
    adapter: Engine, launch: LaunchSpec, settings: Settings, *, port: int | None, served_name: str | None, flags: FlagTable
) -> tuple[MemberCommand, ...]:
    """How every member is started with these settings over its own command line. ``port`` is the router's (None: its own); workers
    keep theirs, as the router names them. Raises EngineError for a setting that this build cannot take."""
    found = []
    for member in launch.members:
        own = settings_for(member.role, settings)
        if member.role == "router":
            argv = member.argv if port is None else with_port(member.argv, port)
            found.append(MemberCommand(member=member, argv=argv, env={}, settings=own, port=member.port if port is None else port))
            continue
        command = adapter.command(member.argv, member.env, Settings(), own, port=None, served_name=served_name, flags=flags)
        found.append(MemberCommand(member=member, argv=command.argv, env=command.env, settings=own, port=member.port))
    return tuple(found)


def with_port(argv: Sequence[str], port: int) -> tuple[str, ...]:
    """A router's command line with another port, everything else as it is."""
    words = list(argv)
    for index in range(len(words) - 1, -1, -1):
        if words[index] == "--port" and index + 1 < len(words):
            words[index + 1] = str(port)
            return tuple(words)
        if words[index].startswith("--port="):
            words[index] = f"--port={port}"
            return tuple(words)
    return (*words, "--port", str(port))
