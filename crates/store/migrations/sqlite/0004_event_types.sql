-- 0004_event_types.sql: the catalogue. Mirrors `catalogue::Entry` in core.
CREATE TABLE event_types (
  name     TEXT NOT NULL PRIMARY KEY,
  document TEXT NOT NULL
) STRICT, WITHOUT ROWID;
