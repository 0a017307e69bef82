"""The text of the few answers that are looked at after the run. Runs on the box."""

import json

MIN_PIECES = 16  # of text, that an answer must have for a statement about repetition


def pieces_of(body):
    """The text of each event of a kept body, in order: about one token each."""
    pieces = []
    for event in body.replace(b"\r", b"").split(b"\n\n"):
        try:
            value = json.loads(event[5:].decode("utf-8"))
            choice = value["choices"][0] if "choices" in value else {"text": value.get("content")}
            piece = choice.get("text") or (choice.get("delta") or {}).get("content")
        except (ValueError, LookupError, TypeError, AttributeError):
            continue  # [DONE], usage, an event that holds no text
        if isinstance(piece, str) and piece:
            pieces.append(piece)
    return pieces


def repeat_share(pieces):
    """How often the piece that followed the last three where they were seen before in the same answer comes again: what
    drafting from the answer's own text could get right. None for an answer too short to tell."""
    if len(pieces) < MIN_PIECES:
        return None
    followed, right = {}, 0
    for at in range(3, len(pieces)):
        head = tuple(pieces[at - 3 : at])
        right += followed.get(head) == pieces[at]
        followed[head] = pieces[at]
    return right / float(len(pieces) - 3)
