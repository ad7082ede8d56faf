-- 0002_events.sql: what happened, once, whatever the number of endpoints. Mirrors `Event` in core.
CREATE TABLE events (
  tenant         TEXT    NOT NULL,
  id             TEXT    NOT NULL,
  type           TEXT    NOT NULL,
  version        TEXT,
  timestamp_ms   INTEGER NOT NULL,
  accepted_at_ms INTEGER NOT NULL,
  data           TEXT    NOT NULL,  -- to the byte as it was published
  digest         BLOB    NOT NULL CHECK (length(digest) = 32),  -- SHA-256 of data, checked before it is sent
  labels         TEXT    NOT NULL,  -- one a line
  PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
