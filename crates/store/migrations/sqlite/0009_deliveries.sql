-- 0009_deliveries.sql: one event on its way to one endpoint. Mirrors `State` in core.
-- Checks are written out: for `IN (…)` SQLite makes a table of the list for every row that is written. What depends on the status is one
-- check, which looks at it once.
CREATE TABLE deliveries (
  seq                INTEGER PRIMARY KEY,  -- the order of acceptance
  id                 BLOB    NOT NULL CHECK (length(id) = 16),
  tenant             TEXT    NOT NULL,
  partition          INTEGER NOT NULL,
  endpoint           BLOB    NOT NULL,
  event_seq          INTEGER NOT NULL,
  event              TEXT    NOT NULL,
  type               TEXT    NOT NULL,
  is_priority        INTEGER NOT NULL CHECK (is_priority = 0 OR is_priority = 1),
  class              INTEGER NOT NULL CHECK (class = 0 OR class = 1 OR class = 2),  -- priority, exempt from quiet hours, rest
  ordering_key       TEXT,
  timestamp_ms       INTEGER NOT NULL,  -- when it happened, or for a replay when that was asked for
  status             TEXT    NOT NULL,  -- waiting, delivered, dead, cancelled
  due_at_ms          INTEGER,  -- not before; NULL once it has ended
  is_later           INTEGER NOT NULL CHECK (is_later = 0 OR is_later = 1),  -- due by a failure or by deliver_at
  expires_at_ms      INTEGER,
  ended_at_ms        INTEGER,
  dead_reason        TEXT,
  cancel_reason      TEXT,
  attempts           INTEGER NOT NULL DEFAULT 0,
  last_attempt_at_ms INTEGER,
  last_status_code   INTEGER,
  last_error         TEXT,
  replay_of          INTEGER,  -- the delivery that this one repeats; NULL for an original
  replay             BLOB,     -- the replay that made it
  replayed_as        INTEGER,  -- the delivery that repeats this one
  created_at_ms      INTEGER NOT NULL,
  CHECK (CASE status
    WHEN 'waiting'   THEN due_at_ms IS NOT NULL AND ended_at_ms IS NULL AND dead_reason IS NULL AND cancel_reason IS NULL
    WHEN 'delivered' THEN due_at_ms IS NULL AND ended_at_ms IS NOT NULL AND dead_reason IS NULL AND cancel_reason IS NULL
    WHEN 'dead'      THEN due_at_ms IS NULL AND ended_at_ms IS NOT NULL AND cancel_reason IS NULL AND dead_reason IS NOT NULL
      AND (dead_reason = 'permanent_failure' OR dead_reason = 'max_attempts_exceeded' OR dead_reason = 'endpoint_gone' OR dead_reason = 'expired' OR dead_reason = 'corrupt')
    WHEN 'cancelled' THEN due_at_ms IS NULL AND ended_at_ms IS NOT NULL AND dead_reason IS NULL AND cancel_reason IS NOT NULL
      AND (cancel_reason = 'requested' OR cancel_reason = 'endpoint_deleted' OR cancel_reason = 'unsubscribed')
    ELSE 0 END)
) STRICT;

CREATE UNIQUE INDEX deliveries_by_id ON deliveries (id);
-- One original for each event and endpoint; replays are further deliveries.
CREATE UNIQUE INDEX deliveries_by_event ON deliveries (event_seq, endpoint, (CASE WHEN replay_of IS NULL THEN 0 ELSE seq END));
-- And by seq, as every index is that does not say otherwise: to name it would keep it twice.
CREATE INDEX deliveries_by_endpoint ON deliveries (endpoint);
CREATE INDEX deliveries_by_tenant ON deliveries (tenant);
-- The dead letters that are open, the newest death last.
CREATE INDEX deliveries_dead ON deliveries (ended_at_ms, seq) WHERE status = 'dead' AND replayed_as IS NULL;
CREATE INDEX deliveries_dead_by_tenant ON deliveries (tenant, ended_at_ms, seq) WHERE status = 'dead' AND replayed_as IS NULL;

-- The three queues of a lane, each in its own order, and each only as large as the backlog. Whether a row belongs to an index is asked at
-- every write: first what is seldom so and costs nothing to look at, and the status, which is a text, last.
CREATE INDEX deliveries_fresh ON deliveries (endpoint, class, timestamp_ms)
  WHERE is_later = 0 AND ordering_key IS NULL AND status = 'waiting';
CREATE INDEX deliveries_later ON deliveries (endpoint, class, due_at_ms)
  WHERE is_later = 1 AND ordering_key IS NULL AND status = 'waiting';
CREATE INDEX deliveries_keyed ON deliveries (endpoint, ordering_key, seq)
  WHERE ordering_key IS NOT NULL AND status = 'waiting';
CREATE INDEX deliveries_expiring ON deliveries (expires_at_ms) WHERE expires_at_ms IS NOT NULL AND status = 'waiting';
CREATE INDEX deliveries_replayed ON deliveries (endpoint) WHERE replay IS NOT NULL AND status = 'waiting';
