-- 0014_commands.sql: what owners are asked to do, and what they show of their lanes. Mirrors `Command` and `LaneShown`.
CREATE TABLE commands (
  id         BYTEA       NOT NULL PRIMARY KEY CHECK (octet_length(id) = 16),
  partition  SMALLINT    NOT NULL,
  document   TEXT COLLATE "C" NOT NULL,
  created_at TIMESTAMPTZ NOT NULL,  -- by clock_timestamp(); one that is too old is not taken any more
  is_taken   BOOLEAN     NOT NULL DEFAULT FALSE,  -- by the owner, once
  answer     TEXT COLLATE "C"
);

CREATE INDEX commands_open ON commands (partition, created_at) WHERE NOT is_taken;
CREATE INDEX commands_by_age ON commands (created_at);

-- Written every second by whoever owns the lane, so there is room beside each row for the next version of it.
CREATE TABLE lanes_shown (
  endpoint BYTEA  NOT NULL PRIMARY KEY CHECK (octet_length(endpoint) = 16),
  at_ms    BIGINT NOT NULL,
  document TEXT COLLATE "C" NOT NULL
) WITH (fillfactor = 50);
