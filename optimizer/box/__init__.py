"""Everything the tool does to a host, through a transport: find servers, launch, guard, sweep, restore."""
