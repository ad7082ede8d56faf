-- 0018_places_of_deliveries.sql: where deliveries are, with fewer indexes that every publish and every record has to look after.

-- Those that an event began with lie side by side; and ids grow from row to row, so that a row is found by its id as a word is in a
-- dictionary.
ALTER TABLE events ADD COLUMN first_delivery INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN deliveries INTEGER NOT NULL DEFAULT 0;  -- how many there were, from the first on
UPDATE events SET first_delivery = made.first, deliveries = made.number
  FROM (SELECT event_seq, min(seq) AS first, max(seq) - min(seq) + 1 AS number FROM deliveries WHERE replay_of IS NULL AND replay IS NULL GROUP BY event_seq) AS made
  WHERE made.event_seq = events.seq;

DROP INDEX deliveries_by_id;
DROP INDEX deliveries_by_event;
-- What was made of an event later: again, or for an endpoint that had missed it. One such original for each event and endpoint.
CREATE UNIQUE INDEX deliveries_made_later ON deliveries (event_seq, endpoint, (CASE WHEN replay_of IS NULL THEN 0 ELSE seq END))
  WHERE replay IS NOT NULL OR replay_of IS NOT NULL;

-- All queues of a lane, each in its own order: what is fresh by class (0 to 2) and time, what is due later by class (3 to 5) and when, and
-- what has an ordering key (6) by that. Only as large as the backlog. `lanes.rs` says the same words again.
DROP INDEX deliveries_fresh;
DROP INDEX deliveries_later;
DROP INDEX deliveries_keyed;
CREATE INDEX deliveries_queued ON deliveries (endpoint,
  (CASE WHEN ordering_key IS NOT NULL THEN 6 WHEN is_later THEN 3 + class ELSE class END),
  (CASE WHEN ordering_key IS NOT NULL THEN ordering_key WHEN is_later THEN due_at_ms ELSE timestamp_ms END))
  WHERE status = 'waiting';

-- The dead letters that are open, the newest death last. By the reason, which only the dead have, because two texts are slower to compare.
DROP INDEX deliveries_dead;
DROP INDEX deliveries_dead_by_tenant;
CREATE INDEX deliveries_dead ON deliveries (ended_at_ms, seq) WHERE dead_reason IS NOT NULL AND replayed_as IS NULL;
CREATE INDEX deliveries_dead_by_tenant ON deliveries (tenant, ended_at_ms, seq) WHERE dead_reason IS NOT NULL AND replayed_as IS NULL;
