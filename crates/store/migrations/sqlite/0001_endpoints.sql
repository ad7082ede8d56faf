-- 0001_endpoints.sql: places that tenants want events sent to. Mirrors `Endpoint` in core.
CREATE TABLE endpoints (
  id              BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  tenant          TEXT    NOT NULL,
  url             TEXT    NOT NULL,
  event_types     TEXT    NOT NULL,  -- patterns, one a line; none means all
  status          TEXT    NOT NULL CHECK (status IN ('active', 'paused', 'disabled')),
  paused_until_ms INTEGER CHECK (paused_until_ms IS NULL OR status = 'paused'),
  secret          TEXT    NOT NULL,
  created_at_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX endpoints_by_tenant ON endpoints (tenant);
