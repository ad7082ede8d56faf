-- 0011_lanes.sql: what owners know about lanes beside their rows: breaker, bucket, health, learned timeout.
CREATE TABLE lanes (
  endpoint BYTEA NOT NULL PRIMARY KEY CHECK (octet_length(endpoint) = 16),
  document TEXT COLLATE "C" NOT NULL
);
