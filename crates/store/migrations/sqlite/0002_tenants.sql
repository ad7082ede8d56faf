-- 0002_tenants.sql: customers of the people who run Posthaste. Mirrors `Tenant` in core.
CREATE TABLE tenants (
  id            TEXT    NOT NULL PRIMARY KEY,
  version       INTEGER NOT NULL,  -- raised with every change of it or of one of its endpoints
  retention_ms  INTEGER NOT NULL,  -- how long what has ended is kept
  document      TEXT    NOT NULL,  -- share, rate limit, defaults
  extra         TEXT    NOT NULL,  -- what only the API reads
  created_at_ms INTEGER NOT NULL,
  deleted_at_ms INTEGER,           -- its history goes by and by
  swept_to      INTEGER NOT NULL DEFAULT 0  -- deliveries up to this one have been looked at by housekeeping
) STRICT, WITHOUT ROWID;
