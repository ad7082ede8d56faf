-- 0003_endpoints.sql: places that tenants want events sent to. Mirrors `Endpoint` in core.
CREATE TABLE endpoints (
  id              BYTEA    NOT NULL PRIMARY KEY CHECK (octet_length(id) = 16),
  tenant          TEXT COLLATE "C"    NOT NULL,
  partition       SMALLINT NOT NULL,
  uid             TEXT COLLATE "C",
  url             TEXT COLLATE "C"    NOT NULL,
  status          TEXT COLLATE "C"    NOT NULL CHECK (status IN ('active', 'paused', 'disabled')),
  paused_until_ms BIGINT CHECK (paused_until_ms IS NULL OR status = 'paused'),
  document        TEXT COLLATE "C"    NOT NULL,  -- subscription, policies, signing and the rest
  sealed          BYTEA    NOT NULL,  -- secrets and headers, encrypted
  version         BIGINT NOT NULL,
  created_at_ms   BIGINT NOT NULL,
  updated_at_ms   BIGINT NOT NULL,
  deleted_at_ms   BIGINT
);

CREATE INDEX endpoints_by_tenant ON endpoints (tenant, id);
CREATE UNIQUE INDEX endpoints_by_uid ON endpoints (tenant, uid) WHERE uid IS NOT NULL AND deleted_at_ms IS NULL;
