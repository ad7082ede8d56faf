-- 0021_retention.sql: what cleanup needs to find old rows without reading the others.

-- Events that cleanup has passed and could not delete: a delivery is unfinished, or a dead letter is kept longer.
CREATE TABLE retained (
  event_seq        INTEGER PRIMARY KEY,
  look_again_at_ms INTEGER NOT NULL,
  is_overdue       INTEGER NOT NULL CHECK (is_overdue = 0 OR is_overdue = 1)  -- a delivery has waited longer than the retention
) STRICT;

CREATE INDEX retained_by_time ON retained (look_again_at_ms);
CREATE INDEX retained_overdue ON retained (event_seq) WHERE is_overdue = 1;

-- `swept_to` is the last event, and no longer the last delivery, of the tenant that cleanup has passed.
UPDATE tenants SET swept_to = 0;
-- Events up to this one belong to a tenant of the same name that was deleted: they go as soon as they have ended.
ALTER TABLE tenants ADD COLUMN deleted_to INTEGER NOT NULL DEFAULT 0;
UPDATE tenants SET deleted_to = (SELECT coalesce(max(seq), 0) FROM events) WHERE deleted_at_ms IS NOT NULL;
-- The highest version that a removed tenant had. A tenant that is created again starts above it, because routes are cached by version.
INSERT INTO counters (name, value) VALUES ('removed_tenant_version', 0);

CREATE INDEX tenants_deleted ON tenants (deleted_at_ms, id) WHERE deleted_at_ms IS NOT NULL;
CREATE INDEX endpoints_deleted ON endpoints (deleted_at_ms, id) WHERE deleted_at_ms IS NOT NULL;
CREATE INDEX keys_ended ON keys (coalesce(revoked_at_ms, expires_at_ms)) WHERE coalesce(revoked_at_ms, expires_at_ms) IS NOT NULL;
CREATE INDEX replays_ended ON replays (ended_at_ms, id) WHERE ended_at_ms IS NOT NULL;
CREATE INDEX handed_over_by_deadline ON handed_over (until_ms);
