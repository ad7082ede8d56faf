-- 0021_retention.sql: what cleanup needs to find old rows without reading the others.

-- Deliveries that cleanup has passed and could not delete: unfinished ones, and dead letters that are kept longer.
CREATE TABLE retained (
  delivery_seq     BIGINT  NOT NULL PRIMARY KEY,
  look_again_at_ms BIGINT  NOT NULL,
  is_overdue       BOOLEAN NOT NULL  -- it has waited longer than the retention
);

CREATE INDEX retained_by_time ON retained (look_again_at_ms, delivery_seq);
CREATE INDEX retained_overdue ON retained (delivery_seq) WHERE is_overdue;

-- What was passed before this table was there is passed once more.
UPDATE tenants SET swept_to = 0;
-- Events up to this one have been looked at by cleanup, where they do not go with their day.
ALTER TABLE tenants ADD COLUMN events_swept_to BIGINT NOT NULL DEFAULT 0;
-- Deliveries and events up to these belong to a tenant of the same name that was deleted: they go as soon as they have ended.
ALTER TABLE tenants ADD COLUMN deleted_to BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tenants ADD COLUMN events_deleted_to BIGINT NOT NULL DEFAULT 0;
UPDATE tenants SET deleted_to = (SELECT last_value FROM deliveries_seq_seq), events_deleted_to = (SELECT last_value FROM events_seq)
  WHERE deleted_at_ms IS NOT NULL;
-- The highest version that a removed tenant had. A tenant that is created again starts above it, because routes are cached by version.
INSERT INTO counters (name, value) VALUES ('removed_tenant_version', 0);

CREATE INDEX tenants_deleted ON tenants (deleted_at_ms, id) WHERE deleted_at_ms IS NOT NULL;
CREATE INDEX endpoints_deleted ON endpoints (deleted_at_ms, id) WHERE deleted_at_ms IS NOT NULL;
CREATE INDEX keys_ended ON keys (coalesce(revoked_at_ms, expires_at_ms)) WHERE coalesce(revoked_at_ms, expires_at_ms) IS NOT NULL;
CREATE INDEX replays_ended ON replays (ended_at_ms, id) WHERE ended_at_ms IS NOT NULL;
CREATE INDEX handed_over_by_deadline ON handed_over (until_ms);
-- By kind, because ids whose event is still there must not be in the way of keys; and so that a look can go on where the last one stopped.
CREATE INDEX idempotency_keys_by_kind_and_expiry ON idempotency_keys (kind, expires_at_ms, tenant, key) WHERE expires_at_ms IS NOT NULL;
DROP INDEX idempotency_keys_by_expiry;

-- Hot tables: the server's default waits for a fifth of a table to be dead, which for a queue is far too late. A fixed number of dead
-- rows starts it instead, and it does not pause between pages.
ALTER TABLE deliveries SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000,
  autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE idempotency_keys SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000,
  autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE retained SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
ALTER TABLE commits SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE commands SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE minutes SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
ALTER TABLE minutes_of_tenants SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- Small tables whose rows are written again and again: their dead versions outnumber them within seconds.
ALTER TABLE lanes SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE lanes_shown SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE handed_over SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE nodes SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
ALTER TABLE partitions SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE counters SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
ALTER TABLE tenants SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
