"""SQL views over the journal for people with sqlite-utils, datasette or the sqlite3 shell. They read bodies by JSON
path, show NULL where a body has no such key (``box`` where a study has one alone), and are never used by a decision."""

import sqlite3
from typing import Any

NAMES = ("decision", "trial", "measurement", "hypothesis", "flip", "refusal")

VIEWS = """
CREATE VIEW decision AS
SELECT seq, at_utc, json_extract(body, '$.box') AS box, kind,
       coalesce(json_extract(body, '$.hypothesis'), json_extract(body, '$.id')) AS subject,
       coalesce(CASE WHEN json_extract(body, '$.judgement.final') = 0 THEN 'not yet decided' END,
                json_extract(body, '$.judgement.verdict'), json_extract(body, '$.verdict'),
                json_extract(body, '$.kind'), json_extract(body, '$.ending')) AS verdict,
       json_extract(body, '$.judgement.ratio') AS ratio,
       json_extract(body, '$.judgement.low') AS ratio_low,
       json_extract(body, '$.judgement.high') AS ratio_high,
       coalesce(json_extract(body, '$.why'), json_extract(body, '$.reason'), json_extract(body, '$.text')) AS why,
       cause, body
FROM entry
WHERE kind NOT IN ('opened', 'intent', 'outcome', 'lease_taken', 'note');

CREATE VIEW trial AS
SELECT i.seq, i.at_utc, json_extract(i.body, '$.box') AS box, i.key,
       coalesce(json_extract(i.body, '$.step.kind'), json_extract(i.body, '$.kind')) AS step,
       coalesce(json_extract(i.body, '$.step.settings.values'), json_extract(i.body, '$.step.settings'),
                json_extract(i.body, '$.settings.values'), json_extract(i.body, '$.settings')) AS settings,
       coalesce(json_extract(o.body, '$.status'), json_extract(o.body, '$.outcome.status'), 'open') AS status,
       coalesce(json_extract(o.body, '$.cause'), json_extract(o.body, '$.outcome.cause')) AS failure,
       coalesce(json_extract(o.body, '$.message'), json_extract(o.body, '$.outcome.message')) AS message,
       coalesce(json_extract(o.body, '$.duration_s'), json_extract(o.body, '$.outcome.duration_s')) AS duration_s,
       i.cause, o.seq AS outcome_seq
FROM entry AS i
LEFT JOIN entry AS o ON o.seq = (SELECT max(seq) FROM entry WHERE kind = 'outcome' AND key = i.key)
WHERE i.kind = 'intent';

CREATE VIEW measurement AS
SELECT o.seq, o.at_utc, json_extract(o.body, '$.box') AS box, o.key,
       json_extract(p.value, '$.concurrency') AS concurrency,
       json_extract(p.value, '$.metrics.output_tokens_per_s') AS output_tokens_per_s,
       json_extract(p.value, '$.metrics.ttft_p50_ms') AS ttft_p50_ms,
       json_extract(p.value, '$.metrics.ttft_p99_ms') AS ttft_p99_ms,
       json_extract(p.value, '$.metrics.tpot_p50_ms') AS tpot_p50_ms,
       json_extract(p.value, '$.requests_ok') AS requests_ok,
       json_extract(p.value, '$.requests_failed') AS requests_failed,
       json_extract(p.value, '$.window_s') AS window_s,
       json_extract(p.value, '$.invalid') AS invalid
FROM entry AS o,
     json_each(o.body, CASE WHEN json_type(o.body, '$.outcome') = 'object' THEN '$.outcome.body.measurement.points'
                            WHEN json_type(o.body, '$.measurement') = 'object' THEN '$.measurement.points'
                            ELSE '$.body.measurement.points' END) AS p
WHERE o.kind = 'outcome';

CREATE VIEW hypothesis AS
SELECT e.seq, e.at_utc, json_extract(e.body, '$.box') AS box,
       coalesce(json_extract(h.value, '$.id'), json_extract(h.value, '$.hypothesis')) AS id,
       json_extract(h.value, '$.family') AS family,
       coalesce(json_extract(h.value, '$.score_db'), json_extract(h.value, '$.db')) AS score_db,
       json_extract(h.value, '$.probability') AS probability,
       json_extract(h.value, '$.status') AS status
FROM entry AS e, json_each(e.body, '$.hypotheses') AS h
WHERE e.kind = 'ranked' AND h.type = 'object';

CREATE VIEW flip AS
SELECT e.seq, e.at_utc, json_extract(e.body, '$.box') AS box,
       json_extract(f.value, '$.fact') AS fact,
       json_extract(f.value, '$.before') AS before,
       json_extract(f.value, '$.after') AS after,
       coalesce(json_extract(f.value, '$.blame'), json_extract(f.value, '$.blamed')) AS blame,
       json_extract(f.value, '$.expected') AS expected
FROM entry AS e, json_each(e.body, '$.flips') AS f
WHERE e.kind = 'flipped' AND f.type = 'object';

CREATE VIEW refusal AS
SELECT seq, at_utc, json_extract(body, '$.box') AS box,
       json_extract(body, '$.kind') AS kind,
       json_extract(body, '$.hypothesis') AS hypothesis,
       json_extract(body, '$.params') AS params,
       json_extract(body, '$.why') AS why,
       json_extract(body, '$.source') AS source,
       cause
FROM entry
WHERE kind = 'refused';
"""


def check_name(view: str) -> None:
    if view not in NAMES:
        raise ValueError(f"no view {view!r}; there are {', '.join(NAMES)}")


def rows(connection: sqlite3.Connection, view: str) -> list[dict[str, Any]]:
    """All rows of a view, column name -> value."""
    import sqlite_utils  # here, because it costs every command 0.1 s and only people's listings need it

    return list(sqlite_utils.Database(connection).query(f"SELECT * FROM [{view}]"))
