-- 0003_endpoints.sql: places that tenants want events sent to. Mirrors `Endpoint` in core.
CREATE TABLE endpoints (
  id              BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  tenant          TEXT    NOT NULL,
  partition       INTEGER NOT NULL,
  uid             TEXT,
  url             TEXT    NOT NULL,
  status          TEXT    NOT NULL CHECK (status = 'active' OR status = 'paused' OR status = 'disabled'),
  paused_until_ms INTEGER CHECK (paused_until_ms IS NULL OR status = 'paused'),
  document        TEXT    NOT NULL,  -- subscription, policies, signing and the rest
  sealed          BLOB    NOT NULL,  -- secrets and headers, encrypted
  version         INTEGER NOT NULL,
  created_at_ms   INTEGER NOT NULL,
  updated_at_ms   INTEGER NOT NULL,
  deleted_at_ms   INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX endpoints_by_tenant ON endpoints (tenant, id);
CREATE UNIQUE INDEX endpoints_by_uid ON endpoints (tenant, uid) WHERE uid IS NOT NULL AND deleted_at_ms IS NULL;
