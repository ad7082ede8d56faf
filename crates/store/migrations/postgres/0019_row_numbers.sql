-- 0019_row_numbers.sql: a tenant that is created again starts without the keys of the one before. Numbers of rows come from sequences, which
-- give none twice.

-- Events below this number belong to an earlier tenant of the same id, which was deleted.
ALTER TABLE tenants ADD COLUMN first_event BIGINT NOT NULL DEFAULT 0;
