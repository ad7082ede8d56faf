-- 0010_attempts.sql: every try of every delivery, and what came of it. Mirrors `Outcome` in core.
CREATE TABLE attempts (
  delivery_seq     INTEGER NOT NULL,
  number           INTEGER NOT NULL CHECK (number > 0),
  id               BLOB    NOT NULL CHECK (length(id) = 16),
  outcome          TEXT    NOT NULL,  -- answered, or why not
  status_code      INTEGER,
  response_time_ms INTEGER NOT NULL,
  dns_ms           INTEGER,
  connect_ms       INTEGER,
  tls_ms           INTEGER,
  first_byte_ms    INTEGER,
  timeout_ms       INTEGER NOT NULL,
  preview          TEXT,
  error            TEXT,
  attempted_at_ms  INTEGER NOT NULL,
  PRIMARY KEY (delivery_seq, number),
  CHECK (CASE outcome
    WHEN 'answered' THEN status_code IS NOT NULL
    ELSE status_code IS NULL AND (outcome = 'timeout' OR outcome = 'reset' OR outcome = 'connect' OR outcome = 'tls' OR outcome = 'dns' OR outcome = 'blocked')
    END)
) STRICT, WITHOUT ROWID;
