-- 0020_uncounted_attempts.sql: attempts that are recorded and not yet added to the counts per minute. Written with the attempts and removed with
-- adding them, so that a process that dies in between loses no count and counts nothing twice.
CREATE TABLE uncounted_attempts (
  seq      INTEGER PRIMARY KEY,
  attempts BLOB    NOT NULL  -- all of one commit, as `statistics.rs` writes them
) STRICT;
