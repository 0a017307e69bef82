"""What a CUDA image says of itself is no setting of anybody."""

from __future__ import annotations

from optimizer.engines.sglang import ENGINE


def test_versions_that_the_image_names_are_no_settings() -> None:
    """Seen on an H200: NCCL_VERSION of the image was refused as a dead setting of the server's owner."""
    image = {"NCCL_VERSION": "2.28.3-1", "CUDA_VERSION": "13.0.2"}
    chosen = {"NCCL_PROTO": "LL", "CUDA_VISIBLE_DEVICES": "0"}
    assert dict(ENGINE.environment_of_interest({**image, **chosen})) == chosen
