"""What a box could do: pure arithmetic from model shape, hardware and the facts of a launch. No I/O, no clock; where an
input is unknown the answer is ``NoCeiling`` with the reason, never an invented number."""
