-- 0012_replays.sql: requests to send again. A step's rows and its cursor are written together.
CREATE TABLE replays (
  id              BYTEA    NOT NULL PRIMARY KEY CHECK (octet_length(id) = 16),
  tenant          TEXT COLLATE "C",
  filter          TEXT COLLATE "C"    NOT NULL,
  reason          TEXT COLLATE "C"    NOT NULL,
  requested_by    TEXT COLLATE "C"    NOT NULL,
  rate_per_minute BIGINT NOT NULL,
  idempotency_key TEXT COLLATE "C",
  state           TEXT COLLATE "C"    NOT NULL CHECK (state IN ('running', 'done', 'cancelled')),
  matched         BIGINT NOT NULL,
  created         BIGINT NOT NULL,
  cursor          BIGINT NOT NULL,  -- rows up to this one are done
  up_to           BIGINT NOT NULL,  -- rows made later are not part of it
  created_at_ms   BIGINT NOT NULL,
  ended_at_ms     BIGINT CHECK ((ended_at_ms IS NULL) = (state = 'running'))
);

CREATE UNIQUE INDEX replays_by_key ON replays (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX replays_running ON replays (created_at_ms) WHERE state = 'running';
