-- 0023_replay_progress.sql: how far a replay has come at each of its endpoints, and what it left out, by reason.
CREATE TABLE replay_progress (
  replay   BLOB    NOT NULL CHECK (length(replay) = 16),
  endpoint BLOB    NOT NULL CHECK (length(endpoint) = 16),
  cursor   INTEGER NOT NULL,  -- rows of this endpoint up to this one are done
  turn     INTEGER NOT NULL,  -- the replay's step that last looked at this endpoint; the lowest is next
  PRIMARY KEY (replay, endpoint)
) STRICT, WITHOUT ROWID;

CREATE INDEX replay_progress_by_turn ON replay_progress (replay, turn);

ALTER TABLE replays ADD COLUMN steps INTEGER NOT NULL DEFAULT 0;
-- The newest delivery when the replay was requested: a row repeated by a later one was repeated by someone else meanwhile.
ALTER TABLE replays ADD COLUMN last_delivery INTEGER NOT NULL DEFAULT 0;
ALTER TABLE replays ADD COLUMN skipped_erased INTEGER NOT NULL DEFAULT 0;
ALTER TABLE replays ADD COLUMN skipped_already_redelivered INTEGER NOT NULL DEFAULT 0;
ALTER TABLE replays ADD COLUMN skipped_unsubscribed INTEGER NOT NULL DEFAULT 0;

-- Replays that still run go on from where they were. An endpoint that one of them is not about is looked at once and left.
INSERT INTO replay_progress (replay, endpoint, cursor, turn)
  SELECT r.id, e.id, r.cursor, 0 FROM replays r JOIN endpoints e ON r.tenant IS NULL OR e.tenant = r.tenant WHERE r.state = 'running';
UPDATE replays SET last_delivery = CASE WHEN filter LIKE '%"missing":true%' THEN (SELECT coalesce(max(seq), 0) FROM deliveries) ELSE up_to END;
-- Why earlier replays left rows out was not written down. Overlapping replays are the usual cause.
UPDATE replays SET skipped_already_redelivered = matched - created WHERE state = 'done' AND matched > created;
UPDATE replays SET matched = created WHERE state = 'done' AND matched < created;
