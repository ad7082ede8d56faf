-- 0026_sessions.sql: people who are logged in, and portal links that have not been used yet. What has ended is deleted.
CREATE TABLE sessions (
  id                   BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  hash                 BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),  -- of the code of a link until it is used, then of the token
  tenant               TEXT,              -- of the portal; NULL: a session of the dashboard
  tenant_created_at_ms INTEGER,           -- which tenant of that name
  permissions          INTEGER NOT NULL,  -- bits, in the portal
  key                  BLOB,              -- the key that made it; NULL: the operator's first key
  admin                BLOB,              -- a digest of the operator's first key
  created_at_ms        INTEGER NOT NULL,
  started_at_ms        INTEGER,           -- NULL: the link has not been used
  expires_at_ms        INTEGER NOT NULL,
  ends_at_ms           INTEGER NOT NULL   -- when the code expires, then when the session does
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_by_tenant ON sessions (tenant, id);
CREATE INDEX sessions_by_key ON sessions (key, id);
CREATE INDEX sessions_by_end ON sessions (ends_at_ms);
