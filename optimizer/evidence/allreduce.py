"""Why an engine's own all-reduce is off, from the words of either engine's log. Knows nothing of lines or files."""


def reason_off(low: bytes) -> str:
    """Vocabulary value of ``allreduce.custom`` for the logged reason (lower case)."""
    for needle, value in (
        (b"pcie-only", "off_pcie_only"),
        (b"pcie only", "off_pcie_only"),
        (b"p2p", "off_no_p2p"),
        (b"peer", "off_no_p2p"),
        (b"world size", "off_world_size"),
        (b"across nodes", "off_multi_node"),
        (b"spans", "off_multi_node"),
        (b"failed", "off_setup_failed"),
        (b"library", "off_setup_failed"),
    ):
        if needle in low:
            return value
    return "off"
