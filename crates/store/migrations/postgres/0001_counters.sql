-- 0001_counters.sql: numbers and words that there is one of.
CREATE TABLE counters (
  name  TEXT COLLATE "C"    NOT NULL PRIMARY KEY,
  value BIGINT NOT NULL
);
INSERT INTO counters (name, value) VALUES
  ('configuration', 1),  -- raised with every change of what people have said
  ('catalogue', 1);      -- raised with every change of an event type

CREATE TABLE words (
  name  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  value TEXT COLLATE "C" NOT NULL
);
