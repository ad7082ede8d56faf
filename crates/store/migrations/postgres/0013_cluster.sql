-- 0013_cluster.sql: who owns what. Times are the database's.
CREATE TABLE nodes (
  id         BYTEA       NOT NULL PRIMARY KEY CHECK (octet_length(id) = 16),
  expires_at TIMESTAMPTZ NOT NULL  -- by clock_timestamp(); once it has passed it is never renewed
);

CREATE TABLE partitions (
  id    SMALLINT NOT NULL PRIMARY KEY,
  owner BYTEA,                    -- changes only on transfer
  epoch BIGINT NOT NULL DEFAULT 0  -- raised with every change of owner: a record under an old one changes nothing
);
INSERT INTO partitions (id) SELECT generate_series(0, 255);

CREATE TABLE handed_over (
  delivery_seq BIGINT NOT NULL PRIMARY KEY,
  epoch        BIGINT NOT NULL,  -- under which the leaver may still record it
  until_ms     BIGINT NOT NULL
);

-- One for each transaction that must not be in doubt: whoever lost the answer to a COMMIT writes the same id as void. If that
-- works the transaction can never commit any more; if it is there already, it has.
CREATE TABLE commits (
  id      BYTEA       NOT NULL PRIMARY KEY CHECK (octet_length(id) = 16),
  at      TIMESTAMPTZ NOT NULL,
  is_void BOOLEAN     NOT NULL DEFAULT FALSE
);

CREATE INDEX commits_by_age ON commits (at);
