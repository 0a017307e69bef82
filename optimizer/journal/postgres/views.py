"""The same views as in a journal's file, over all studies of the database: for people with psql or a dashboard. They read
bodies by JSON path, show NULL where a body has no such key, and are never used by a decision."""

VIEWS = """
-- A number, or NULL for anything else: a view must not fail on one odd body.
CREATE FUNCTION optimize.number(value jsonb) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT CASE WHEN jsonb_typeof(value) = 'number' THEN (value #>> '{}')::double precision END $$;
CREATE FUNCTION optimize.list(value jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT CASE WHEN jsonb_typeof(value) = 'array' THEN value ELSE '[]'::jsonb END $$;

CREATE VIEW optimize.decision AS
SELECT s.name AS study, e.seq, e.at_utc, b ->> 'box' AS box, e.kind,
       coalesce(b ->> 'hypothesis', b ->> 'id') AS subject,
       coalesce(CASE WHEN b #>> '{judgement,final}' = 'false' THEN 'not yet decided' END, b #>> '{judgement,verdict}', b ->> 'verdict', b ->> 'kind', b ->> 'ending') AS verdict,
       optimize.number(b #> '{judgement,ratio}') AS ratio,
       optimize.number(b #> '{judgement,low}') AS ratio_low,
       optimize.number(b #> '{judgement,high}') AS ratio_high,
       coalesce(b ->> 'why', b ->> 'reason', b ->> 'text') AS why,
       e.cause, e.body
FROM optimize.entry AS e JOIN optimize.study AS s ON s.id = e.study
     CROSS JOIN LATERAL (SELECT optimize.document(e.body) AS b) AS parsed
WHERE e.kind NOT IN ('opened', 'intent', 'outcome', 'lease_taken', 'note');

CREATE VIEW optimize.trial AS
SELECT s.name AS study, i.seq, i.at_utc, b ->> 'box' AS box, i.key,
       coalesce(b #>> '{step,kind}', b ->> 'kind') AS step,
       coalesce(b #>> '{step,settings,values}', b #>> '{step,settings}', b #>> '{settings,values}', b ->> 'settings') AS settings,
       coalesce(r ->> 'status', r #>> '{outcome,status}', 'open') AS status,
       coalesce(r ->> 'cause', r #>> '{outcome,cause}') AS failure,
       coalesce(r ->> 'message', r #>> '{outcome,message}') AS message,
       optimize.number(coalesce(r -> 'duration_s', r #> '{outcome,duration_s}')) AS duration_s,
       i.cause, o.seq AS outcome_seq
FROM optimize.entry AS i JOIN optimize.study AS s ON s.id = i.study
     CROSS JOIN LATERAL (SELECT optimize.document(i.body) AS b) AS parsed
     LEFT JOIN optimize.entry AS o ON o.study = i.study AND o.seq = (
       SELECT max(seq) FROM optimize.entry WHERE study = i.study AND kind = 'outcome' AND key = i.key)
     LEFT JOIN LATERAL (SELECT optimize.document(o.body) AS r) AS ended ON true
WHERE i.kind = 'intent';

CREATE VIEW optimize.measurement AS
SELECT s.name AS study, o.seq, o.at_utc, b ->> 'box' AS box, o.key,
       optimize.number(p -> 'concurrency') AS concurrency,
       optimize.number(p #> '{metrics,output_tokens_per_s}') AS output_tokens_per_s,
       optimize.number(p #> '{metrics,ttft_p50_ms}') AS ttft_p50_ms,
       optimize.number(p #> '{metrics,ttft_p99_ms}') AS ttft_p99_ms,
       optimize.number(p #> '{metrics,tpot_p50_ms}') AS tpot_p50_ms,
       optimize.number(p -> 'requests_ok') AS requests_ok,
       optimize.number(p -> 'requests_failed') AS requests_failed,
       optimize.number(p -> 'window_s') AS window_s,
       p ->> 'invalid' AS invalid
FROM optimize.entry AS o JOIN optimize.study AS s ON s.id = o.study
     CROSS JOIN LATERAL (SELECT optimize.document(o.body) AS b) AS parsed
     CROSS JOIN LATERAL jsonb_array_elements(optimize.list(
       CASE WHEN jsonb_typeof(b -> 'outcome') = 'object' THEN b #> '{outcome,body,measurement,points}'
            WHEN jsonb_typeof(b -> 'measurement') = 'object' THEN b #> '{measurement,points}'
            ELSE b #> '{body,measurement,points}' END)) AS p
WHERE o.kind = 'outcome';

CREATE VIEW optimize.hypothesis AS
SELECT s.name AS study, e.seq, e.at_utc, optimize.document(e.body) ->> 'box' AS box,
       coalesce(h ->> 'id', h ->> 'hypothesis') AS id,
       h ->> 'family' AS family,
       optimize.number(coalesce(h -> 'score_db', h -> 'db')) AS score_db,
       optimize.number(h -> 'probability') AS probability,
       h ->> 'status' AS status
FROM optimize.entry AS e JOIN optimize.study AS s ON s.id = e.study
     CROSS JOIN LATERAL jsonb_array_elements(optimize.list(optimize.document(e.body) -> 'hypotheses')) AS h
WHERE e.kind = 'ranked' AND jsonb_typeof(h) = 'object';

CREATE VIEW optimize.flip AS
SELECT s.name AS study, e.seq, e.at_utc, optimize.document(e.body) ->> 'box' AS box,
       f ->> 'fact' AS fact, f ->> 'before' AS before, f ->> 'after' AS after,
       coalesce(f ->> 'blame', f ->> 'blamed') AS blame, f ->> 'expected' AS expected
FROM optimize.entry AS e JOIN optimize.study AS s ON s.id = e.study
     CROSS JOIN LATERAL jsonb_array_elements(optimize.list(optimize.document(e.body) -> 'flips')) AS f
WHERE e.kind = 'flipped' AND jsonb_typeof(f) = 'object';

CREATE VIEW optimize.refusal AS
SELECT s.name AS study, e.seq, e.at_utc, b ->> 'box' AS box,
       b ->> 'kind' AS kind, b ->> 'hypothesis' AS hypothesis, b ->> 'params' AS params, b ->> 'why' AS why,
       b ->> 'source' AS source, e.cause
FROM optimize.entry AS e JOIN optimize.study AS s ON s.id = e.study
     CROSS JOIN LATERAL (SELECT optimize.document(e.body) AS b) AS parsed
WHERE e.kind = 'refused';
"""
