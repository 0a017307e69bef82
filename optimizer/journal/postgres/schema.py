"""The tables and triggers of journals in PostgreSQL. The rules that make a journal are enforced here, by the database
itself, against every program that connects, and with the words that SQLite's triggers use: append only, no gap, one open
intent, one outcome, no stale writer. One rule is the database's own: only the session that holds the study's advisory
lock may append to it. Never holds data or a connection."""

from optimizer.model.entry import GENESIS

NAMESPACE = "optimize"

# Raised when a table, trigger or column changes; a newer one is only ever read.
VERSION = 1

# First half of the keys of advisory locks ("OPT1", "OPT2" in ASCII); the second half is the study's id, 0 for the tables.
LEASE_LOCK = 0x4F505431  # held by a coordinator's session as long as it drives the study
APPEND_LOCK = 0x4F505432  # held by a transaction that appends

SERVER_MIN = 130000

TABLES = """
CREATE SCHEMA optimize;

CREATE TABLE optimize.format (version integer NOT NULL, made_utc text NOT NULL);

CREATE TABLE optimize.study (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE CHECK (name <> ''),
  created_utc text NOT NULL
);

CREATE TABLE optimize.lease (
  study integer NOT NULL REFERENCES optimize.study,
  epoch integer NOT NULL CHECK (epoch > 0),
  host text NOT NULL, pid integer NOT NULL, pid_start text NOT NULL, boot_id text NOT NULL,
  at_utc text NOT NULL, released_utc text,
  backend integer, backend_start timestamptz,  -- the session that took it
  PRIMARY KEY (study, epoch)
);

-- A request to the holder of a lease to end the study.
CREATE TABLE optimize.stop (
  study integer NOT NULL, epoch integer NOT NULL, at_utc text NOT NULL,
  PRIMARY KEY (study, epoch), FOREIGN KEY (study, epoch) REFERENCES optimize.lease
);

-- Postgres refuses U+0000 in jsonb; the text itself is kept as it was hashed.
CREATE FUNCTION optimize.document(body text) RETURNS jsonb LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  AS $$ SELECT replace(body, '\\u0000', '\\ufffd')::jsonb $$;

CREATE FUNCTION optimize.status(body text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  AS $$ SELECT coalesce(optimize.document(body) ->> 'status', optimize.document(body) #>> '{outcome,status}', '') $$;

CREATE TABLE optimize.entry (
  study  integer NOT NULL REFERENCES optimize.study,
  seq    integer NOT NULL CHECK (seq > 0),
  at_utc text NOT NULL,                       -- for people; never used in decisions
  epoch  integer NOT NULL,                    -- the lease under which it was written
  kind   text NOT NULL,
  key    text CHECK (key <> ''),              -- idempotency key of intents and outcomes
  cause  integer,                             -- the entry that justified this one
  schema integer NOT NULL CHECK (schema > 0), -- version of this body
  body   text NOT NULL CHECK (json_typeof(body::json) = 'object'),
  prev   text NOT NULL,
  hash   text NOT NULL CHECK (length(hash) = 64),
  PRIMARY KEY (study, seq),
  FOREIGN KEY (study, epoch) REFERENCES optimize.lease,
  FOREIGN KEY (study, cause) REFERENCES optimize.entry (study, seq),
  CHECK (kind NOT IN ('intent', 'outcome') OR key IS NOT NULL)
);

-- One intent per key, and one outcome that settles it. An `unknown` outcome settles nothing: any number of them may
-- precede the one that reconciliation finds.
CREATE UNIQUE INDEX one_intent_one_outcome ON optimize.entry (study, kind, key)
  WHERE key IS NOT NULL AND NOT (kind = 'outcome' AND optimize.status(body) = 'unknown');

-- So that the triggers below cost the same at entry ten and at entry one million.
CREATE INDEX entry_by_kind ON optimize.entry (study, kind, seq);
CREATE INDEX entry_by_key ON optimize.entry (study, key) WHERE key IS NOT NULL;

CREATE TABLE optimize.blob (
  study       integer NOT NULL REFERENCES optimize.study,
  sha256      text NOT NULL CHECK (length(sha256) = 64),
  encoding    text NOT NULL,
  total_bytes bigint NOT NULL CHECK (total_bytes >= 0),
  kept        text NOT NULL,                  -- 'all', or 'head:N,tail:M' in bytes of the original
  data        bytea NOT NULL,
  PRIMARY KEY (study, sha256)
);
ALTER TABLE optimize.blob ALTER COLUMN data SET STORAGE EXTERNAL;  -- is compressed already

-- What studies taught about predictions, a row per test. `mark` keeps a test from being counted twice.
CREATE TABLE optimize.taught (
  mark text PRIMARY KEY CHECK (mark <> ''),
  at_utc text NOT NULL,
  sums text CHECK (json_typeof(sums::json) = 'object')  -- NULL: its sums stand in the row of another mark
);
"""

