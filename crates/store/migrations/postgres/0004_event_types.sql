-- 0004_event_types.sql: the catalogue. Mirrors `catalogue::Entry` in core.
CREATE TABLE event_types (
  name     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  document TEXT COLLATE "C" NOT NULL
);
