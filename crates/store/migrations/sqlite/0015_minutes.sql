-- 0015_minutes.sql: how endpoints have fared, per minute. Mirrors `Minute`.
CREATE TABLE minutes (
  endpoint      BLOB    NOT NULL CHECK (length(endpoint) = 16),
  minute_ms     INTEGER NOT NULL,  -- its start
  tenant        TEXT    NOT NULL,
  attempts      INTEGER NOT NULL,
  successes     INTEGER NOT NULL,
  timeouts      INTEGER NOT NULL,
  delivered     INTEGER NOT NULL,
  dead          INTEGER NOT NULL,
  retried       INTEGER NOT NULL,
  success_times BLOB    NOT NULL,  -- a sketch, as the core writes it
  timeout_times BLOB    NOT NULL,
  PRIMARY KEY (endpoint, minute_ms)
) STRICT, WITHOUT ROWID;

CREATE INDEX minutes_by_age ON minutes (minute_ms);

-- The same added up, so that nobody has to read the minutes of all endpoints.
CREATE TABLE minutes_of_tenants (
  tenant        TEXT    NOT NULL,  -- '' for everybody
  minute_ms     INTEGER NOT NULL,
  attempts      INTEGER NOT NULL,
  successes     INTEGER NOT NULL,
  timeouts      INTEGER NOT NULL,
  delivered     INTEGER NOT NULL,
  dead          INTEGER NOT NULL,
  retried       INTEGER NOT NULL,
  success_times BLOB    NOT NULL,
  timeout_times BLOB    NOT NULL,
  PRIMARY KEY (tenant, minute_ms)
) STRICT, WITHOUT ROWID;

CREATE INDEX minutes_of_tenants_by_age ON minutes_of_tenants (minute_ms);
