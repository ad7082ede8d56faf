-- 0005_keys.sql: API keys, as hashes only.
CREATE TABLE keys (
  id              BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  hash            BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
  name            TEXT    NOT NULL,
  tenant          TEXT,              -- NULL: all
  scopes          TEXT    NOT NULL,  -- one a line
  created_at_ms   INTEGER NOT NULL,
  expires_at_ms   INTEGER,
  revoked_at_ms   INTEGER,
  last_used_at_ms INTEGER
) STRICT, WITHOUT ROWID;
