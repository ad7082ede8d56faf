-- 0007_events.sql: what happened, once, whatever the number of endpoints. Mirrors `Event` in core.
-- Cut by retention class and day (`slot`), so that forgetting a day is dropping a table. What unfinished and dead deliveries still
-- need is copied to events_kept before.
CREATE SEQUENCE events_seq;

CREATE TABLE events (
  slot            INTEGER NOT NULL,
  seq             BIGINT  NOT NULL,
  tenant          TEXT COLLATE "C" NOT NULL,
  id              TEXT COLLATE "C" NOT NULL,
  type            TEXT COLLATE "C" NOT NULL,
  version         TEXT COLLATE "C",
  timestamp_ms    BIGINT  NOT NULL,
  accepted_at_ms  BIGINT  NOT NULL,
  data            TEXT COLLATE "C",  -- to the byte as it was published; NULL once it was erased
  digest          BYTEA   NOT NULL CHECK (octet_length(digest) = 32),  -- SHA-256 of data, checked before it is sent
  labels          TEXT COLLATE "C" NOT NULL,  -- one a line
  idempotency_key TEXT COLLATE "C",
  ordering_key    TEXT COLLATE "C",
  deliver_at_ms   BIGINT,
  expires_at_ms   BIGINT,
  erased_at_ms    BIGINT CHECK ((erased_at_ms IS NULL) = (data IS NOT NULL)),
  PRIMARY KEY (seq, slot)  -- in this order a day's table is read by seq alone
) PARTITION BY LIST (slot);

-- The id first: whoever may see all tenants asks without naming one.
CREATE INDEX events_by_id ON events (id, tenant);
CREATE INDEX events_by_tenant ON events (tenant, seq);

CREATE TABLE events_kept (LIKE events INCLUDING DEFAULTS INCLUDING CONSTRAINTS, PRIMARY KEY (seq));
CREATE INDEX events_kept_by_id ON events_kept (id, tenant);
CREATE INDEX events_kept_by_tenant ON events_kept (tenant, seq);
CREATE INDEX events_kept_by_slot ON events_kept (slot);
