-- 0018_places_of_deliveries.sql: where the deliveries of an event are, so that neither they nor their ids need an index that every publish
-- writes to. Those that an event began with lie side by side; and ids grow from row to row, so that a row is found by its id as a word is
-- in a dictionary.
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
