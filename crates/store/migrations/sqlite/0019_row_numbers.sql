-- 0019_row_numbers.sql: numbers of rows are never used twice, and a tenant that is created again starts without the keys of the one before.

-- Numbers up to these may have been used. Events and deliveries reserve them in blocks, see row_numbers.rs.
INSERT INTO counters (name, value) VALUES
  ('event_number', max(
    coalesce((SELECT max(seq) FROM events), 0),
    coalesce((SELECT max(event_seq) FROM idempotency_keys), 0),
    coalesce((SELECT max(up_to) FROM replays), 0))),
  ('delivery_number', max(
    coalesce((SELECT max(seq) FROM deliveries), 0),
    coalesce((SELECT max(delivery_seq) FROM attempts), 0),
    coalesce((SELECT max(delivery_seq) FROM handed_over), 0),
    coalesce((SELECT max(up_to) FROM replays), 0))),
  ('audit_number', coalesce((SELECT max(seq) FROM audit), 0));

-- Events below this number belong to an earlier tenant of the same id, which was deleted.
ALTER TABLE tenants ADD COLUMN first_event INTEGER NOT NULL DEFAULT 0;

-- A new tenant may choose an id that an event of the deleted one still has. Ids chosen within one tenant are kept apart by idempotency_keys.
DROP INDEX events_by_id;
CREATE INDEX events_by_id ON events (id, tenant);
