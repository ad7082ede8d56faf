-- 0002_tenants.sql: customers of the people who run Posthaste. Mirrors `Tenant` in core.
CREATE TABLE tenants (
  id            TEXT COLLATE "C"    NOT NULL PRIMARY KEY,
  version       BIGINT NOT NULL,  -- raised with every change of it or of one of its endpoints
  retention_ms  BIGINT NOT NULL,  -- how long what has ended is kept
  document      TEXT COLLATE "C"    NOT NULL,  -- share, rate limit, defaults
  extra         TEXT COLLATE "C"    NOT NULL,  -- what only the API reads
  created_at_ms BIGINT NOT NULL,
  deleted_at_ms BIGINT,           -- its history goes by and by
  swept_to      BIGINT NOT NULL DEFAULT 0  -- deliveries up to this one have been looked at by housekeeping
);
