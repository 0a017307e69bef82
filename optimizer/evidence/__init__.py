"""What a server, a box and a benchmark said, turned into facts. Pure: bytes in, facts out; only ``bundle.read_bundle``
opens files."""
