-- 0016_chosen_ids.sql: an event is found by an id that somebody chose, without a look at all the days that there are.
CREATE INDEX idempotency_keys_by_id ON idempotency_keys (key) WHERE kind = 'id';
