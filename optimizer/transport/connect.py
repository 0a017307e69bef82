"""Turns what the user calls a host into a transport. It opens no connection for a name that cannot be one."""

import re

from optimizer.errors import UsageError
from optimizer.transport.base import Transport
from optimizer.transport.local import LocalTransport

_HOST = re.compile(r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*)@)?(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[?[0-9A-Fa-f:]+:[0-9A-Fa-f:.]*\]?)"
                   r"(?::(?P<port>[0-9]{1,5}))?")  # fmt: skip


async def connect(host: str) -> Transport:
    """``localhost`` is this machine without SSH; everything else is a name for SSH: an alias of ``~/.ssh/config``,
    ``user@host`` or ``host:port``. Connected on return. Raises UsageError, HostUnknown, HostKeyChanged, AuthRefused,
    PythonMissing, LinkLost."""
    if host == "localhost":
        return LocalTransport()
    match = _HOST.fullmatch(host)
    if match is None:
        raise UsageError(
            f"{host!r} is no host name.", hint="Examples: --host gpu-box, --host me@10.0.0.5, --host localhost."
        )
    from optimizer.transport.ssh import SSHTransport  # asyncssh takes 0.2 s to import: only when it is needed

    transport = SSHTransport(
        match["host"].strip("[]"), user=match["user"], port=int(match["port"]) if match["port"] else None
    )
    await transport.connect()
    return transport
