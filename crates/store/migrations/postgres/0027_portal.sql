-- 0027_portal.sql: what a portal session looks like, and endpoints that need a person.
ALTER TABLE sessions ADD COLUMN appearance TEXT;  -- of the portal, as the API writes it; NULL: as the server's own pages

CREATE INDEX endpoints_disabled ON endpoints (tenant, id) WHERE status = 'disabled' AND deleted_at_ms IS NULL;
