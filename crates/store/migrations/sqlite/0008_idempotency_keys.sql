-- 0008_idempotency_keys.sql: keys, and ids that publishers chose, so that nothing is published twice.
CREATE TABLE idempotency_keys (
  tenant        TEXT    NOT NULL,
  kind          TEXT    NOT NULL CHECK (kind = 'key' OR kind = 'id'),
  key           TEXT    NOT NULL,
  event_seq     INTEGER NOT NULL,
  fingerprint   BLOB    NOT NULL CHECK (length(fingerprint) = 32),
  expires_at_ms INTEGER,  -- NULL for an id: as long as its event
  PRIMARY KEY (tenant, kind, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at_ms) WHERE expires_at_ms IS NOT NULL;
