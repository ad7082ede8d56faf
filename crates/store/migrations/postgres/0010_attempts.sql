-- 0010_attempts.sql: every try of every delivery, and what came of it. Mirrors `Outcome` in core. Cut as events are.
CREATE TABLE attempts (
  slot             INTEGER NOT NULL,
  delivery_seq     BIGINT  NOT NULL,
  number           INTEGER NOT NULL CHECK (number > 0),
  id               BYTEA   NOT NULL CHECK (octet_length(id) = 16),
  outcome          TEXT COLLATE "C" NOT NULL CHECK (outcome IN ('answered', 'timeout', 'reset', 'connect', 'tls', 'dns', 'blocked')),
  status_code      INTEGER,
  response_time_ms BIGINT  NOT NULL,
  dns_ms           BIGINT,
  connect_ms       BIGINT,
  tls_ms           BIGINT,
  first_byte_ms    BIGINT,
  timeout_ms       BIGINT  NOT NULL,
  preview          TEXT COLLATE "C",
  error            TEXT COLLATE "C",
  attempted_at_ms  BIGINT  NOT NULL,
  PRIMARY KEY (delivery_seq, number, slot),
  CHECK ((outcome = 'answered') = (status_code IS NOT NULL))
) PARTITION BY LIST (slot);

-- Of deliveries that outlived the day of their attempts: unfinished ones, and dead letters.
CREATE TABLE attempts_kept (LIKE attempts INCLUDING DEFAULTS INCLUDING CONSTRAINTS, PRIMARY KEY (delivery_seq, number));