TRIGGERS = f"""
CREATE FUNCTION optimize.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'append-only: %', TG_ARGV[0]; END $$;

CREATE TRIGGER entry_append_only BEFORE UPDATE ON optimize.entry
  FOR EACH ROW EXECUTE FUNCTION optimize.refuse('entries are never changed');
CREATE TRIGGER entry_kept BEFORE DELETE ON optimize.entry
  FOR EACH ROW EXECUTE FUNCTION optimize.refuse('entries are never deleted');
CREATE TRIGGER entry_not_emptied BEFORE TRUNCATE ON optimize.entry
  EXECUTE FUNCTION optimize.refuse('entries are never deleted');
CREATE TRIGGER blob_append_only BEFORE UPDATE ON optimize.blob
  FOR EACH ROW EXECUTE FUNCTION optimize.refuse('blobs are never changed');
CREATE TRIGGER blob_kept BEFORE DELETE ON optimize.blob
  FOR EACH ROW EXECUTE FUNCTION optimize.refuse('blobs are never deleted');
CREATE TRIGGER blob_not_emptied BEFORE TRUNCATE ON optimize.blob
  EXECUTE FUNCTION optimize.refuse('blobs are never deleted');
CREATE TRIGGER lease_kept BEFORE DELETE ON optimize.lease
  FOR EACH ROW EXECUTE FUNCTION optimize.refuse('leases are never deleted');
CREATE TRIGGER lease_not_emptied BEFORE TRUNCATE ON optimize.lease
  EXECUTE FUNCTION optimize.refuse('leases are never deleted');
CREATE TRIGGER study_kept BEFORE UPDATE OR DELETE ON optimize.study
  FOR EACH ROW EXECUTE FUNCTION optimize.refuse('studies are never renamed or deleted');

CREATE FUNCTION optimize.check_release() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (NEW.study, NEW.epoch, NEW.host, NEW.pid, NEW.pid_start, NEW.boot_id, NEW.at_utc)
     IS DISTINCT FROM (OLD.study, OLD.epoch, OLD.host, OLD.pid, OLD.pid_start, OLD.boot_id, OLD.at_utc)
     OR OLD.released_utc IS NOT NULL THEN
    RAISE EXCEPTION 'append-only: a lease can only be released';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER lease_only_released BEFORE UPDATE ON optimize.lease
  FOR EACH ROW EXECUTE FUNCTION optimize.check_release();

-- Whether this very session holds the study. A pooler that hands each transaction to another session fails here.
CREATE FUNCTION optimize.held(study integer) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (
    SELECT 1 FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted
      AND classid = {LEASE_LOCK}::oid AND objid = $1::oid AND objsubid = 2
      AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())) $$;

CREATE FUNCTION optimize.check_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock({APPEND_LOCK}, NEW.study);
  IF NOT optimize.held(NEW.study) THEN
    RAISE EXCEPTION 'stale: this session does not hold the study''s lock';
  END IF;
  IF NEW.epoch <> (SELECT coalesce(max(epoch), 0) + 1 FROM optimize.lease WHERE study = NEW.study) THEN
    RAISE EXCEPTION 'stale: the epoch must be the next one';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER lease_rises BEFORE INSERT ON optimize.lease FOR EACH ROW EXECUTE FUNCTION optimize.check_lease();

-- Each statement below sees what was committed before it began, and the lock is taken first: no two transactions append
-- to one study at once, and the second sees what the first has done.
CREATE FUNCTION optimize.check_entry() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  last_seq integer := 0; last_hash text := '{GENESIS}'; open_key text; open_seq integer;
BEGIN
  PERFORM pg_advisory_xact_lock({APPEND_LOCK}, NEW.study);
  SELECT e.seq, e.hash INTO last_seq, last_hash FROM optimize.entry AS e WHERE e.study = NEW.study ORDER BY e.seq DESC LIMIT 1;
  IF NEW.seq IS DISTINCT FROM coalesce(last_seq, 0) + 1 THEN
    RAISE EXCEPTION 'gap: seq must be the next one';
  END IF;
  IF NEW.epoch IS DISTINCT FROM (SELECT coalesce(max(l.epoch), 0) FROM optimize.lease AS l WHERE l.study = NEW.study) THEN
    RAISE EXCEPTION 'stale: this writer lost its lease';
  END IF;
  IF NEW.prev IS DISTINCT FROM coalesce(last_hash, '{GENESIS}') THEN
    RAISE EXCEPTION 'chain: prev is not the hash of the last entry';
  END IF;
  IF NEW.cause IS NOT NULL AND NOT EXISTS (SELECT 1 FROM optimize.entry WHERE study = NEW.study AND seq = NEW.cause) THEN
    RAISE EXCEPTION 'cause: an entry can only be caused by an earlier one';
  END IF;
  IF NEW.kind = 'intent' THEN
    SELECT e.key, e.seq INTO open_key, open_seq FROM optimize.entry AS e
      WHERE e.study = NEW.study AND e.kind = 'intent'
        AND optimize.document(e.body) ->> 'box' IS NOT DISTINCT FROM optimize.document(NEW.body) ->> 'box'  -- one of each box
      ORDER BY e.seq DESC LIMIT 1;
    IF open_seq IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM optimize.entry AS e WHERE e.study = NEW.study AND e.kind = 'outcome' AND e.key = open_key AND e.seq > open_seq
        AND optimize.status(e.body) <> 'unknown') THEN
      RAISE EXCEPTION 'open: the last intent has no outcome yet';
    END IF;
  ELSIF NEW.kind = 'outcome' THEN
    IF NOT EXISTS (SELECT 1 FROM optimize.entry AS e WHERE e.study = NEW.study AND e.kind = 'intent' AND e.key = NEW.key) THEN
      RAISE EXCEPTION 'orphan: an outcome needs an intent with its key';
    END IF;
    IF EXISTS (SELECT 1 FROM optimize.entry AS e WHERE e.study = NEW.study AND e.kind = 'outcome' AND e.key = NEW.key
               AND optimize.status(e.body) <> 'unknown') THEN
      RAISE EXCEPTION 'settled: this intent already has its outcome';
    END IF;
  END IF;
  IF NOT optimize.held(NEW.study) THEN
    RAISE EXCEPTION 'stale: this session does not hold the study''s lock';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER entry_rules BEFORE INSERT ON optimize.entry FOR EACH ROW EXECUTE FUNCTION optimize.check_entry();
"""
