-- 0004_attempts.sql: every try of every delivery, and what came of it. Mirrors `Outcome` in core.
CREATE TABLE attempts (
  delivery         BLOB    NOT NULL,
  number           INTEGER NOT NULL CHECK (number > 0),
  id               BLOB    NOT NULL CHECK (length(id) = 16),
  outcome          TEXT    NOT NULL CHECK (outcome IN ('answered', 'timeout', 'reset', 'connect', 'tls', 'dns', 'blocked')),
  status_code      INTEGER,
  response_time_ms INTEGER NOT NULL,
  timeout_ms       INTEGER NOT NULL,
  preview          TEXT,
  error            TEXT,
  attempted_at_ms  INTEGER NOT NULL,
  PRIMARY KEY (delivery, number),
  CHECK ((outcome = 'answered') = (status_code IS NOT NULL))
) STRICT, WITHOUT ROWID;
