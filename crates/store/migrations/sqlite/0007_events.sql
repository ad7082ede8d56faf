-- 0007_events.sql: what happened, once, whatever the number of endpoints. Mirrors `Event` in core.
CREATE TABLE events (
  seq             INTEGER PRIMARY KEY,
  tenant          TEXT    NOT NULL,
  id              TEXT    NOT NULL,
  type            TEXT    NOT NULL,
  version         TEXT,
  timestamp_ms    INTEGER NOT NULL,
  accepted_at_ms  INTEGER NOT NULL,
  data            TEXT,  -- to the byte as it was published; NULL once it was erased
  digest          BLOB    NOT NULL CHECK (length(digest) = 32),  -- SHA-256 of data, checked before it is sent
  labels          TEXT    NOT NULL,  -- one a line
  idempotency_key TEXT,
  ordering_key    TEXT,
  deliver_at_ms   INTEGER,
  expires_at_ms   INTEGER,
  erased_at_ms    INTEGER CHECK ((erased_at_ms IS NULL) = (data IS NOT NULL))
) STRICT;

-- The id first: whoever may see all tenants asks without naming one; and ids that we make grow, so that all tenants write to the same page.
CREATE UNIQUE INDEX events_by_id ON events (id, tenant);
-- And by seq, as every index is.
CREATE INDEX events_by_tenant ON events (tenant);
