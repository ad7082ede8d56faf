-- 0013_cluster.sql: who owns what. With SQLite one process owns everything, and only its epoch changes.
CREATE TABLE handed_over (
  delivery_seq INTEGER NOT NULL PRIMARY KEY,
  epoch        INTEGER NOT NULL,  -- under which the leaver may still record it
  until_ms     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
