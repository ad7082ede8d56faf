-- 0011_lanes.sql: what owners know about lanes beside their rows: breaker, bucket, health, learned timeout.
CREATE TABLE lanes (
  endpoint BLOB NOT NULL PRIMARY KEY CHECK (length(endpoint) = 16),
  document TEXT NOT NULL
) STRICT, WITHOUT ROWID;
