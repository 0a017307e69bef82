"""The load generator's parts. They are sent to the box and run there: standard library only, Python 3.8 syntax, no import from
the rest of the package except from each other. ``optimizer.bench.program`` packs them."""
