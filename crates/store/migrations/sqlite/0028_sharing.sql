-- 0028_sharing.sql: the token buckets of tenants, written when the process stops. A bucket that is full has no row.
CREATE TABLE tenant_buckets (
  tenant        TEXT    NOT NULL,
  partition     INTEGER NOT NULL,
  full_at_nanos INTEGER NOT NULL,
  PRIMARY KEY (tenant, partition)
) WITHOUT ROWID, STRICT;
CREATE INDEX tenant_buckets_by_time ON tenant_buckets (full_at_nanos);
