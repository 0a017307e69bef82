"""Files that are sent to the box and run there: standard library only, Python 3.8 syntax, no import from the rest of
the package except from each other. ``optimizer.box.program`` packs them; nothing here ever runs on the coordinator's
side."""
