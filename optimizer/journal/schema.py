"""The journal's tables, triggers and views. The rules that make it a journal (append only, no gap, one open intent, one
outcome, no stale writer) are enforced here, by the file itself, against every program that opens it; Python only
explains their refusals. Never holds data or a connection."""

from optimizer.model.entry import GENESIS

# "OPT1" in ASCII: tells our files from other SQLite databases.
APPLICATION_ID = 0x4F505431

# Raised when a table, trigger or column changes; a newer file is only ever read.
USER_VERSION = 1

# STRICT tables.
SQLITE_MIN = (3, 37, 0)

# Refusals carry a code that store.py turns into an error of ours.
_STATUS = "coalesce(json_extract(body, '$.status'), json_extract(body, '$.outcome.status'), '')"

TABLES = f"""
CREATE TABLE lease (
  epoch INTEGER PRIMARY KEY CHECK (epoch > 0),
  host TEXT NOT NULL, pid INTEGER NOT NULL, pid_start TEXT NOT NULL, boot_id TEXT NOT NULL,
  at_utc TEXT NOT NULL, released_utc TEXT
) STRICT;

CREATE TABLE entry (
  seq    INTEGER PRIMARY KEY CHECK (seq > 0),
  at_utc TEXT NOT NULL,                       -- for people; never used in decisions
  epoch  INTEGER NOT NULL,                    -- the lease under which it was written
  kind   TEXT NOT NULL,
  key    TEXT CHECK (key <> ''),              -- idempotency key of intents and outcomes
  cause  INTEGER REFERENCES entry(seq),       -- the entry that justified this one
  schema INTEGER NOT NULL CHECK (schema > 0), -- version of this body
  body   TEXT NOT NULL CHECK (json_valid(body) AND json_type(body) = 'object'),
  prev   TEXT NOT NULL,
  hash   TEXT NOT NULL CHECK (length(hash) = 64),
  CHECK (kind NOT IN ('intent', 'outcome') OR key IS NOT NULL)
) STRICT;

-- One intent per key, and one outcome that settles it. An `unknown` outcome settles nothing: any number of them may
-- precede the one that reconciliation finds.
CREATE UNIQUE INDEX one_intent_one_outcome ON entry (kind, key)
  WHERE key IS NOT NULL AND NOT (kind = 'outcome' AND {_STATUS} = 'unknown');

-- So that the triggers below cost the same at entry ten and at entry one million.
CREATE INDEX entry_by_kind ON entry (kind, seq);
CREATE INDEX entry_by_key ON entry (key) WHERE key IS NOT NULL;

CREATE TABLE blob (
  sha256      TEXT PRIMARY KEY CHECK (length(sha256) = 64),
  encoding    TEXT NOT NULL,
  total_bytes INTEGER NOT NULL CHECK (total_bytes >= 0),
  kept        TEXT NOT NULL,                  -- 'all', or 'head:N,tail:M' in bytes of the original
  data        BLOB NOT NULL
) STRICT;
"""

TRIGGERS = f"""
CREATE TRIGGER entry_append_only BEFORE UPDATE ON entry
BEGIN SELECT raise(ABORT, 'append-only: entries are never changed'); END;
CREATE TRIGGER entry_kept BEFORE DELETE ON entry
BEGIN SELECT raise(ABORT, 'append-only: entries are never deleted'); END;
CREATE TRIGGER blob_append_only BEFORE UPDATE ON blob
BEGIN SELECT raise(ABORT, 'append-only: blobs are never changed'); END;
CREATE TRIGGER blob_kept BEFORE DELETE ON blob
BEGIN SELECT raise(ABORT, 'append-only: blobs are never deleted'); END;
CREATE TRIGGER lease_kept BEFORE DELETE ON lease
BEGIN SELECT raise(ABORT, 'append-only: leases are never deleted'); END;
CREATE TRIGGER lease_only_released BEFORE UPDATE ON lease
WHEN NEW.epoch <> OLD.epoch OR NEW.host <> OLD.host OR NEW.pid <> OLD.pid OR NEW.pid_start <> OLD.pid_start
  OR NEW.boot_id <> OLD.boot_id OR NEW.at_utc <> OLD.at_utc OR OLD.released_utc IS NOT NULL
BEGIN SELECT raise(ABORT, 'append-only: a lease can only be released'); END;
CREATE TRIGGER lease_rises BEFORE INSERT ON lease
WHEN NEW.epoch <> (SELECT coalesce(max(epoch), 0) + 1 FROM lease)
BEGIN SELECT raise(ABORT, 'stale: the epoch must be the next one'); END;

-- `INSERT OR REPLACE` deletes without firing a delete trigger unless recursive_triggers is on; a gapless sequence
-- refuses it.
CREATE TRIGGER entry_gapless BEFORE INSERT ON entry
WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM entry)
BEGIN SELECT raise(ABORT, 'gap: seq must be the next one'); END;

CREATE TRIGGER entry_epoch BEFORE INSERT ON entry
WHEN NEW.epoch <> (SELECT coalesce(max(epoch), 0) FROM lease)
BEGIN SELECT raise(ABORT, 'stale: this writer lost its lease'); END;

CREATE TRIGGER entry_chained BEFORE INSERT ON entry
WHEN NEW.prev <> coalesce((SELECT hash FROM entry ORDER BY seq DESC LIMIT 1), '{GENESIS}')
BEGIN SELECT raise(ABORT, 'chain: prev is not the hash of the last entry'); END;

CREATE TRIGGER entry_cause_is_past BEFORE INSERT ON entry
WHEN NEW.cause IS NOT NULL AND NOT EXISTS (SELECT 1 FROM entry WHERE seq = NEW.cause)
BEGIN SELECT raise(ABORT, 'cause: an entry can only be caused by an earlier one'); END;

-- One of each box, where the study has several.
CREATE TRIGGER one_open_intent BEFORE INSERT ON entry
WHEN NEW.kind = 'intent' AND EXISTS (
  SELECT 1 FROM entry AS i WHERE i.kind = 'intent' AND i.seq = (
      SELECT seq FROM entry WHERE kind = 'intent' AND json_extract(body, '$.box') IS json_extract(NEW.body, '$.box') ORDER BY seq DESC LIMIT 1)
    AND NOT EXISTS (
      SELECT 1 FROM entry WHERE kind = 'outcome' AND key = i.key AND seq > i.seq AND {_STATUS} <> 'unknown'))
BEGIN SELECT raise(ABORT, 'open: the last intent has no outcome yet'); END;

CREATE TRIGGER outcome_of_intent BEFORE INSERT ON entry
WHEN NEW.kind = 'outcome' AND NOT EXISTS (SELECT 1 FROM entry WHERE kind = 'intent' AND key = NEW.key)
BEGIN SELECT raise(ABORT, 'orphan: an outcome needs an intent with its key'); END;

CREATE TRIGGER outcome_once BEFORE INSERT ON entry
WHEN NEW.kind = 'outcome' AND EXISTS (
  SELECT 1 FROM entry WHERE kind = 'outcome' AND key = NEW.key AND {_STATUS} <> 'unknown')
BEGIN SELECT raise(ABORT, 'settled: this intent already has its outcome'); END;
"""
