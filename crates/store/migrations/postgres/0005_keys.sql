-- 0005_keys.sql: API keys, as hashes only.
CREATE TABLE keys (
  id              BYTEA    NOT NULL PRIMARY KEY CHECK (octet_length(id) = 16),
  hash            BYTEA    NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
  name            TEXT COLLATE "C"    NOT NULL,
  tenant          TEXT COLLATE "C",              -- NULL: all
  scopes          TEXT COLLATE "C"    NOT NULL,  -- one a line
  created_at_ms   BIGINT NOT NULL,
  expires_at_ms   BIGINT,
  revoked_at_ms   BIGINT,
  last_used_at_ms BIGINT
);
