-- 0012_replays.sql: requests to send again. A step's rows and its cursor are written together.
CREATE TABLE replays (
  id              BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  tenant          TEXT,
  filter          TEXT    NOT NULL,
  reason          TEXT    NOT NULL,
  requested_by    TEXT    NOT NULL,
  rate_per_minute INTEGER NOT NULL,
  idempotency_key TEXT,
  state           TEXT    NOT NULL CHECK (state = 'running' OR state = 'done' OR state = 'cancelled'),
  matched         INTEGER NOT NULL,
  created         INTEGER NOT NULL,
  cursor          INTEGER NOT NULL,  -- rows up to this one are done
  up_to           INTEGER NOT NULL,  -- rows made later are not part of it
  created_at_ms   INTEGER NOT NULL,
  ended_at_ms     INTEGER CHECK ((ended_at_ms IS NULL) = (state = 'running'))
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX replays_by_key ON replays (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX replays_running ON replays (created_at_ms) WHERE state = 'running';
