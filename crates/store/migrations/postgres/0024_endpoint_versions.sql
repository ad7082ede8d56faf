-- 0024_endpoint_versions.sql: what earlier versions of an endpoint were, so that history shows the URL that was used.

-- One row for each configuration that was replaced by one with another URL, payload format or header names. No secrets, no header values.
CREATE TABLE endpoint_versions (
  endpoint       BYTEA   NOT NULL CHECK (octet_length(endpoint) = 16),
  last_version   BIGINT  NOT NULL,  -- the last version of the endpoint that was like this
  url            TEXT COLLATE "C" NOT NULL,
  payload_format TEXT COLLATE "C" NOT NULL,
  header_names   TEXT COLLATE "C" NOT NULL,  -- one per line
  replaced_at_ms BIGINT  NOT NULL,
  PRIMARY KEY (endpoint, last_version)
);

-- The version of the endpoint that an attempt was sent with; NULL for attempts from before this step.
ALTER TABLE attempts ADD COLUMN endpoint_version INTEGER;
ALTER TABLE attempts_kept ADD COLUMN endpoint_version INTEGER;
-- That of the last attempt.
ALTER TABLE deliveries ADD COLUMN last_endpoint_version INTEGER;
