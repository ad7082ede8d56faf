-- 0015_minutes.sql: how endpoints have fared, per minute. Mirrors `Minute`.
CREATE TABLE minutes (
  endpoint      BYTEA  NOT NULL CHECK (octet_length(endpoint) = 16),
  minute_ms     BIGINT NOT NULL,  -- its start
  tenant        TEXT COLLATE "C" NOT NULL,
  attempts      BIGINT NOT NULL,
  successes     BIGINT NOT NULL,
  timeouts      BIGINT NOT NULL,
  delivered     BIGINT NOT NULL,
  dead          BIGINT NOT NULL,
  retried       BIGINT NOT NULL,
  success_times BYTEA  NOT NULL,  -- a sketch, as the core writes it
  timeout_times BYTEA  NOT NULL,
  PRIMARY KEY (endpoint, minute_ms)
);

CREATE INDEX minutes_by_age ON minutes (minute_ms);

-- The same added up, so that nobody has to read the minutes of all endpoints.
CREATE TABLE minutes_of_tenants (
  tenant        TEXT COLLATE "C" NOT NULL,  -- '' for everybody
  minute_ms     BIGINT NOT NULL,
  attempts      BIGINT NOT NULL,
  successes     BIGINT NOT NULL,
  timeouts      BIGINT NOT NULL,
  delivered     BIGINT NOT NULL,
  dead          BIGINT NOT NULL,
  retried       BIGINT NOT NULL,
  success_times BYTEA  NOT NULL,
  timeout_times BYTEA  NOT NULL,
  PRIMARY KEY (tenant, minute_ms)
);

CREATE INDEX minutes_of_tenants_by_age ON minutes_of_tenants (minute_ms);
