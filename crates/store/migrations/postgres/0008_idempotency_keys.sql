-- 0008_idempotency_keys.sql: keys, and ids that publishers chose, so that nothing is published twice.
CREATE TABLE idempotency_keys (
  tenant        TEXT COLLATE "C"    NOT NULL,
  kind          TEXT COLLATE "C"    NOT NULL CHECK (kind IN ('key', 'id')),
  key           TEXT COLLATE "C"    NOT NULL,
  event_slot    INTEGER NOT NULL,
  event_seq     BIGINT NOT NULL,
  fingerprint   BYTEA    NOT NULL CHECK (octet_length(fingerprint) = 32),
  expires_at_ms BIGINT,  -- for an id: when its event's day is dropped; NULL once that event was kept aside
  PRIMARY KEY (tenant, kind, key)
);

CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at_ms) WHERE expires_at_ms IS NOT NULL;
