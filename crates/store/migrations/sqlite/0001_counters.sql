-- 0001_counters.sql: numbers and words that there is one of.
CREATE TABLE counters (
  name  TEXT    NOT NULL PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO counters (name, value) VALUES
  ('configuration', 1),  -- raised with every change of what people have said
  ('catalogue', 1),      -- raised with every change of an event type
  ('commit', 0),         -- raised with every group of writes: tells after a failed flush whether it was kept
  ('epoch', 0);          -- raised with every start

CREATE TABLE words (
  name  TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
