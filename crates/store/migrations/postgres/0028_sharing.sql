-- 0028_sharing.sql: what nodes need to share partitions, and what people see of nodes. A binary that does not know these columns
-- can still use the schema.

ALTER TABLE nodes
  ADD COLUMN joined_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
  ADD COLUMN is_leaving    BOOLEAN     NOT NULL DEFAULT FALSE,  -- it takes no more partitions
  ADD COLUMN host          TEXT        NOT NULL DEFAULT '',
  ADD COLUMN version       TEXT        NOT NULL DEFAULT '',
  ADD COLUMN roles         TEXT        NOT NULL DEFAULT '',     -- separated by commas
  ADD COLUMN address       TEXT,
  ADD COLUMN clock_skew_ms BIGINT      NOT NULL DEFAULT 0,
  ADD COLUMN lanes         BIGINT      NOT NULL DEFAULT 0,
  ADD COLUMN in_flight     BIGINT      NOT NULL DEFAULT 0,
  ADD COLUMN lag_ms        BIGINT      NOT NULL DEFAULT 0;

ALTER TABLE partitions
  ADD COLUMN freed_at       TIMESTAMPTZ,                     -- since when it has no owner
  ADD COLUMN moved_at       TIMESTAMPTZ,                     -- when it was last handed over to share the load
  ADD COLUMN crashed_at     TIMESTAMPTZ,                     -- when an owner last died with it
  ADD COLUMN is_handed_over BOOLEAN NOT NULL DEFAULT FALSE;  -- its last owner gave it up of its own will

-- The token buckets of tenants, written when a partition is handed over. A bucket that is full has no row.
CREATE TABLE tenant_buckets (
  tenant        TEXT     NOT NULL,
  partition     SMALLINT NOT NULL,
  full_at_nanos BIGINT   NOT NULL,
  PRIMARY KEY (tenant, partition)
);
CREATE INDEX tenant_buckets_by_time ON tenant_buckets (full_at_nanos);
