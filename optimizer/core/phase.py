"""Where in its course a study is, in the design's words: for the live view and for other programs, never for a decision."""

from optimizer.core.state import State

PHASES = ("survey", "secure", "calibrate", "baseline", "rank", "test", "confirm", "closing", "closed")


def phase_of(state: State) -> str:
    """The phase of the state machine that the study, or one box of it, is in: one of ``PHASES``."""
    if state.closed is not None:
        return "closed"
    if state.closing is not None:
        return "closing"
    if state.survey is None:
        return "survey"
    if not state.armed:
        return "secure"
    if state.calibrated is None:
        return "calibrate"
    if not state.base_arm.results:
        return "baseline"
    if state.test is not None:
        return "test"
    if state.server is not None and state.server.purpose == "confirm":
        return "confirm"
    return "rank"
