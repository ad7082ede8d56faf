-- 0024_endpoint_versions.sql: what earlier versions of an endpoint were, so that history shows the URL that was used.

-- One row for each configuration that was replaced by one with another URL, payload format or header names. No secrets, no header values.
CREATE TABLE endpoint_versions (
  endpoint       BLOB    NOT NULL CHECK (length(endpoint) = 16),
  last_version   INTEGER NOT NULL,  -- the last version of the endpoint that was like this
  url            TEXT    NOT NULL,
  payload_format TEXT    NOT NULL,
  header_names   TEXT    NOT NULL,  -- one per line
  replaced_at_ms INTEGER NOT NULL,
  PRIMARY KEY (endpoint, last_version)
) STRICT, WITHOUT ROWID;

-- The version of the endpoint that an attempt was sent with; NULL for attempts from before this step.
ALTER TABLE attempts ADD COLUMN endpoint_version INTEGER;
-- That of the last attempt.
ALTER TABLE deliveries ADD COLUMN last_endpoint_version INTEGER;
