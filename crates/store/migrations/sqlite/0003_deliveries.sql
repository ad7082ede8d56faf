-- 0003_deliveries.sql: one event on its way to one endpoint. Mirrors `State` in core.
CREATE TABLE deliveries (
  seq           INTEGER PRIMARY KEY,  -- the order of acceptance
  id            BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  tenant        TEXT    NOT NULL,
  event         TEXT    NOT NULL,
  endpoint      BLOB    NOT NULL,
  status        TEXT    NOT NULL CHECK (status IN ('waiting', 'delivered', 'dead', 'cancelled')),
  due_at_ms     INTEGER,  -- not before; NULL once it has ended
  ended_at_ms   INTEGER,
  dead_reason   TEXT CHECK (dead_reason IN ('permanent_failure', 'max_attempts_exceeded', 'endpoint_gone', 'expired', 'corrupt')),
  cancel_reason TEXT CHECK (cancel_reason IN ('requested', 'endpoint_deleted', 'unsubscribed')),
  attempts      INTEGER NOT NULL DEFAULT 0,
  replay_of     BLOB,  -- the delivery that this one repeats; NULL for an original
  created_at_ms INTEGER NOT NULL,
  CHECK ((status = 'waiting')   = (due_at_ms     IS NOT NULL)),
  CHECK ((status <> 'waiting')  = (ended_at_ms   IS NOT NULL)),
  CHECK ((status = 'dead')      = (dead_reason   IS NOT NULL)),
  CHECK ((status = 'cancelled') = (cancel_reason IS NOT NULL))
) STRICT;

-- One original for each event and endpoint; replays are further deliveries.
CREATE UNIQUE INDEX deliveries_original ON deliveries (tenant, event, endpoint) WHERE replay_of IS NULL;

-- As large as the backlog, whatever the history.
CREATE INDEX deliveries_due ON deliveries (due_at_ms, seq) WHERE status = 'waiting';
