"""Which server processes of a box belong together: the prefill and decode side of one split, and the router before them. Works on what
``host.json`` says of each process; opens nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

_SIDES = ("prefill", "decode")


def groups(servers: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The servers in groups that serve one address together, in the order of their first process.

    Two belong together when a router names the other's port as its worker, or when they are the two sides of a split of one model by
    one engine. Two servers that merely run beside each other do not, whatever their ports.
    """
    parent = list(range(len(servers)))

    def top(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    for one, left in enumerate(servers):
        for other, right in enumerate(servers):
            if one != other and (_routes(left, right) or _halves(left, right)):
                low, high = sorted((top(one), top(other)))
                parent[high] = low
    found: dict[int, list[Mapping[str, Any]]] = {}
    for index, server in enumerate(servers):
        found.setdefault(top(index), []).append(server)
    return list(found.values())


def _routes(router: Mapping[str, Any], server: Mapping[str, Any]) -> bool:
    workers = router.get("workers")
    return router.get("role") == "router" and isinstance(workers, list) and server.get("port") is not None and server["port"] in workers


def _halves(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    roles = {left.get("role"), right.get("role")}
    same = all(left.get(key) is not None and left.get(key) == right.get(key) for key in ("engine", "model"))
    # Several workers of one side are one deployment with the other side, which joins them; alone they are replicas.
    return same and roles == set(_SIDES)


def described(group: Sequence[Mapping[str, Any]]) -> list[str]:
    """``prefill:30001`` for each process of a group, the router first."""
    order = {"router": 0, "prefill": 1, "decode": 2}
    rows = sorted(group, key=lambda item: (order.get(str(item.get("role")), 3), item.get("port") or 0, item.get("pid") or 0))
    return [f"{item.get('role') or 'server'}:{item['port']}" if item.get("port") is not None else str(item.get("role") or "server") for item in rows]
