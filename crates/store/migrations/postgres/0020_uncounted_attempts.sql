-- 0020_uncounted_attempts.sql: attempts that are recorded and not yet added to the counts per minute. Written with the attempts and removed with
-- adding them, so that a process that dies in between loses no count and counts nothing twice. One row has all of one statement.
CREATE TABLE uncounted_attempts (
  seq             BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  endpoint        BYTEA[]   NOT NULL,
  tenant          TEXT[]    NOT NULL,
  attempted_at_ms BIGINT[]  NOT NULL,
  status          TEXT[]    NOT NULL,  -- of the delivery, since
  is_timeout      BOOLEAN[] NOT NULL,
  millis          BIGINT[]  NOT NULL   -- how long the answer took, or the timeout
);
