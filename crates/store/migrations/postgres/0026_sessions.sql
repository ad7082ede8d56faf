-- 0026_sessions.sql: people who are logged in, and portal links that have not been used yet. What has ended is deleted.
CREATE TABLE sessions (
  id                   BYTEA    NOT NULL PRIMARY KEY CHECK (octet_length(id) = 16),
  hash                 BYTEA    NOT NULL UNIQUE CHECK (octet_length(hash) = 32),  -- of the code of a link until it is used, then of the token
  tenant               TEXT COLLATE "C",  -- of the portal; NULL: a session of the dashboard
  tenant_created_at_ms BIGINT,            -- which tenant of that name
  permissions          BIGINT NOT NULL,   -- bits, in the portal
  key                  BYTEA,             -- the key that made it; NULL: the operator's first key
  admin                BYTEA,             -- a digest of the operator's first key
  created_at_ms        BIGINT NOT NULL,
  started_at_ms        BIGINT,            -- NULL: the link has not been used
  expires_at_ms        BIGINT NOT NULL,
  ends_at_ms           BIGINT NOT NULL    -- when the code expires, then when the session does
);

CREATE INDEX sessions_by_tenant ON sessions (tenant, id);
CREATE INDEX sessions_by_key ON sessions (key, id);
CREATE INDEX sessions_by_end ON sessions (ends_at_ms);
